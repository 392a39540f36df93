// runtime/job/in_flight.h: sequences in flight, saved from time to time and taken up again.
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
#include "runtime/requests/run_record.h"
#include "runtime/requests/snapshot.h"

namespace weft::runtime {

/// The snapshot of an output from which a resume may go on.
class SavedWork {
 public:
  /// Reads it if `options` resume. One that is damaged, or of another run than `record` is, is said in a line and
  /// ignored. If `record` does not say the retention yet, `options` keep to the snapshot's where they allow it.
  SavedWork(JobOptions& options, const RunRecord& record);

  /// A hash of what answers depend on, but for the retention.
  const std::string& run() const { return run_; }
  const std::optional<Snapshot>& snapshot() const { return snapshot_; }

 private:
  std::string run_;
  std::optional<Snapshot> snapshot_;
};

/// Belongs to one run of a job. Errors of writing end nothing: the first is said.
class InFlight : public Pause {
 public:
  /// References must outlive it. Ignores, in a line, a snapshot of another kind than this run's.
  InFlight(const JobOptions& options, const SavedWork& saved, Session& session, Answers& answers);

  /// Whether a choice can go on amid its answer. Any thread.
  bool has(std::uint64_t request, std::int32_t choice) const;
  /// Takes a sequence that has just begun to where it was saved, if it was. Any thread.
  void advance(Sequence& sequence);
  /// Choices that have ended while others of their request have not.
  std::span<const SavedChoice> ended() const;

  bool due() override;
  void save(std::span<const Sequence> block) override;
  void restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) override;

  /// After the spill file has lost something: which of `open`, the choices that have not ended, can go on from where
  /// they were saved last. Only while nobody else uses this.
  void go_back(std::span<const WorkItem> open);
  std::string resumes_from() const;  ///< what a resume would go on with, in words

  /// What a stopped run has saved at last, as words that follow others; empty if nothing.
  std::string saved_words() const;
  nlohmann::ordered_json report() const;

 private:
  using Key = std::pair<std::uint64_t, std::int32_t>;  // request, choice
  using Clock = std::chrono::steady_clock;

  KvRows& rows();
  void write(std::span<const Sequence> block);
  void copy_waiting(SnapshotWriter& writer, const std::map<Key, std::size_t>& waiting) const;
  std::uint64_t bytes_needed(std::span<const Sequence> block, const std::map<Key, std::size_t>& waiting);
  /// The record `part` (KvRows::runs()) of a saved sequence into the buffer that is open.
  bool put(std::size_t saved, std::size_t part, std::int64_t sequence);
  void begin_again(Sequence& sequence) const;
  void say(const std::string& words);

  const std::optional<std::chrono::duration<double>> interval_;
  const bool limited_;  // seldom enough to cost little
  const std::filesystem::path path_;
  Session& session_;
  Answers& answers_;
  const Snapshot* snapshot_;              // null: none that fits
  std::unique_ptr<Snapshot> own_;         // if it is one that this run has written
  const std::vector<KvRows::Run> parts_;  // of a sequence: each has a record
  SnapshotKind kind_;
  std::optional<KvRows> rows_;
  mutable std::mutex mutex_;            // of waiting_
  std::map<Key, std::size_t> waiting_;  // sequences in snapshot_ that have no place yet
  std::vector<std::byte> record_;
  Clock::time_point next_;  // when it is due
  std::optional<std::size_t> saved_;
  std::uint64_t bytes_ = 0;  // of the last file
  double seconds_ = 0;       // that saving took, all together
  std::int64_t count_ = 0, resumed_ = 0, resumed_tokens_ = 0;
  bool newer_ = false;  // than snapshot_: the file of this name
  bool said_ = false;
};

}  // namespace weft::runtime
