#include "policy/retention.h"

#include <algorithm>

#include "kernels/error.h"
#include "policy/retention_rules.h"

namespace weft::policy {

Amount Amount::tokens(std::int64_t count) {
  Amount amount;
  amount.numerator_ = count;
  return amount;
}

std::int64_t Amount::of(std::int64_t total, std::int32_t factor) const {
  constexpr std::int64_t once = Retention::kOnce;
  if (!is_share()) return numerator_ * factor / once;
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(Wide{numerator_} * total * factor / (Wide{denominator_} * once));
}

std::int64_t LayerSlots::most() const { return *std::max_element(of_.begin(), of_.end()); }

void LayerSlots::cover(const LayerSlots& other) {
  if (alike()) of_.resize(other.of_.size(), of_.front());
  for (std::size_t layer = 0; layer < of_.size(); ++layer)
    of_[layer] = std::max(of_[layer], other.of(static_cast<int>(layer)));
}

bool Retention::everything(int layer) const {
  return rule == Rule::full || (!alike() && layers[static_cast<std::size_t>(layer)] == kEverything);
}

void Retention::require_layers(int count) const {
  if (!alike() && std::ssize(layers) != count)
    throw UsageError("retention: 'layers' has " + std::to_string(layers.size()) + " entries, and the model has " +
                     std::to_string(count) + " layers; give one for each");
}

Kept Retention::kept(std::int64_t prompt, std::int64_t generation, int layer) const {
  const std::int64_t all = prompt + generation, base = of == Of::prompt ? prompt : all;
  const auto tokens = [&](std::int64_t count) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(count, 0, all));
  };
  if (everything(layer)) return {.heavy = 0, .recent = tokens(all)};
  const std::int32_t factor = alike() ? kOnce : layers[static_cast<std::size_t>(layer)];
  Kept kept{.heavy = tokens(heavy.of(base, factor)), .recent = tokens(recent.of(base, factor))};
  if (rule == Rule::recent) kept.heavy = sinks;
  if (rule == Rule::heavy) kept.recent = 0;
  kept.sinks = std::min(sinks, kept.heavy);
  // FlexGen's version evicts only among the heavy, never what leaves the window: with none it would have no victim.
  if (rule == Rule::h2o_flexgen) kept.heavy = std::max(kept.heavy, kept.sinks + 1), kept.grace = 1;
  if (kept.heavy + kept.recent == 0)
    kept.recent = 1;  // shares of a short sequence floor to nothing; its newest token stays
  if (once) kept.spare = tokens(generation);
  return kept;
}

LayerSlots Retention::slots(std::int64_t prompt, std::int64_t generation) const {
  std::vector<std::int64_t> of_each;
  for (int layer = 0; layer < std::max(1, static_cast<int>(layers.size())); ++layer) {
    const Kept keep = kept(prompt, generation, layer);
    const std::int64_t budget = std::int64_t{keep.heavy} + keep.recent + keep.spare,
                       stored = prompt + std::max<std::int64_t>(1, generation - 1);
    of_each.push_back(std::min(budget + 1, stored));
  }
  return LayerSlots(std::move(of_each));
}

bool Retention::scored() const { return row_of(rule).scored; }

bool Retention::keeps_scores() const {
  return !once && (scored() || rule == Rule::random || rule == Rule::keydiff || rule == Rule::strided);
}
bool Retention::keeps_key_sums(int layer) const { return keeps_scores(layer) && rule == Rule::keydiff; }
bool Retention::keeps_value_norms(int layer) const { return keeps_scores(layer) && weight == Weight::value; }

const char* name_of(Retention::Rule rule) { return row_of(rule).name; }

}  // namespace weft::policy
