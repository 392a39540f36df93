// policy/layout/retention.h: the rules by which tokens stay in the KV cache. Every rule is a row of parameters of one
// mechanism: a number of heavy hitters, a number of recent tokens, pinned sinks and a way to score. Here p is the
// attention that a row gives a token, and s the score before a decode step:
//
//   rule         a prompt token's score                  score after a decode step      from
//   full         -                                       -                              everything stays
//   recent       -                                       -                              arXiv 2309.17453, with sinks
//   h2o          sum of p over rows and heads            s + sum of p over heads        H2O, arXiv 2306.14048
//   heavy        as h2o, but without recent tokens       as h2o                         H2O's ablation
//   h2o-flexgen  as h2o; a token that is no longer       as h2o                         h2o_flexgen by H2O's authors
//                recent stays for one more step
//   random       a random number                         s                              H2O's ablation
//   tova         sum of p of the last row over heads     sum of p over heads            TOVA, arXiv 2401.06104
//   snapkv       sum of p of the last 32 rows, mean of   s; all tokens after the        SnapKV, arXiv 2404.14469
//                7 neighbours                            prompt stay
//   defensive    largest p of the last 32 rows, mean     max(0.99 s, largest p of the   DefensiveKV, arXiv
//                of 5 neighbours                         heads)                         2510.13334
//   keydiff      -cos(key, mean unit key of the prompt)  s; the new token's is          KeyDiff, arXiv 2504.15364
//                                                        -cos(key, mean unit key so
//                                                        far)
//
// Scores are per layer and KV head; "heads" in the table are its query heads. Each parameter can be set to another
// value.
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
  /// "12" is tokens, "0.29" a share from 0 to 1. Anything else throws a UsageError that begins with `where`.
  static Amount from_text(std::string_view text, const std::string& where);
  /// The number of tokens out of `total`, times `factor` in units of 1/10000. A factor may make a share exceed 1.
  std::int64_t of(std::int64_t total, std::int32_t factor = 10'000) const;
  bool is_share() const { return denominator_ != 0; }
  std::string text() const;  ///< the form that from_text() reads
  bool operator==(const Amount&) const = default;

 private:
  std::int64_t numerator_ = 0, denominator_ = 0;  // denominator 0: tokens
};

/// The entry of a layer or KV head. A single entry stands for all of them; otherwise each has its own.
template <class T> const T& entry_of(const std::vector<T>& entries, int index) {
  return entries[entries.size() == 1 ? 0 : static_cast<std::size_t>(index)];
}

/// Slots that a sequence needs per KV head: one number for all layers, or one per layer, or one per KV head of a layer.
class LayerSlots {
 public:
  LayerSlots(std::int64_t of_all = 1) : of_{{of_all}} {}  // NOLINT(google-explicit-constructor): alike unless said
  explicit LayerSlots(std::vector<std::vector<std::int64_t>> of_each) : of_(std::move(of_each)) {}
  bool alike() const { return of_.size() == 1; }
  std::int64_t of(int layer, int head = 0) const { return entry_of(entry_of(of_, layer), head); }
  std::int64_t most() const;
  /// Raises every entry to at least `other`'s. Both must have the same shape.
  void cover(const LayerSlots& other);
  bool operator==(const LayerSlots&) const = default;

 private:
  std::vector<std::vector<std::int64_t>> of_;  // [1] or [layers], each [1] or [KV heads]
};

/// Consecutive KV heads of a layer.
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
  std::uint64_t seed = 0;        ///< seeds the rule `random`
  std::int32_t observation = 0;  ///< prefill scores from the last rows only (SnapKV); 0: all rows
  std::int32_t pool = 1;         ///< a prompt token's score is the mean over this many neighbours; odd
  double decay = 1;              ///< factor on the scores per decode step
  kernels::Statistic statistic = kernels::Statistic::sum;
  bool once = false;  ///< a prompt is cut to its budget, and every later token stays
  bool rest = false;  ///< evicted tokens are attended to as one more token, their mean (kernels::KvSlots::rest)
  Amount read;        ///< so many tokens are read with all bits in a step, the others by few (kernels::Keep::read)
  Amount cold;        ///< evicted tokens of which so many stay with few bits instead (kernels::Keep::cold)
  /// Per-layer (or per-KV-head) factors on `heavy` and `recent`, in units of 1/10000. kEverything: all tokens are kept
  /// there. Empty: 1 everywhere. The mean over the heads that do not keep all tokens is 1 to within kMeanIs1.
  std::vector<std::vector<std::int32_t>> layers;                      // [layers], each [1] or [KV heads]
  static constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;  ///< in an amount
  static constexpr std::int32_t kOnce = 10'000, kEverything = -1;
  static constexpr double kMeanIs1 = 0.005;
  /// The positions of tokens. absolute: in the sequence, which therefore ends at the model's context. rolled: from time
  /// to time stored tokens get their positions in the cache, so that a sequence has no end (policy/layout/rolling.h).
  enum class Positions : std::uint8_t { absolute, rolled } positions = Positions::absolute;

  bool alike() const { return layers.empty(); }  ///< every layer and head keeps equally many tokens
  /// Whether a KV head, or every KV head of a layer, never evicts and therefore needs no scores.
  bool everything(int layer, int head) const;
  bool everything(int layer) const;
  /// Groups the `kv_heads` KV heads of a layer: consecutive heads with the same budget form a run.
  std::vector<HeadRun> runs(int layer, int kv_heads) const;
  /// Throws UsageError unless `layers` is empty or has an entry for each layer, of one factor or one for each of the
  /// layer's `kv_heads`.
  void require_layers(const std::vector<int>& kv_heads) const;
  /// Whether tokens are kept by the attention that they received.
  bool scored() const;
  /// Whether decode steps need the scores of stored tokens.
  bool keeps_scores() const;
  bool keeps_scores(int layer, int head) const { return keeps_scores() && !everything(layer, head); }
  /// Whether decode steps need the sum of a head's unit keys.
  bool keeps_key_sums(int layer, int head) const;
  /// Whether tokens become cold before they are evicted. It needs a KV format of int8 (policy/layout/policy.h).
  bool cools() const { return cold != Amount() && cold.of(kMostTokens) > 0; }
  /// Whether a step chooses what it reads with all bits. It needs a KV format of int8, too.
  bool selects() const { return read != Amount(); }
  bool rolled() const { return positions == Positions::rolled; }
  /// The tokens that one sequence keeps in a layer's KV head. A model's sliding `window` (0: none) holds whatever the
  /// rule: a layer keeps its window's tokens if the rule allows as many, else the rule chooses among them.
  kernels::Keep kept(std::int64_t prompt, std::int64_t generation, int layer = 0, int head = 0, int window = 0) const;
  /// Slots for the kept tokens that are not cold and one for the new token. `windows`: those of the model
  /// (ModelSpec::windows).
  LayerSlots slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows = {}) const;
  /// Slots for the cold tokens. Both have the same shape.
  LayerSlots cold_slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows = {}) const;

  /// Parses "full", "recent:N", "heavy:N", "tova:N", and NAME:HEAVY:RECENT for the others, followed by parameters as in
  /// the JSON form: "h2o:0.1:0.1:window=32:sinks=4", "h2o:0.1:0.1:layers=full,1.5,0.5", with factors per KV head
  /// "layers=1.1,0.8/1". Throws UsageError, whose message begins with `where`.
  static Retention from_text(std::string_view text, const std::string& where = "--retention");
  bool operator==(const Retention&) const = default;
  static Retention from_json(const nlohmann::json& object, const std::string& where);
  nlohmann::ordered_json to_json() const;

 private:
  std::int32_t factor(int layer, int head) const;
  template <class Count>
  LayerSlots count_slots(std::int64_t prompt, std::int64_t generation, const std::vector<int>& windows,
                         const Count& count) const;
};
const char* name_of(Retention::Rule rule);

}  // namespace weft::policy
