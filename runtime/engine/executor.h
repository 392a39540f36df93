// runtime/engine/executor.h: interprets a schedule: submits its ops to the lanes, moves blocks, runs layers, records a
// trace.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "offload/lanes.h"
#include "policy/schedule.h"
#include "policy/simulate.h"
#include "runtime/engine/layers.h"
#include "runtime/engine/places.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/storage.h"
#include "runtime/engine/token_choice.h"

namespace weft::runtime {

/// Totals over the runs of blocks.
struct Totals {
  double prefill_seconds = 0, decode_seconds = 0;                       ///< of first sweeps, and of all others
  std::int64_t prompt_tokens = 0, first_tokens = 0, decode_tokens = 0;  ///< first: those that prefill yields
  std::int64_t late_prompt_tokens = 0;    ///< of prompts that joined a later sweep; part of prompt_tokens
  std::int64_t shared_prompt_tokens = 0;  ///< taken from another sequence's prefill; not part of prompt_tokens
  std::int64_t decode_rows = 0, decode_places = 0;  ///< rows of later sweeps, and as many as there could have been
  std::array<std::uint64_t, offload::kLanes.size()> lane_bytes{},
      prefill_lane_bytes{};  ///< the second: part of the first
  std::array<double, offload::kLanes.size()> lane_busy{};

  double seconds() const { return prefill_seconds + decode_seconds; }
  /// How full the block was after its first sweep: 1 is always full.
  double occupancy() const { return decode_places > 0 ? double(decode_rows) / double(decode_places) : 0; }
  Totals operator-(const Totals& before) const;
};

/// What is done between two sweeps of a block, when nothing is on its way. Called by Executor::run(), never by two
/// threads at once.
class Pause {
 public:
  virtual ~Pause() = default;

  /// Whether the block is to be saved before the next sweep. On the device lane's thread.
  virtual bool due() = 0;
  /// Saves what is in flight. On run()'s thread, as restore() is. Throws only what reading the KV cache throws.
  virtual void save(std::span<const Sequence> block) = 0;
  /// Brings the KV of these places' sequences, which have begun, into the block's buffers. One whose KV is lost is put
  /// back to its prompt. `fresh`: nothing of the block has been computed.
  virtual void restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) = 0;
};

/// Runs one block of sequences at a time to its end, and of what waits for a place in it all.
class Executor {
 public:
  /// Called on the device lane's thread for every new token, which is already in the sequence; ends a sequence by
  /// setting its `finish`. At max_tokens the executor ends it. Called too for a sequence that has failed.
  using OnToken = std::function<void(Sequence&)>;
  /// Called after each segment of a schedule with when its ops ran; seconds since the executor was made.
  using OnTrace = std::function<void(const policy::Schedule&, const policy::Trace&)>;

  Executor(const policy::Policy& policy, const policy::Footprint& footprint, Layers& layers, Storage& storage,
           kernels::Backend& backend, Grace& stop);

  /// At most block_size() sequences, none finished; with `pause` some may have begun, if the footprint was made for
  /// that (Workload::resumes). Throws what an op threw, or Interrupted; the block is then lost, but what on_token saw
  /// finished is finished, and `pause` has saved it where the grace allowed.
  void run(std::span<Sequence> block, const OnToken& on_token, const Waiting& waiting = {}, Pause* pause = nullptr);

  /// Which of the block's sequences are in the logits of a batch, row by row; for OnToken, while it is called.
  const BatchRows& rows(int batch) const { return run_->places.rows(batch); }

  /// Which share of a run's first sweep is computed. Any thread.
  double prefill_share() const;

  void set_trace(OnTrace on_trace);
  Totals totals() const;

 private:
  /// What belongs to one run of one block.
  struct Run {
    Run(const Places::Shape& shape, std::span<Sequence> of, const Waiting& waiting, const OnToken& called,
        Pause* paused)
        : places(shape, of, waiting), block(of), on_token(called), pause(paused) {}
    Places places;
    const std::span<Sequence> block;
    const OnToken& on_token;
    Pause* const pause;
    std::uint32_t segment_begin = 0;
    std::atomic<std::uint32_t> end{UINT32_MAX};  // the first sweep that is not begun: what is queued of it does nothing
    // Of the device lane's thread: when the sweep began, and how long the one before took; 0: there is none.
    double sweep_begin = 0, sweep_seconds = 0;
    bool stopping = false;
    std::atomic<bool> failed{false};  // ops that rely on the lane's order alone must not run on what a failed one left
  };

  /// Returns how many of the schedule's `sweeps` were done, at least 1.
  std::uint32_t run_segment(const policy::Schedule& schedule, std::uint32_t sweeps);
  /// Brings the sequences that have begun to their places. True if there are any.
  bool begin_amid();
  void between_sweeps();
  void begin_sweep(std::uint32_t step);
  void look_for_stop();
  void submit_ops(const policy::Schedule& schedule);
  void run_op(const policy::Op& op, kernels::Stream& stream);
  void compute(const policy::Op& op, kernels::Stream& stream);
  void gather_rows(const policy::Op& op);
  /// Sweeps in the next segment.
  std::uint32_t sweeps_ahead() const;
  /// How many ops from `first` on are one batch's on the device alone and so run as one piece.
  std::size_t ops_together(const policy::Schedule& schedule, std::size_t first) const;
  void run_together(std::span<const policy::Op> ops, kernels::Stream& stream);
  bool ends_step(const policy::Op& op) const;
  void finish_step(int batch, kernels::Stream& stream);
  bool alive(const policy::Op& op) const;
  bool wanted(const policy::Op& op) const { return !run_->failed && op.step < run_->end && alive(op); }

  const policy::Policy& policy_;
  const policy::Footprint& footprint_;
  Layers& layers_;
  Storage& storage_;
  Grace& stop_;
  kernels::Backend& backend_;
  offload::Lanes lanes_;
  TokenChoice token_choice_;
  const bool resident_;
  std::unique_ptr<Run> run_;  // the current one, or the last
  std::array<std::atomic<std::uint64_t>, offload::kLanes.size()> lane_bytes_{};
  std::atomic<std::uint64_t> prefill_ops_{0};  // computed in the first sweep of the current run
  std::vector<offload::Ticket> tickets_;
  std::uint32_t steps_per_segment_ = 1;
  OnTrace on_trace_;
  const policy::Op* traced_ = nullptr;       // the first op of the segment that runs, where it is traced
  std::vector<std::uint64_t> traced_bytes_;  // of its ops, each of which is one lane's
  Totals totals_;
};

}  // namespace weft::runtime
