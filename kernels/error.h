// kernels/error.h: the ways to fail, each with the exit code of the program.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

/// `text` on one line that a terminal shows as it is: control characters, and those that turn the direction of writing,
/// are written as in JSON. At most 8 KiB.
std::string printable(std::string_view text);

/// The message says what, where, what was wanted, what was found and what to do, in one line. It may hold text out of
/// any file: what() is printable.
class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(printable(message)), exit_code_(exit_code) {}
  /// A line for each of `more` after that of `message`.
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
/// It does not fit.
struct CapacityError : Error {
  explicit CapacityError(const std::string& message) : Error(4, message) {}
};
/// The device failed, or is not there.
struct DeviceError : Error {
  explicit DeviceError(const std::string& message) : Error(5, message) {}
};
/// A file or a disk failed.
struct IoError : Error {
  explicit IoError(const std::string& message) : Error(6, message) {}
};

}  // namespace weft
