// runtime/measure/report.h: reports what a run did: in JSON, as a table for people, as a Perfetto trace.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "policy/schedule/simulate.h"
#include "runtime/base/files.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// tokens_per_second, placement, lanes, peak_bytes, policy, machine, for the work done since `since`. Units are
/// seconds, bytes and tokens per second.
nlohmann::ordered_json make_report(Session& session, const Totals& since = {});

/// One report of several sessions that a job ran one after another: sums, with the placement and the policy of the one
/// that took longest, and all of them under "classes". A single report is returned as it is.
nlohmann::ordered_json joined_report(std::vector<nlohmann::ordered_json> reports);

/// The same as a table for people: tokens/s, placement and lanes. Rows of zeros are left out unless `whole`.
std::string table(const nlohmann::ordered_json& report, bool whole = false);

/// The lane with the highest utilisation.
std::string busiest_lane(const Totals& totals);

/// The units in words: "layer 5 attention", "embedding", "head, piece 2 of 4".
std::vector<std::string> unit_names(const std::vector<policy::Unit>& units);

/// Logs the progress of a packed file every few seconds.
PackingProgress packing_lines();
/// Logs warnings, for ModelSource::warn.
std::function<void(const std::string&)> warning_lines();
/// ModelSource::quantises_slowly that logs a line which names `weft convert`; empty with random weights, which have
/// nothing to convert. `source` must outlive it.
std::function<void(double)> quantising_line(const ModelSource& source);

/// A file in Chrome's trace format (ui.perfetto.dev opens it), with one track per lane. It gets its name when this is
/// destroyed.
class TraceFile {
 public:
  /// Throws IoError.
  TraceFile(const std::filesystem::path& path, const policy::ScheduleShape& shape,
            const std::vector<policy::Unit>& units);
  ~TraceFile();
  /// Throws UsageError if there is something at `path` that is not a trace, and IoError.
  static void require_own(const std::filesystem::path& path);
  void add(const policy::Schedule& schedule, const policy::Trace& trace);

 private:
  std::string label(const policy::Op& op) const;

  const policy::ScheduleShape& shape_;
  std::vector<std::string> units_;  // in words
  AtomicFile file_;
};

}  // namespace weft::runtime
