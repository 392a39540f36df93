// runtime/files.h: small files, read whole, and files that appear whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace weft::runtime {

/// The bytes of a regular file. Throws IoError if it cannot be read, DataError if it is no regular file (a pipe or a
/// device could block or never end) or holds more than `limit_bytes`; nothing over the limit is kept in memory.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes);

/// Throws unless a regular file can be created or replaced at `path`, which `flag` named: UsageError if something else
/// is there, IoError if its folder cannot be written to.
void require_writable(const std::string& flag, const std::filesystem::path& path);

/// Throws UsageError unless `path` is a file to read from, IoError if it may not be looked at.
void require_input(const std::string& flag, const std::filesystem::path& path);
/// The strict JSON of such a file of at most 1 MiB, which the user named: what is wrong with it is a UsageError.
nlohmann::json read_json(const std::string& flag, const std::filesystem::path& path);
/// Throws UsageError where there is no such folder.
void require_folder(const std::string& flag, const std::filesystem::path& path);

/// A file in the making, of any size: at `path` a reader, or a crash, sees the old file or the new one and never a
/// part, for it is written beside it and then synced and renamed. A symbolic link stays and its target is replaced.
/// Throws IoError; then, and without commit(), `path` is as before and nothing is left behind.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view text);
  void commit();  ///< after this nothing may be appended

 private:
  std::filesystem::path path_, target_, temporary_;
  int fd_ = -1;
};

/// Puts `text` at `path` in that way.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace weft::runtime
