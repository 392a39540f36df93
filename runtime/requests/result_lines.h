// runtime/requests/result_lines.h: the lines of a result file, each checked against the requests that it may answer.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/requests/line_sums.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// A range of a file.
struct Span {
  std::uint64_t offset = 0, bytes = 0;
};

struct ResultScan {
  std::vector<bool> done;     ///< per request: has an answer, or a line that says why it has none
  std::size_t refused = 0;    ///< of these, the latter
  std::uint64_t whole = 0;    ///< bytes up to and with the last newline
  std::vector<Span> damaged;  ///< ranges that are neither the first answer to a request nor the torn tail after `whole`
  std::string first_damage;   ///< where it is and what it is, in words
  std::vector<std::uint64_t> unsummed;  ///< checksums of the lines that have none in the set and are taken
};

struct ScanOptions {
  /// The checksums of the lines as they were written. A line without one is damaged; only where every checksum has its
  /// line, the others' may just be lost, as all of them are where there is no such file.
  const SumSet* sums = nullptr;
  /// Called for each answer, with its request and the range of its line, newline included. Where it is damaged after
  /// all, `done` says so.
  std::function<void(std::size_t request, Span line)> on_answer = {};
  /// Throws Interrupted once it is set.
  const std::atomic<bool>* stop = nullptr;
};

/// Reads the file once. Lines may be of any length: memory does not grow with it. What follows the last newline is a
/// torn tail if it begins as a result does, even where a crashed file system left NUL bytes at its end. Throws IoError.
ResultScan scan_results(const std::filesystem::path& output, const RequestFile& requests,
                        const ScanOptions& options = {});

/// Writes the answers of a finished result file to `sorted`, in the order of the requests. Keeps where the lines are
/// and not their texts. Throws IoError, and UsageError unless there are `count` answers, and Interrupted; then `sorted`
/// is as before.
void write_sorted(const std::filesystem::path& output, const std::filesystem::path& sorted, const RequestFile& requests,
                  std::size_t count, const std::atomic<bool>* stop = nullptr);
/// results.jsonl is sorted into results.sorted.jsonl.
std::filesystem::path sorted_place(const std::filesystem::path& output);

/// Appends the damaged lines to OUTPUT.bad, on disk when that is done, and replaces `output` by one without them and
/// without a torn tail. Throws IoError; then `output` is as before.
void set_aside(const std::filesystem::path& output, const ResultScan& scan);

}  // namespace weft::runtime
