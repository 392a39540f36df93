// runtime/results/result_lines.h: the lines of a result file, each checked against the requests that it may answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/requests/requests.h"
#include "runtime/results/line_sums.h"

namespace weft::runtime {

/// A range of a file.
struct Span {
  std::uint64_t offset = 0, bytes = 0;
};

struct ResultScan {
  std::vector<bool> done;     ///< per request: whether it has an answer or a refusal
  std::size_t refused = 0;    ///< the number of refusals among these
  std::vector<Span> failed;   ///< ranges of the refusals that ScanOptions::retry leaves out of both
  std::uint64_t whole = 0;    ///< bytes up to and including the last newline
  std::vector<Span> damaged;  ///< ranges that are neither the first answer to a request nor the torn tail after `whole`
  std::string first_damage;   ///< describes the place and the kind of the damage
  std::vector<std::uint64_t> unsummed;  ///< checksums of the lines that are accepted though the set has none for them
};

struct ScanOptions {
  /// The checksums of the lines as they were written. A line without a checksum counts as damaged while some checksum
  /// has no line. If every checksum has its line, the others may just be lost, as all are if there is no sum file.
  const SumSet* sums = nullptr;
  /// Whether refusals are no answers, so that their requests are open again, whatever the requests are now.
  bool retry = false;
  /// Called for each answer, with its request and the range of its line, newline included. If it is damaged after all,
  /// `done` shows that.
  std::function<void(std::size_t request, Span line)> on_answer = {};
  /// The scan throws Interrupted once this is set.
  const std::atomic<bool>* stop = nullptr;
};

/// Reads the file once. Lines may be of any length: memory does not grow with it. The bytes after the last newline are
/// a torn tail if they begin as a result does, even if a crashed file system left NUL bytes at their end. Throws
/// IoError.
ResultScan scan_results(const std::filesystem::path& output, const RequestFile& requests,
                        const ScanOptions& options = {});

/// Writes the answers of a finished result file to `sorted`, in the order of the requests. Keeps the places of the
/// lines, not their texts. Throws IoError, UsageError unless there are `count` answers, or Interrupted; then `sorted`
/// is unchanged.
void write_sorted(const std::filesystem::path& output, const std::filesystem::path& sorted, const RequestFile& requests,
                  std::size_t count, const std::atomic<bool>* stop = nullptr);
/// The path of the sorted answers: results.sorted.jsonl for results.jsonl.
std::filesystem::path sorted_place(const std::filesystem::path& output);

/// Appends the damaged and the failed lines to OUTPUT.bad, which is on disk when that is done, and replaces `output` by
/// a file without them and without a torn tail. Throws IoError; then `output` is unchanged.
void set_aside(const std::filesystem::path& output, const ResultScan& scan);

}  // namespace weft::runtime
