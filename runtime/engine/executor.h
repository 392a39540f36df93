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
#include "runtime/engine/sequence.h"
#include "runtime/engine/storage.h"
#include "runtime/engine/wants.h"

namespace weft::runtime {

/// What runs of blocks have added up to.
struct Totals {
  double prefill_seconds = 0, decode_seconds = 0;                       ///< of first sweeps, and of all others
  std::int64_t prompt_tokens = 0, first_tokens = 0, decode_tokens = 0;  ///< first: those that prefill yields
  std::int64_t late_prompt_tokens = 0;              ///< of prompts that joined a later sweep; part of prompt_tokens
  std::int64_t shared_prompt_tokens = 0;            ///< had from another sequence's prefill; no part of prompt_tokens
  std::int64_t decode_rows = 0, decode_places = 0;  ///< rows of later sweeps, and as many as there could have been
  std::array<std::uint64_t, offload::kLanes.size()> lane_bytes{},
      prefill_lane_bytes{};  ///< the second: part of the first
  std::array<double, offload::kLanes.size()> lane_busy{};

  double seconds() const { return prefill_seconds + decode_seconds; }
  /// How full the block was after its first sweep: 1 is always full.
  double occupancy() const { return decode_places > 0 ? double(decode_rows) / double(decode_places) : 0; }
  Totals operator-(const Totals& before) const;
};

/// Sequences that take the places of finished ones. `next` replaces a finished sequence; it is called on the device
/// lane's thread, `count` times at most.
struct Waiting {
  std::int64_t count = 0;
  std::function<void(Sequence& place)> next = {};
};

/// Runs one block of sequences at a time to its end, and of what waits for a place in it all.
class Executor {
 public:
  /// Called on the device lane's thread for every new token, which is already in the sequence; ends a sequence by
  /// setting its `finish`. At max_tokens the executor ends it.
  using OnToken = std::function<void(Sequence&)>;
  /// Called after each segment of a schedule with when its ops ran; seconds since the executor was made.
  using OnTrace = std::function<void(const policy::Schedule&, const policy::Trace&)>;

  Executor(const policy::ModelSpec& model, const policy::Policy& policy, const policy::Footprint& footprint,
           Layers& layers, Storage& storage, kernels::Backend& backend, const std::atomic<bool>& stop);

  /// At most block_size() sequences, none finished. Throws what an op threw, or Interrupted; the block is then lost,
  /// but what on_token saw finished is finished.
  void run(std::span<Sequence> block, const OnToken& on_token, const Waiting& waiting = {});

  /// Which of the block's sequences are in the logits of a batch, row by row; for OnToken, while it is called.
  const BatchRows& rows(int batch) const { return rows_[static_cast<std::size_t>(batch)]; }

  void set_trace(OnTrace on_trace);
  Totals totals() const;

 private:
  void run_segment(const policy::Schedule& schedule);
  void run_op(const policy::Op& op, kernels::Stream& stream);
  void compute(const policy::Op& op, kernels::Stream& stream);
  void admit(int batch);
  void gather_rows(const policy::Op& op);
  std::int64_t steps_left() const;
  /// How many ops from `first` on are one batch's on the device alone and so run as one piece.
  std::size_t ops_together(const policy::Schedule& schedule, std::size_t first) const;
  void run_together(std::span<const policy::Op> ops, kernels::Stream& stream);
  bool ends_step(const policy::Op& op) const;
  void choose_tokens(int batch, kernels::Stream& stream);
  void take_tokens(int batch, kernels::Stream& stream);
  void take_logprobs(Sequence& sequence, std::size_t row, std::size_t told) const;
  std::span<Sequence> sequences(int batch) const;
  bool alive(const policy::Op& op) const;

  const policy::ModelSpec& model_;
  const policy::Policy& policy_;
  const policy::Footprint& footprint_;
  Layers& layers_;
  Storage& storage_;
  const std::atomic<bool>& stop_;
  kernels::Backend& backend_;
  offload::Lanes lanes_;

  /// Where a device leaves the next tokens, and the event that says so. [gpu_batch_size] each, top_* times
  /// kMostLogprobs.
  struct Results {
    Results(kernels::Backend& backend, int rows);
    std::unique_ptr<kernels::Memory> memory;
    std::unique_ptr<kernels::Event> done;
    std::span<double> log_sum;
    std::span<std::int32_t> token, sampled, top_token;
    std::span<float> logprob, logit, top_logprob;
    std::span<std::uint8_t> greedy;
  };
  Results results_;
  Wants wants_;  // of the batch whose tokens are being chosen

  std::span<Sequence> block_;
  const OnToken* on_token_ = nullptr;
  const Waiting* waiting_ = nullptr;
  std::atomic<std::int64_t> wait_{0};            // sequences that wait for a place
  std::vector<BatchRows> rows_;                  // [batches]
  std::vector<std::atomic<std::int64_t>> live_;  // [batches] sequences not finished
  std::atomic<std::int64_t> all_live_{0};
  const bool resident_;
  std::array<std::atomic<std::uint64_t>, offload::kLanes.size()> lane_bytes_{};
  std::vector<offload::Ticket> tickets_;
  std::atomic<bool> failed_{false};
  int steps_per_segment_ = 1;
  OnTrace on_trace_;
  Totals totals_;
};

}  // namespace weft::runtime
