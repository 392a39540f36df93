// runtime/measure/report.h: what a run did: a JSON report, a table for people, a Perfetto trace.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "policy/simulate.h"
#include "runtime/base/files.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// tokens_per_second, placement, lanes, peak_bytes, policy, machine. Seconds, bytes, tokens per second. Counts what was
/// done since `since`.
nlohmann::ordered_json make_report(Session& session, const Totals& since = {});

/// The same for people: tokens/s, what was placed where, what each lane did.
std::string table(const nlohmann::ordered_json& report);

/// The lane with the highest utilisation.
std::string busiest_lane(const Totals& totals);

/// What a unit is, in words: "layer 5 attention", "embedding", "head, piece 2 of 4".
std::vector<std::string> unit_names(const std::vector<policy::Unit>& units);

/// Says now and then how far a packed file is.
PackingProgress packing_lines();

/// Chrome's trace format (ui.perfetto.dev opens it), one track per lane. It has its name once it is destroyed.
class TraceFile {
 public:
  /// Throws IoError.
  TraceFile(const std::filesystem::path& path, const policy::ScheduleShape& shape,
            const std::vector<policy::Unit>& units);
  ~TraceFile();
  /// Throws UsageError where something is at `path` that is no trace, IoError.
  static void require_own(const std::filesystem::path& path);
  void add(const policy::Schedule& schedule, const policy::Trace& trace);

 private:
  std::string label(const policy::Op& op) const;

  const policy::ScheduleShape& shape_;
  std::vector<std::string> units_;  // in words
  AtomicFile file_;
};

}  // namespace weft::runtime
