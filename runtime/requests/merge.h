// runtime/requests/merge.h: the result files of a job's shards become one, in the order of the requests.
#pragma once

#include <atomic>
#include <filesystem>
#include <vector>

namespace weft::runtime {

/// Writes to `output`, which appears only whole (or is standard output: kPipe; so may be `input`), the line that
/// answers each request of `input` as one of `parts` has it. Throws UsageError, and then writes nothing, unless every
/// request has one answer, every line is one and as it was written, and the records of the parts that have one agree.
/// Keeps 56 bytes per request, however long the lines are. Returns the number of answers, 0 if `stop` was set: then
/// nothing is written either.
std::size_t merge(const std::filesystem::path& input, const std::vector<std::filesystem::path>& parts,
                  const std::filesystem::path& output, const std::atomic<bool>& stop);

}  // namespace weft::runtime
