#include "policy/layout/retention.h"

#include <algorithm>

#include "kernels/error.h"
#include "policy/layout/retention_rules.h"

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

std::int64_t LayerSlots::most() const {
  std::int64_t most = 0;
  for (const auto& heads : of_) most = std::max(most, *std::max_element(heads.begin(), heads.end()));
  return most;
}

void LayerSlots::cover(const LayerSlots& other) {
  if (alike()) of_.resize(other.of_.size(), of_.front());
  for (std::size_t layer = 0; layer < of_.size(); ++layer) {
    const std::vector<std::int64_t>& heads = entry_of(other.of_, static_cast<int>(layer));
    if (of_[layer].size() == 1) of_[layer].resize(heads.size(), of_[layer].front());
    for (std::size_t head = 0; head < of_[layer].size(); ++head)
      of_[layer][head] = std::max(of_[layer][head], entry_of(heads, static_cast<int>(head)));
  }
}

std::int32_t Retention::factor(int layer, int head) const {
  return alike() ? kOnce : entry_of(layers[static_cast<std::size_t>(layer)], head);
}

bool Retention::everything(int layer, int head) const {
  return rule == Rule::full || factor(layer, head) == kEverything;
}

bool Retention::everything(int layer) const {
  if (rule == Rule::full) return true;
  if (alike()) return false;
  const std::vector<std::int32_t>& heads = layers[static_cast<std::size_t>(layer)];
  return std::all_of(heads.begin(), heads.end(), [](std::int32_t factor) { return factor == kEverything; });
}

std::vector<HeadRun> Retention::runs(int layer, int kv_heads) const {
  std::vector<HeadRun> runs;
  for (int head = 0; head < kv_heads; ++head)
    if (head > 0 && factor(layer, head) == factor(layer, head - 1)) ++runs.back().count;
    else runs.push_back({head, 1});
  return runs;
}

void Retention::require_layers(const std::vector<int>& kv_heads) const {
  if (!alike() && layers.size() != kv_heads.size())
    throw UsageError("retention: 'layers' has " + std::to_string(layers.size()) + " entries, and the model has " +
                     std::to_string(kv_heads.size()) + " layers; give one for each");
  for (std::size_t layer = 0; layer < layers.size(); ++layer)
    if (layers[layer].size() != 1 && std::ssize(layers[layer]) != kv_heads[layer])
      throw UsageError("retention: layers[" + std::to_string(layer) + "] has " + std::to_string(layers[layer].size()) +
                       " factors, and the model has " + std::to_string(kv_heads[layer]) +
                       " KV heads; give one for each, or one for all");
}

kernels::Keep Retention::kept(std::int64_t prompt, std::int64_t generation, int layer, int head, int window) const {
  const std::int64_t all = prompt + generation, base = of == Of::prompt ? prompt : all;
  const auto tokens = [&](std::int64_t count) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(count, 0, all));
  };
  const bool slides = window > 0 && window < all;
  const std::int32_t at_once = selects() ? std::max(1, tokens(read.of(base))) : 0;
  const kernels::Keep whole_window{.heavy = 0, .recent = window - 1, .read = at_once};
  if (everything(layer, head))
    return slides ? whole_window : kernels::Keep{.heavy = 0, .recent = tokens(all), .read = at_once};
  const std::int32_t times = factor(layer, head);
  kernels::Keep kept{.heavy = tokens(heavy.of(base, times)), .recent = tokens(recent.of(base, times)), .read = at_once};
  if (rule == Rule::recent) kept.heavy = sinks;
  if (rule == Rule::heavy) kept.recent = 0;
  kept.sinks = std::min(sinks, kept.heavy);
  // FlexGen's version evicts only heavy hitters, never the token that stops being recent. Without any it has no victim.
  if (rule == Rule::h2o_flexgen) kept.heavy = std::max(kept.heavy, kept.sinks + 1), kept.grace = 1;
  if (kept.heavy + kept.recent == 0)
    kept.recent = 1;  // shares of a short sequence round down to 0; its newest token stays
  if (once) kept.spare = tokens(generation);
  kept.cold = tokens(cold.of(std::max<std::int64_t>(0, base - kept.of_prompt())));
  if (slides && kept.of_prompt() >= window - 1) return whole_window;
  if (slides) kept.window = window, kept.cold = std::min(kept.cold, window - 1 - kept.of_prompt());
  return kept;
}

/// One number for each head with a budget of its own: count(what it keeps, the most tokens that it may hold).
template <class Count>
LayerSlots Retention::count_slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows,
                                  const Count& count) const {
  const std::int64_t stored = prompt + std::max<std::int64_t>(1, generation - 1);
  std::vector<std::vector<std::int64_t>> of_each(std::max({std::size_t{1}, layers.size(), windows.size()}));
  for (int layer = 0; layer < std::ssize(of_each); ++layer)
    for (int head = 0; head < (alike() ? 1 : std::ssize(layers[static_cast<std::size_t>(layer)])); ++head) {
      const int window = windows.empty() ? 0 : windows[static_cast<std::size_t>(layer)];
      const kernels::Keep keep = kept(prompt, generation, layer, head, window);
      const std::int64_t seen = keep.window > 0 ? keep.window : stored;  // none before are stored
      of_each[static_cast<std::size_t>(layer)].push_back(count(keep, std::min(stored, seen)));
    }
  return LayerSlots(std::move(of_each));
}

LayerSlots Retention::slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows) const {
  return count_slots(prompt, generation, windows, [](const kernels::Keep& keep, std::int64_t most) {
    return std::min(std::int64_t{keep.heavy} + keep.recent + keep.spare + 1, most);
  });
}

LayerSlots Retention::cold_slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows) const {
  return count_slots(prompt, generation, windows, [prompt](const kernels::Keep& keep, std::int64_t most) {
    // With `once` later tokens stay fine, and only the prompt's become cold.
    const std::int64_t tokens = keep.spare > 0 ? std::min(prompt, most) : most;
    return std::clamp<std::int64_t>(tokens - keep.of_prompt(), 0, keep.cold);
  });
}

bool Retention::scored() const { return row_of(rule).scored; }

bool Retention::keeps_scores() const { return !once && (scored() || rule == Rule::random || rule == Rule::keydiff); }
bool Retention::keeps_key_sums(int layer, int head) const { return keeps_scores(layer, head) && rule == Rule::keydiff; }

const char* name_of(Retention::Rule rule) { return row_of(rule).name; }

}  // namespace weft::policy
