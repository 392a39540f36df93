// runtime/job/in_flight.h: saves sequences in flight from time to time, and takes them up again.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/session.h"
#include "runtime/job/answers.h"
#include "runtime/job/job_options.h"
#include "runtime/job/kv_rows.h"
#include "runtime/job/work_list.h"
#include "runtime/results/run_record.h"
#include "runtime/results/snapshot.h"

namespace weft::runtime {

/// The snapshot of an output, from which a resume may continue.
class SavedWork {
 public:
  /// Reads the snapshot if `options` resume. Logs and ignores a damaged snapshot, or one of a different run than
  /// `record`. If `record` has no retention yet, `options` get the snapshot's retention if they allow it.
  SavedWork(JobOptions& options, const RunRecord& record);

  /// A hash of everything that answers depend on, except the retention.
  const std::string& run() const { return run_; }
  const std::optional<Snapshot>& snapshot() const { return snapshot_; }

 private:
  std::string run_;
  std::optional<Snapshot> snapshot_;
};

/// Belongs to one run of a job. Errors of writing do not end the job; the first one is logged.
class InFlight : public Pause {
 public:
  /// `mine`, `later`: the requests that the session runs, and those of later sessions of this run, whose saved work it
  /// passes on; ascending. References must outlive it. Logs and ignores a snapshot of another kind than this run's.
  InFlight(const JobOptions& options, const SavedWork& saved, const std::vector<std::uint32_t>& mine,
           const std::vector<std::uint32_t>& later, Session& session, Answers& answers);

  /// Whether a choice can continue in the middle of its answer. Any thread.
  bool has(std::uint64_t request, std::int32_t choice) const;
  /// Advances a sequence that has just begun to where it was saved, if it was. Any thread.
  void advance(Sequence& sequence);
  /// Choices that have ended while others of their request have not.
  std::span<const SavedChoice> ended() const;

  bool due() override;
  void save(std::span<const Sequence> block) override;
  void restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) override;

  /// Goes back to the last snapshot after the spill file has lost something. `open` are the choices that have not
  /// ended; those that were saved can then continue from there. No other thread may use this meanwhile.
  void go_back(std::span<const WorkItem> open);
  std::string resumes_from() const;  ///< describes what a resume would continue from

  /// Describes what a stopped run has saved, as the end of a sentence; empty if nothing.
  std::string saved_words() const;
  nlohmann::ordered_json report() const;

 private:
  using Key = std::pair<std::uint64_t, std::int32_t>;  // request, choice
  using Clock = std::chrono::steady_clock;

  SlotRecords& rows();
  void write(std::span<const Sequence> block);
  void copy_waiting(SnapshotWriter& writer, const std::map<Key, std::size_t>& waiting) const;
  std::uint64_t bytes_needed(std::span<const Sequence> block, const std::map<Key, std::size_t>& waiting);
  /// Writes the record `part` (SlotRecords::runs()) of a saved sequence of so many tokens to the open buffer. False if
  /// that fails.
  bool put(std::size_t saved, std::size_t part, std::int64_t sequence, std::size_t tokens);
  void begin_again(Sequence& sequence) const;
  void say(const std::string& words);

  const std::optional<std::chrono::duration<double>> interval_;
  const bool limited_;  // save seldom enough to cost little
  const std::filesystem::path path_;
  Session& session_;
  Answers& answers_;
  const std::vector<std::uint32_t>& later_;
  const Snapshot* snapshot_;                   // null: none fits
  std::unique_ptr<Snapshot> own_;              // owns snapshot_ if this run has written it
  const std::vector<SlotRecords::Run> parts_;  // the parts of a sequence, each with a record
  SnapshotKind kind_;
  std::optional<SlotRecords> rows_;
  mutable std::mutex mutex_;            // guards waiting_
  std::map<Key, std::size_t> waiting_;  // sequences in snapshot_ that have no place yet
  std::vector<std::byte> record_;
  Clock::time_point next_;  // when saving is due
  std::optional<std::size_t> saved_;
  std::uint64_t bytes_ = 0;  // size of the last file
  double seconds_ = 0;       // that saving took in total
  std::int64_t count_ = 0, resumed_ = 0, resumed_tokens_ = 0;
  bool newer_ = false;  // the file at path_ is newer than snapshot_
  bool said_ = false;
};

}  // namespace weft::runtime
