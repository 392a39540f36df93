// runtime/engine/executor.h: runs a schedule: submits its ops to the lanes, moves buffers, runs layers, records a
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
#include "policy/schedule/schedule.h"
#include "policy/schedule/simulate.h"
#include "runtime/engine/host_experts.h"
#include "runtime/engine/layers.h"
#include "runtime/engine/places.h"
#include "runtime/engine/routing.h"
#include "runtime/engine/sequence.h"
#include "runtime/engine/storage.h"
#include "runtime/engine/token_choice.h"

namespace weft::runtime {

/// Totals over all runs of blocks.
struct Totals {
  double prefill_seconds = 0, decode_seconds = 0;                       ///< first sweeps; all later sweeps
  std::int64_t prompt_tokens = 0, first_tokens = 0, decode_tokens = 0;  ///< first_tokens: those that prefill yields
  /// Those of prompts that joined a later sweep, or go token by token; part of prompt_tokens.
  std::int64_t late_prompt_tokens = 0;
  std::int64_t shared_prompt_tokens = 0;  ///< taken from another sequence's prefill; not part of prompt_tokens
  std::int64_t decode_rows = 0, decode_places = 0;  ///< rows of later sweeps; places for rows in them
  std::array<std::uint64_t, offload::kLanes.size()> lane_bytes{},
      prefill_lane_bytes{};  ///< prefill_lane_bytes: part of lane_bytes
  std::array<double, offload::kLanes.size()> lane_busy{};

  double seconds() const { return prefill_seconds + decode_seconds; }
  /// Share of the block's places that were in use after its first sweep; 1: always full.
  double occupancy() const { return decode_places > 0 ? double(decode_rows) / double(decode_places) : 0; }
  Totals operator-(const Totals& before) const;
};

/// Work between two sweeps of a block, while all lanes are empty. Called by Executor::run(), never by two threads at
/// once.
class Pause {
 public:
  virtual ~Pause() = default;

  /// Whether the block is to be saved before the next sweep. Called on the device lane's thread.
  virtual bool due() = 0;
  /// Saves what is in flight. Called on run()'s thread, as restore() is. Throws only what reading the KV cache throws.
  virtual void save(std::span<const Sequence> block) = 0;
  /// Writes the KV of the sequences in `places`, which have begun, to the block's buffers. A sequence whose KV is lost
  /// is put back to its prompt. `fresh`: nothing of the block has been computed yet.
  virtual void restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) = 0;
};

/// Runs one block of sequences at a time to its end, and with it all sequences that wait for a place in the block.
class Executor {
 public:
  /// Called on the device lane's thread for every new token, once the sequence has it, and for a sequence that has
  /// failed. May end the sequence by setting its `finish`; at max_tokens the executor has already done so.
  using OnToken = std::function<void(Sequence&)>;
  /// Called after each segment with the times at which its ops ran, in seconds since the executor was made.
  using OnTrace = std::function<void(const policy::Schedule&, const policy::Trace&)>;

  /// `host_experts`: null unless the footprint has experts that the host computes.
  Executor(const policy::Policy& policy, const policy::Footprint& footprint, Layers& layers, HostExperts* host_experts,
           Storage& storage, kernels::Backend& backend, GracePeriod& stop);

  /// `block` has at most block_size() sequences, none finished. With `pause` some may have begun, if the footprint was
  /// made for that (Workload::resumes). Throws what an op threw, or Interrupted. The block is lost then, but sequences
  /// that on_token saw finished are finished, and `pause` has saved the block if the grace period allowed.
  void run(std::span<Sequence> block, const OnToken& on_token, const Waiting& waiting = {}, Pause* pause = nullptr);

  /// The sequences behind the rows of a batch's logits. Valid during a call of OnToken.
  const BatchRows& rows(int batch) const { return run_->places.rows(batch); }

  /// Share of the current run's first sweep that has been computed. Any thread.
  double prefill_share() const;

  void set_trace(OnTrace on_trace);
  Totals totals() const;

 private:
  /// State of one run of one block.
  struct Run {
    Run(const Places::Shape& shape, std::span<Sequence> of, const Waiting& waiting, const OnToken& called,
        Pause* paused)
        : places(shape, of, waiting), block(of), on_token(called), pause(paused) {}
    Places places;
    const std::span<Sequence> block;
    const OnToken& on_token;
    Pause* const pause;
    std::uint32_t segment_begin = 0;
    std::atomic<std::uint32_t> end{UINT32_MAX};  // the first sweep that does not begin; its queued ops do nothing
    // Used by the device lane's thread: when the sweep began, and how long the one before took (0: there is none).
    double sweep_begin = 0, sweep_seconds = 0;
    bool stopping = false;
    std::atomic<bool> failed{false};  // ops ordered by their lane alone must not run on what a failed op left
  };

  /// Returns how many of the schedule's `sweeps` were done, at least 1.
  std::uint32_t run_segment(const policy::Schedule& schedule, std::uint32_t sweeps);
  /// Restores the sequences that have already begun. True if there are any.
  bool begin_amid();
  void between_sweeps();
  void begin_sweep(std::uint32_t step);
  void look_for_stop();
  void submit_ops(const policy::Schedule& schedule);
  void run_op(const policy::Op& op, kernels::Stream& stream);
  void compute(const policy::Op& op, kernels::Stream& stream);
  void attention(const policy::Op& op, const UnitViews& unit, const HiddenRows& hidden, kernels::Stream& stream);
  /// Computes a unit of experts, which are `units`, or adds what the host has made of them.
  void experts(const policy::Op& op, std::span<const UnitViews> units, View hidden, kernels::Stream& stream);
  void experts_on_host(const policy::Op& op);
  /// Moves the buffer of a load or store: of a unit of experts those that rows chose, if all routers have run in time.
  std::uint64_t move(const policy::Op& op, kernels::Stream& stream);
  /// Whether no gpu batch of the present sweep has more rows for a product of the sublayer than Backend::packed_rows().
  bool few_rows(const policy::Sublayer& sub) const;
  /// Unpacks the unit of an op that does so, and puts unpacked matrices in the place of packed ones. `units` has an
  /// entry for each expert.
  void unpack(const policy::Op& op, std::span<UnitViews> units, kernels::Stream& stream);
  void gather_rows(const policy::Op& op);
  /// Number of sweeps in the next segment.
  std::uint32_t sweeps_ahead() const;
  /// Number of ops from `first` on that run as one piece: the rest of the sweep if all of it is computed on the device
  /// with nothing to move, else 1.
  std::size_t ops_together(const policy::Schedule& schedule, std::size_t first) const;
  void run_together(std::span<const policy::Op> ops, kernels::Stream& stream);
  bool ends_step(const policy::Op& op) const;
  /// Finds what the batch's step computes from its logits. Returns the signature of its ops.
  std::uint64_t prepare_step(int batch);
  void finish_step(int batch, kernels::Stream& stream);
  bool alive(const policy::Op& op) const;
  bool wanted(const policy::Op& op) const { return !run_->failed && op.sweep < run_->end && alive(op); }

  const policy::Policy& policy_;
  const policy::Footprint& footprint_;
  Layers& layers_;
  HostExperts* const host_experts_;
  Storage& storage_;
  GracePeriod& stop_;
  kernels::Backend& backend_;
  offload::Lanes lanes_;
  TokenChoice token_choice_;
  const bool resident_;
  BlockRouting routing_;
  std::unique_ptr<Run> run_;  // the current run, or the last
  std::array<std::atomic<std::uint64_t>, offload::kLanes.size()> lane_bytes_{};
  std::atomic<std::uint64_t> prefill_ops_{0};  // compute ops done in the first sweep of the current run
  std::vector<offload::Ticket> tickets_;
  std::vector<char> packed_;  // [sublayers] 1: the unit is used as it lies in this sweep, although it is quantised
  std::uint32_t sweeps_per_segment_ = 1;
  OnTrace on_trace_;
  const policy::Op* traced_ = nullptr;       // the first op of the running segment; null unless it is traced
  std::vector<std::uint64_t> traced_bytes_;  // [ops of the segment] each written by the lane of its op
  Totals totals_;
};

}  // namespace weft::runtime
