// runtime/base/standard_streams.h: pipes, that is, standard input and output in the place of files, and the file that
// keeps what came through one.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// The name of the pipe in --input and --output.
constexpr std::string_view kPipe = "-";

/// A file without a name that only this process can open, in the folder $TMPDIR or /tmp, for what has to be read more
/// than once.
class Spool {
 public:
  /// Messages call the file `name`, and say that `flag` put it there. Throws IoError.
  Spool(std::filesystem::path name, std::string flag);
  /// Throws IoError, and the file is of no use then.
  void append(std::string_view text);
  /// The file with all that was appended.
  InputFile finish() &&;

 private:
  std::string flag_;
  std::filesystem::path folder_;
  int fd_;
  InputFile file_;  // owns the descriptor
};

/// Copies all of standard input to a Spool. Like any input, it can then be checked first and read again later. Throws
/// IoError, or Interrupted once `stop` is set.
InputFile spool_standard_input(const std::atomic<bool>& stop);

/// Opens the file at `path`, or standard input if `path` is kPipe.
InputFile open_input(const std::filesystem::path& path, const std::atomic<bool>& stop);

/// Writes to standard output without a buffer. A reader that stops reading holds up the caller.
class StandardOutput {
 public:
  /// Once `stop` is set, writing ends when the reader takes nothing for five seconds.
  explicit StandardOutput(const std::atomic<bool>* stop = nullptr) : stop_(stop) {}
  /// Throws IoError if the reader has gone or the device is full, Interrupted if `stop` ended the writing.
  void append(std::string_view text);

 private:
  void wait() const;

  const std::atomic<bool>* stop_;
};

}  // namespace weft::runtime
