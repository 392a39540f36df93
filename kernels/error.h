// kernels/error.h: the ways to fail, each with the exit code of the program.
#pragma once

#include <stdexcept>
#include <string>

namespace weft {

/// The message says what, where, what was wanted, what was found and what to do, in one line.
class Error : public std::runtime_error {
 public:
  Error(int exit_code, const std::string& message) : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// A flag, a policy or a request is wrong.
struct UsageError : Error {
  explicit UsageError(const std::string& message) : Error(2, message) {}
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
