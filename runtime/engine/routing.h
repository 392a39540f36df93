// runtime/engine/routing.h: the rows of a batch, sorted by the experts that they chose.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "policy/model/model.h"
#include "runtime/engine/layers.h"

namespace weft::runtime {

/// The choices of one batch in the layer that it is in. Used by the device lane's thread.
class Routing {
 public:
  Routing(const policy::Experts& experts, kernels::Backend& backend);

  /// The router's op for `routed` has been queued on the stream. The spans stay valid until the last rows_of().
  void chosen(const RoutedBatch& routed, kernels::Stream& stream);
  /// The first call after chosen() waits for the device.
  ExpertRows rows_of(int expert);

 private:
  void sort();

  const int of_row_;  // experts that a row chooses
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Event> routed_;
  std::span<const std::int32_t> expert_;
  std::span<const float> weight_;
  bool sorted_ = true;
  std::vector<std::size_t> begin_;  // [experts + 1] in rows_ and weights_
  std::vector<std::int32_t> rows_;
  std::vector<float> weights_;
};

}  // namespace weft::runtime
