// runtime/base/standard_streams.h: standard input and output in the place of files: pipes.
#pragma once

#include <atomic>
#include <string_view>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// What --input and --output call the pipe.
constexpr std::string_view kPipe = "-";

/// All of standard input, in a file without a name that only this process can open, in the folder $TMPDIR or /tmp. So
/// it can be checked first and read again later, as any input. Throws IoError, Interrupted once `stop` is set.
InputFile spool_standard_input(const std::atomic<bool>& stop);

/// The file at `path`, or standard input where `path` is kPipe.
InputFile open_input(const std::filesystem::path& path, const std::atomic<bool>& stop);

/// Writes to standard output past all buffers. A reader that stops reading holds up the caller.
class StandardOutput {
 public:
  /// `stop`: once it is set, a reader that takes nothing for five seconds ends the writing.
  explicit StandardOutput(const std::atomic<bool>* stop = nullptr) : stop_(stop) {}
  /// Throws IoError where nobody reads, or where the device is full; Interrupted.
  void append(std::string_view text);

 private:
  void wait() const;

  const std::atomic<bool>* stop_;
};

}  // namespace weft::runtime
