// runtime/base/file_state.h: a file's identity, size and times of change, as the file system reports them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weft::runtime {

struct FileState {
  std::uint64_t device = 0, inode = 0, size = 0;
  /// In ns since 1970. `modified` covers the contents; `changed` covers the contents, the mode and the names.
  std::int64_t modified = 0, changed = 0;

  bool operator==(const FileState&) const = default;
  bool same_file(const FileState& other) const { return device == other.device && inode == other.inode; }

  /// Returns nothing if the state cannot be read.
  static std::optional<FileState> of(int fd);
  static std::optional<FileState> of(const std::filesystem::path& path);
  /// The five numbers, separated by blanks.
  std::string text() const;
  static std::optional<FileState> from_text(const std::string& text);
};

}  // namespace weft::runtime
