// runtime/results/merge.h: merges the result files of a job's shards into one, in the order of the requests.
#pragma once

#include <atomic>
#include <filesystem>
#include <vector>

#include "runtime/inputs/request_input.h"

namespace weft::runtime {

/// Writes to `output`, for each request of `input`, the line of `parts` that answers it. `output` appears only whole,
/// or is standard output (kPipe). Throws UsageError, and then writes nothing, unless every request has one answer,
/// every line is an answer and as it was written, and the records of the parts that have one agree and are of these
/// requests. Keeps 56 bytes per request, however long the lines are. Returns the number of answers, or 0 if `stop` was
/// set; then nothing is written either.
std::size_t merge(const RequestInput& input, const std::vector<std::filesystem::path>& parts,
                  const std::filesystem::path& output, const std::atomic<bool>& stop);

}  // namespace weft::runtime
