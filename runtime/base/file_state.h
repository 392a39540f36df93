// runtime/base/file_state.h: which file it is and when it last changed, as the file system says.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace weft::runtime {

struct FileState {
  std::uint64_t device = 0, inode = 0, size = 0;
  std::int64_t modified = 0, changed = 0;  ///< ns since 1970: of the contents; of the contents, the mode, a name

  bool operator==(const FileState&) const = default;
  bool same_file(const FileState& other) const { return device == other.device && inode == other.inode; }

  /// Nothing where it cannot be known.
  static std::optional<FileState> of(int fd);
  static std::optional<FileState> of(const std::filesystem::path& path);
  /// The five numbers, with blanks between them.
  std::string text() const;
  static std::optional<FileState> from_text(const std::string& text);
};

}  // namespace weft::runtime
