// runtime/base/input_file.h: a large file that is read at offsets and never changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <utility>

#include "kernels/error.h"
#include "runtime/base/file_state.h"

namespace weft::runtime {

/// Thrown if a path names nothing, or something that is not a regular file.
struct NotAFile : DataError {
  NotAFile(const std::string& message, bool nothing_there) : DataError(message), missing(nothing_there) {}
  bool missing;  ///< true if nothing is there, false if something else is
};

/// An open regular file and its size when it was opened. It is never mapped, so that a file cut short meanwhile causes
/// an error instead of a SIGBUS. Any number of threads may read.
class InputFile {
 public:
  /// Throws NotAFile if it is missing or not a regular file (a pipe could block), IoError if it cannot be opened.
  explicit InputFile(const std::filesystem::path& path);
  /// Takes over the descriptor of a regular file. Messages call the file `name`.
  InputFile(int fd, std::filesystem::path name) : path_(std::move(name)), fd_(fd) { refresh_size(); }
  InputFile(InputFile&& other) noexcept;
  InputFile& operator=(InputFile&& other) noexcept;
  ~InputFile();

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  void refresh_size();  ///< call it after writing to the file
  /// The present state of the file. Throws IoError.
  FileState state() const;

  /// Fills `out` with the bytes from `offset` on. Throws IoError if the disk fails or the file has become shorter; then
  /// the contents of `out` are undefined.
  void read(std::uint64_t offset, std::span<std::byte> out) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  std::uint64_t size_ = 0;
};

}  // namespace weft::runtime
