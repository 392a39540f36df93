// runtime/base/standard_streams.h: pipes, that is, standard input and output in the place of files.
#pragma once

#include <atomic>
#include <string_view>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// The name of the pipe in --input and --output.
constexpr std::string_view kPipe = "-";

/// Copies all of standard input to a file without a name that only this process can open, in the folder $TMPDIR or
/// /tmp. Like any input, it can then be checked first and read again later. Throws IoError, or Interrupted once `stop`
/// is set.
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
