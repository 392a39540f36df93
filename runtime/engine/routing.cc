#include "runtime/engine/routing.h"

#include <algorithm>
#include <numeric>

namespace weft::runtime {

Routing::Routing(const policy::Experts& experts, kernels::Backend& backend)
    : of_row_(experts.chosen), backend_(backend), routed_(backend.make_event()),
      begin_(static_cast<std::size_t>(experts.count) + 1, 0) {}

void Routing::chosen(const RoutedBatch& routed, std::uint64_t when, kernels::Stream& stream) {
  backend_.record(*routed_, stream);
  expert_ = routed.expert;
  weight_ = routed.weight;
  sorted_ = false;
  when_ = when;
  if (backend_.device_is_host_memory()) sort();  // the choices are there
}

ExpertRows Routing::rows_of(int expert) {
  if (!sorted_) sort();
  const std::size_t first = begin_[static_cast<std::size_t>(expert)],
                    count = begin_[static_cast<std::size_t>(expert) + 1] - first;
  return {std::span(rows_).subspan(first, count), std::span(weights_).subspan(first, count)};
}

/// Counts the rows of each expert, then deals the rows in their order.
void Routing::sort() {
  backend_.synchronize(*routed_);
  sorted_ = true;
  std::fill(begin_.begin(), begin_.end(), 0);
  for (const std::int32_t expert : expert_) ++begin_[static_cast<std::size_t>(expert) + 1];
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  rows_.resize(expert_.size());
  weights_.resize(expert_.size());
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  for (std::size_t i = 0; i < expert_.size(); ++i) {
    const std::size_t at = next[static_cast<std::size_t>(expert_[i])]++;
    rows_[at] = static_cast<std::int32_t>(i) / of_row_;
    weights_[at] = weight_[i];
  }
  known_.store(when_, std::memory_order_release);
}

BlockRouting::BlockRouting(const policy::ScheduleShape& shape, const policy::Experts& experts,
                           kernels::Backend& backend)
    : shape_(shape), experts_of_(shape.unit_home.size(), nullptr) {
  for (int batch = 0; experts.count > 0 && batch < shape.batches; ++batch) batches_.emplace_back(experts, backend);
  for (const policy::Sublayer& sub : shape.sublayers)
    if (sub.kind == policy::Sublayer::Kind::experts) experts_of_[static_cast<std::size_t>(sub.unit)] = &sub;
}

std::uint64_t BlockRouting::when(std::uint32_t sweep, int layer) const {
  return std::uint64_t{sweep} * static_cast<std::uint64_t>(shape_.layers) + static_cast<std::uint64_t>(layer) + 1;
}

std::vector<bool> BlockRouting::wanted(const policy::Op& op, const std::function<bool(int batch)>& alive) const {
  const policy::Sublayer* const sub = op.subject < experts_of_.size() ? experts_of_[op.subject] : nullptr;
  if (!sub) return {};
  std::vector<bool> wanted(static_cast<std::size_t>(sub->experts), false);
  const int end = std::min(op.batch + shape_.batches_of_pass(op.prefill), shape_.batches);
  for (int batch = op.batch; batch < end; ++batch) {
    if (!alive(batch)) continue;
    const Routing& routing = batches_[static_cast<std::size_t>(batch)];
    if (!routing.is_known(when(op.sweep, sub->layer))) return {};
    for (int expert = 0; expert < sub->experts; ++expert)
      if (routing.any(sub->first_expert + expert)) wanted[static_cast<std::size_t>(expert)] = true;
  }
  return wanted;
}

void BlockRouting::forget() {
  for (Routing& routing : batches_) routing.forget();
}

}  // namespace weft::runtime
