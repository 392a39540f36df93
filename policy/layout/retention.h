// policy/layout/retention.h: which tokens stay in the KV cache. Every rule is a row of parameters of one mechanism: a
// number of heavy hitters, a recent window, pinned sinks and a way to score. With p the attention that a row gives a
// token:
//
//   rule         a prompt token's score                  a step makes of a score s      from
//   full         -                                       -                              everything stays
//   recent       -                                       -                              arXiv 2309.17453, with sinks
//   h2o          sum of p over rows and heads            s + sum of p over heads        H2O, arXiv 2306.14048
//   heavy        as h2o, but without recent tokens       as h2o                         H2O's ablation
//   h2o-flexgen  as h2o; what is no longer recent        as h2o                         h2o_flexgen by H2O's authors
//                stays for one more step
//   random       a random number                         s                              H2O's ablation
//   tova         sum of p of the last row over heads     sum of p over heads            TOVA, arXiv 2401.06104
//   snapkv       sum of p of the last 32 rows, mean of   s; of what comes after the     SnapKV, arXiv 2404.14469
//                7 neighbours                            prompt everything stays
//   defensive    largest p of the last 32 rows, mean     max(0.99 s, largest p of the   DefensiveKV, arXiv
//                of 5 neighbours                         heads)                         2510.13334
//   keydiff      -cos(key, mean unit key of the prompt)  s; of the new token -cos(key,  KeyDiff, arXiv 2504.15364
//                                                        mean unit key so far)
//
// Scores are per layer and KV head; its query heads are the heads above. Each parameter can be given another value.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/keep.h"

namespace weft::policy {

/// A number of tokens, or an exact share of a length: of(100) with 0.29 is 29, never 28.
class Amount {
 public:
  Amount() = default;
  static Amount tokens(std::int64_t count);
  /// "12" is tokens, "0.29" a share from 0 to 1; `where` begins the message of the UsageError otherwise.
  static Amount from_text(std::string_view text, const std::string& where);
  /// Times a factor in ten-thousandths, which may make a share more than 1.
  std::int64_t of(std::int64_t total, std::int32_t factor = 10'000) const;
  bool is_share() const { return denominator_ != 0; }
  std::string text() const;  ///< what from_text() reads
  bool operator==(const Amount&) const = default;

 private:
  std::int64_t numerator_ = 0, denominator_ = 0;  // denominator 0: tokens
};

/// The entry of a layer or KV head: of one where all are alike, else of one for each.
template <class T> const T& entry_of(const std::vector<T>& entries, int index) {
  return entries[entries.size() == 1 ? 0 : static_cast<std::size_t>(index)];
}

/// Slots that a sequence needs per KV head: a number for all layers, or one for each, or for each of its KV heads.
class LayerSlots {
 public:
  LayerSlots(std::int64_t of_all = 1) : of_{{of_all}} {}  // NOLINT(google-explicit-constructor): alike unless said
  explicit LayerSlots(std::vector<std::vector<std::int64_t>> of_each) : of_(std::move(of_each)) {}
  bool alike() const { return of_.size() == 1; }
  std::int64_t of(int layer, int head = 0) const { return entry_of(entry_of(of_, layer), head); }
  std::int64_t most() const;
  /// Enough for `other` too, which is by as many layers and heads.
  void cover(const LayerSlots& other);
  bool operator==(const LayerSlots&) const = default;

 private:
  std::vector<std::vector<std::int64_t>> of_;  // [1] or [layers], each [1] or [KV heads]
};

/// KV heads of a layer next to each other.
struct HeadRun {
  int first = 0, count = 0;
};

struct Retention {
  enum class Rule : std::uint8_t {
    full,
    recent,
    heavy,
    h2o,
    h2o_flexgen,
    random,
    tova,
    snapkv,
    defensive,
    keydiff
  } rule = Rule::full;
  enum class Of : std::uint8_t { prompt, prompt_and_generation } of = Of::prompt_and_generation;
  Amount heavy, recent;
  std::int32_t sinks = 0;        ///< pinned first tokens; inside `heavy`, but for the rule `recent`, which adds them
  std::uint64_t seed = 0;        ///< of the rule `random`
  std::int32_t observation = 0;  ///< prefill scores from the last rows only (SnapKV); 0: all rows
  std::int32_t pool = 1;         ///< a prompt token's score is the mean of so many neighbours'; odd
  double decay = 1;              ///< of the scores, per decode step
  kernels::Statistic statistic = kernels::Statistic::sum;
  bool once = false;  ///< a prompt is cut to its budget, and all that comes after stays
  bool rest = false;  ///< what is evicted is attended to as one token more, their mean (kernels::KvSlots::rest)
  /// By what `heavy` and `recent` are multiplied in each layer, or in each of its KV heads, in ten-thousandths;
  /// kEverything: all tokens are kept there. Empty: by 1 everywhere. The mean over the heads that do not keep all
  /// tokens is 1, to within kMeanIs1.
  std::vector<std::vector<std::int32_t>> layers;  // [layers], each [1] or [KV heads]
  static constexpr std::int32_t kOnce = 10'000, kEverything = -1;
  static constexpr double kMeanIs1 = 0.005;
  /// What a token's place is. absolute: that in its sequence, which therefore ends with the model's context. rolled:
  /// that in the cache, from time to time, so that a sequence has no end (policy/layout/rolling.h).
  enum class Positions : std::uint8_t { absolute, rolled } positions = Positions::absolute;

  bool alike() const { return layers.empty(); }  ///< Every layer and head keeps as much.
  /// Whether nothing is ever evicted from a KV head, or from all of a layer's, which so need no scores.
  bool everything(int layer, int head) const;
  bool everything(int layer) const;
  /// A layer's KV heads, of which there are `kv_heads`, cut where what they keep changes.
  std::vector<HeadRun> runs(int layer, int kv_heads) const;
  /// Throws UsageError unless `layers` has an entry for each of a model's `count` layers, of one factor or `kv_heads`.
  void require_layers(int count, int kv_heads) const;
  /// Whether tokens are kept by the attention they have received.
  bool scored() const;
  /// Whether steps need the scores of what is stored.
  bool keeps_scores() const;
  bool keeps_scores(int layer, int head) const { return keeps_scores() && !everything(layer, head); }
  /// Whether they need the sum of a head's unit keys.
  bool keeps_key_sums(int layer, int head) const;
  bool rolled() const { return positions == Positions::rolled; }
  /// What one sequence keeps in a layer's KV head.
  kernels::Keep kept(std::int64_t prompt, std::int64_t generation, int layer = 0, int head = 0) const;
  /// What is kept, and one for the new token.
  LayerSlots slots(std::int64_t prompt, std::int64_t generation) const;

  /// "full", "recent:N", "heavy:N", "tova:N", and NAME:HEAVY:RECENT for the others; then parameters as in the JSON
  /// form: "h2o:0.1:0.1:window=32:sinks=4", "h2o:0.1:0.1:layers=full,1.5,0.5", of KV heads "layers=1.1,0.8/1".
  static Retention from_text(std::string_view text);
  bool operator==(const Retention&) const = default;
  static Retention from_json(const nlohmann::json& object, const std::string& where);
  nlohmann::ordered_json to_json() const;

 private:
  std::int32_t factor(int layer, int head) const;
};
const char* name_of(Retention::Rule rule);

}  // namespace weft::policy
