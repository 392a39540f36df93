#include "runtime/results/result_sink.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/results/result_line.h"

namespace weft::runtime {

void ResultPipe::append(std::string_view line) {
  out_.append(std::string(line) + '\n');
  ++lines_;
  const auto pieces = [line]() mutable { return std::exchange(line, std::string_view{}); };
  refused_ += is_refusal(policy::skim_json(pieces, "standard output", policy::Blame::data)) ? 1 : 0;
}

std::size_t ResultPipe::finish(const RequestFile& requests, std::size_t count) {
  if (lines_ != count)
    throw IoError("standard output: " + std::to_string(lines_) + " lines were written, wanted an answer to each of " +
                  std::to_string(count) + " requests of " + requests.path().string());
  return refused_;
}

}  // namespace weft::runtime
