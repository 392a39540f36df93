#include "runtime/engine/routing.h"

#include <algorithm>
#include <numeric>

namespace weft::runtime {

Routing::Routing(const policy::Experts& experts, kernels::Backend& backend)
    : of_row_(experts.chosen), backend_(backend), routed_(backend.make_event()),
      begin_(static_cast<std::size_t>(experts.count) + 1, 0) {}

void Routing::chosen(const RoutedBatch& routed, kernels::Stream& stream) {
  backend_.record(*routed_, stream);
  expert_ = routed.expert;
  weight_ = routed.weight;
  sorted_ = false;
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
}

}  // namespace weft::runtime
