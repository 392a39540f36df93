// policy/retention.h: which tokens stay in the KV cache. Every rule is a row of parameters of one mechanism: a number
// of heavy hitters, a recent window, pinned sinks and a way to score (H2O, arXiv 2306.14048; sinks: arXiv 2309.17453).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace weft::policy {

/// A number of tokens, or an exact share of a length: of(100) with 0.29 is 29, never 28.
class Amount {
 public:
  Amount() = default;
  static Amount tokens(std::int64_t count);
  /// "12" is tokens, "0.29" a share from 0 to 1; `where` begins the message of the UsageError otherwise.
  static Amount from_text(std::string_view text, const std::string& where);
  std::int64_t of(std::int64_t total) const;
  bool is_share() const { return denominator_ != 0; }
  std::string text() const;  ///< what from_text() reads
  bool operator==(const Amount&) const = default;

 private:
  std::int64_t numerator_ = 0, denominator_ = 0;  // denominator 0: tokens
};

/// What one sequence keeps per layer and head; the meaning of each number is kernels::Keep's.
struct Kept {
  std::int32_t heavy = 0, recent = 0, sinks = 0, grace = 0;
  bool operator==(const Kept&) const = default;
};

struct Retention {
  enum class Rule : std::uint8_t { full, recent, heavy, h2o, h2o_flexgen, random } rule = Rule::full;
  enum class Of : std::uint8_t { prompt, prompt_and_generation } of = Of::prompt_and_generation;
  Amount heavy, recent;
  std::int32_t sinks = 0;   ///< pinned first tokens; inside `heavy`, but for the rule `recent`, which adds them
  std::uint64_t seed = 0;   ///< of the rule `random`
  std::int32_t window = 0;  ///< prefill scores from the last rows only (SnapKV); 0: all rows
  double decay = 1;         ///< of the scores, per decode step

  /// Whether tokens are kept by the attention they have received.
  bool scored() const;
  Kept kept(std::int64_t prompt, std::int64_t generation) const;
  /// Slots that a sequence needs per layer and head: what is kept, and one for the new token.
  std::int64_t slots(std::int64_t prompt, std::int64_t generation) const;

  /// "full", "h2o:HEAVY:RECENT", "h2o-flexgen:HEAVY:RECENT", "recent:N", "heavy:N", "random:HEAVY:RECENT"
  static Retention from_text(std::string_view text);
  bool operator==(const Retention&) const = default;
  static Retention from_json(const nlohmann::json& object, const std::string& where);
  nlohmann::ordered_json to_json() const;
};
const char* name_of(Retention::Rule rule);

}  // namespace weft::policy
