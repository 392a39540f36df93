// runtime/engine/routing.h: the rows of a batch, sorted by the experts that they chose.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "policy/model/model.h"
#include "policy/schedule/schedule.h"
#include "runtime/engine/layer_data.h"

namespace weft::runtime {

/// The choices of one batch in the layer that it is in. Used by the device lane's thread, but for is_known() and any(),
/// which the lanes that load a layer's experts call too, before the device lane goes on to the next layer.
class Routing {
 public:
  Routing(const policy::Experts& experts, kernels::Backend& backend);

  /// The router's op for `routed` has been queued on the stream. The spans stay valid until the last rows_of(). `when`
  /// numbers the layers of all sweeps from 1 on.
  void chosen(const RoutedBatch& routed, std::uint64_t when, kernels::Stream& stream);
  /// The first call after chosen() waits for the device.
  ExpertRows rows_of(int expert);

  /// Whether the choices in the layer `when` are known. On a GPU they are with its first rows_of().
  bool is_known(std::uint64_t when) const { return known_.load(std::memory_order_acquire) == when; }
  /// Whether any row chose the expert, if that is known.
  bool any(int expert) const {
    return begin_[static_cast<std::size_t>(expert)] < begin_[static_cast<std::size_t>(expert) + 1];
  }

  /// Forgets the layers of an earlier run.
  void forget() { known_ = 0; }

 private:
  void sort();

  const int of_row_;  // experts that a row chooses
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Event> routed_;
  std::span<const std::int32_t> expert_;
  std::span<const float> weight_;
  bool sorted_ = true;
  std::uint64_t when_ = 0;
  std::atomic<std::uint64_t> known_{0};  // the layer whose choices begin_ has
  std::vector<std::size_t> begin_;       // [experts + 1] in rows_ and weights_
  std::vector<std::int32_t> rows_;
  std::vector<float> weights_;
};

/// The choices of all batches of a block.
class BlockRouting {
 public:
  /// `shape` must outlive it.
  BlockRouting(const policy::ScheduleShape& shape, const policy::Experts& experts, kernels::Backend& backend);

  bool empty() const { return batches_.empty(); }  ///< all layers are dense
  Routing& of(int batch) { return batches_[static_cast<std::size_t>(batch)]; }
  /// The number of a layer in a sweep, for Routing::chosen().
  std::uint64_t when(std::uint32_t sweep, int layer) const;
  /// Says of each expert of the unit that `op` loads whether any row of a batch that is `alive` chose it. Empty if a
  /// router has not run in time, or if the unit has no experts.
  std::vector<bool> wanted(const policy::Op& op, const std::function<bool(int batch)>& alive) const;
  /// A new run begins; the lanes are empty.
  void forget();

 private:
  const policy::ScheduleShape& shape_;
  std::deque<Routing> batches_;
  std::vector<const policy::Sublayer*> experts_of_;  // [units] null: the unit has no experts
};

}  // namespace weft::runtime
