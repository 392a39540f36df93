#include "runtime/engine/host_experts.h"

#include <algorithm>
#include <numeric>

#include "kernels/linear/linear_cpu.h"

namespace weft::runtime {
namespace {

LayersPlan on_host(LayersPlan plan, const policy::Footprint& footprint) {
  plan.types = policy::host_types(plan.types);
  plan.piece_tokens = footprint.workspace.host_experts.at_once;
  plan.on_host = true;
  if (plan.arithmetic == Arithmetic::bfloat16 && !kernels::multiplies_bf16()) plan.arithmetic = Arithmetic::exact;
  return plan;
}

}  // namespace

HostExperts::HostExperts(const LayersPlan& plan, const policy::Footprint& footprint, Storage& storage,
                         kernels::Backend& backend, const GracePeriod& stop)
    : model_(plan.model), footprint_(footprint), storage_(storage), backend_(backend),
      layers_(on_host(plan, footprint), storage.experts_workspace(), storage, backend, stop),
      begin_(place(plan.model.experts.count, 0) + 1, 0) {}

void HostExperts::compute(const policy::Sublayer& sub, std::uint64_t when, std::span<const std::int64_t> rows) {
  if (when != when_) sort(sub.layer, rows);
  when_ = when;
  const View input = storage_.experts_input(), output = storage_.experts_output();
  for (int expert = 0; expert < sub.experts; ++expert) {
    const int of_layer = sub.first_expert + expert;
    const std::size_t first = begin_[place(of_layer, 0)], count = begin_[place(of_layer + 1, 0)] - first;
    if (count == 0) continue;
    layers_.make_expert_rows(
        sub.layer, storage_.unit(sub.unit, policy::kNoSlot, expert), input, std::span(rows_).subspan(first, count),
        output.slice(static_cast<std::int64_t>(first), static_cast<std::int64_t>(count)), backend_.host_stream());
  }
}

View HostExperts::made(int expert, int batch) const {
  const std::size_t first = begin_[place(expert, batch)], end = begin_[place(expert, batch) + 1];
  return storage_.experts_output().slice(static_cast<std::int64_t>(first), static_cast<std::int64_t>(end - first));
}

/// Counts the rows of each of the host's experts and batches, then deals the rows in their order.
void HostExperts::sort(int layer, std::span<const std::int64_t> rows) {
  std::vector<bool> mine(static_cast<std::size_t>(model_.experts.count), false);
  const policy::ScheduleShape& shape = footprint_.shape;
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s)
    if (const policy::Sublayer& sub = shape.sublayers[s]; sub.layer == layer && shape.computed_on_host(s, false))
      std::fill_n(mine.begin() + sub.first_expert, sub.experts, true);
  const auto each = [&](const auto& visit) {
    for (int batch = 0; batch < shape.batches; ++batch) {
      const std::span<const std::int32_t> chosen = storage_.choices(batch, rows[static_cast<std::size_t>(batch)]);
      for (std::size_t i = 0; i < chosen.size(); ++i)
        if (mine[static_cast<std::size_t>(chosen[i])])
          visit(place(chosen[i], batch),
                batch * footprint_.workspace.host_experts.rows + static_cast<std::int64_t>(i) / model_.experts.chosen);
    }
  };
  std::fill(begin_.begin(), begin_.end(), 0);
  each([&](std::size_t at, std::int64_t) { ++begin_[at + 1]; });
  std::partial_sum(begin_.begin(), begin_.end(), begin_.begin());
  rows_.resize(begin_.back());
  std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
  each([&](std::size_t at, std::int64_t row) { rows_[next[at]++] = static_cast<std::int32_t>(row); });
}

}  // namespace weft::runtime
