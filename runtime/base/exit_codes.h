// runtime/base/exit_codes.h: the meanings of the program's exit codes, and whether another try may succeed.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace weft::runtime {

/// A scheduler's answer to a job that ended with a code.
enum class Retry : std::uint8_t {
  done,    ///< nothing is left to do
  never,   ///< it would end like that again until somebody changes something
  resume,  ///< the same command with --resume may succeed, and goes on from there
};

struct ExitCode {
  int code;
  Retry retry;
  const char* meaning;
};

/// All exit codes, in their order. kernels/error.h has those of errors.
inline constexpr std::array<ExitCode, 9> kExitCodes{{
    {0, Retry::done, "done"},
    {1, Retry::done, "done, and some requests have no answer"},
    {2, Retry::never, "usage: flags, policy, requests, files that are not this user's"},
    {3, Retry::never, "data: checkpoint, config, tokenizer"},
    {4, Retry::never, "does not fit"},
    {5, Retry::resume, "device"},
    {6, Retry::resume, "input or output"},
    {70, Retry::never, "a defect of weft"},
    {130, Retry::resume, "stopped"},
}};

/// The table in words, a line each.
inline std::string exit_codes_text() {
  std::string text = "Exit codes:\n";
  for (const auto& [code, retry, meaning] : kExitCodes) {
    std::string number = std::to_string(code);
    number.resize(4, ' ');
    text += "  " + number + meaning +
            (retry == Retry::resume  ? " (try again, with --resume)"
             : retry == Retry::never ? " (trying again is of no use)"
                                     : "") +
            "\n";
  }
  return text;
}

}  // namespace weft::runtime
