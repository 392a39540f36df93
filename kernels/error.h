// kernels/error.h: the ways to fail, each with the exit code of the program.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// `text` as one line that a terminal shows literally: control characters, and those that change the direction of
/// writing, are escaped as in JSON. At most 8 KiB.
std::string printable(std::string_view text);

/// The message states in one line what failed, where, what was wanted, what was found and what to do. It may contain
/// text from any file, because what() is printable.
class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(printable(message)), exit_code_(exit_code) {}
  /// Adds a line for each of `more` after that of `message`.
  Error(int exit_code, const std::string& message, const std::vector<std::string>& more);
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// A flag, a policy or a request is wrong.
struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(2, message) {}
  UsageError(const std::string& message, const std::vector<std::string>& more) : Error(2, message, more) {}
};
/// A checkpoint, a config or a tokenizer is wrong.
struct DataError : Error {
  explicit DataError(const std::string& message) : Error(3, message) {}
};
/// Memory, or another resource of the machine, is too small.
struct CapacityError : Error {
  explicit CapacityError(const std::string& message) : Error(4, message) {}
};
/// The device failed or is missing.
struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(5, message) {}
};
/// A file or a disk failed.
struct IoError : Error {
  explicit IoError(const std::string& message) : Error(6, message) {}
};

}  // namespace weft
