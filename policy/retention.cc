#include "policy/retention.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/error.h"
#include "policy/json.h"

namespace weft::policy {
namespace {

using Rule = Retention::Rule;

/// The numbers that a rule takes, and whether it keeps scores of attention.
struct RuleRow {
  Rule rule;
  const char* name;
  bool heavy, recent, scored;
};
constexpr std::array kRules{RuleRow{Rule::full, "full", false, false, false},
                            RuleRow{Rule::recent, "recent", false, true, false},
                            RuleRow{Rule::heavy, "heavy", true, false, true},
                            RuleRow{Rule::h2o, "h2o", true, true, true},
                            RuleRow{Rule::h2o_flexgen, "h2o-flexgen", true, true, true},
                            RuleRow{Rule::random, "random", true, true, false}};
constexpr const RuleRow& row_of(Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }
static_assert(
    [] {
      for (std::size_t i = 0; i < kRules.size(); ++i)
        if (static_cast<std::size_t>(kRules[i].rule) != i) return false;
      return true;
    }(),
    "the rows are in the order of Retention::Rule");

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

Rule rule_named(std::string_view name, const std::string& where) {
  std::vector<std::string> known;
  std::string list;
  for (const RuleRow& row : kRules) {
    if (name == row.name) return row.rule;
    known.emplace_back(row.name);
    list += std::string(list.empty() ? "" : ", ") + row.name;
  }
  const auto close = nearest(name, known);
  throw UsageError(where + ": unknown retention rule '" + std::string(name.substr(0, 40)) + "'; " +
                   (close ? "did you mean '" + *close + "'?" : "known: " + list));
}

/// JSON tells tokens from shares by the number's form; the shortest decimal of a double is what was written.
Amount amount_from_json(const nlohmann::json& value, const std::string& where) {
  if (value.is_number_integer()) return Amount::from_text(std::to_string(value.get<std::int64_t>()), where);
  if (!value.is_number_float())
    throw UsageError(where + " must be a number of tokens or a share such as 0.1, got " + describe(value));
  const double share = value.get<double>();
  if (!(share >= 0 && share <= 1))
    throw UsageError(where + " must be a number of tokens or a share from 0 to 1, got " + describe(value));
  std::array<char, 1100> buffer;  // the smallest double has 1,074 decimals
  const auto [end, error] =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), share, std::chars_format::fixed);
  assert(error == std::errc());
  std::string text(buffer.data(), end);
  if (text.find('.') == std::string::npos) text += ".0";
  return Amount::from_text(text, where);
}

void check(const Retention& retention, const std::string& where) {
  const auto& [rule, name, heavy, recent, scored] = row_of(retention.rule);
  const auto nothing = [](const Amount& a) { return !a.is_share() && a.of(1) == 0; };
  if (recent && !heavy && nothing(retention.recent))
    throw UsageError(where + ": rule '" + name + "' needs 'recent', a number of tokens or a share");
  if (heavy && nothing(retention.heavy) && (rule != Rule::h2o || nothing(retention.recent)))
    throw UsageError(where + ": rule '" + name + "' needs 'heavy', a number of tokens or a share");
  const std::int64_t whole = std::int64_t{1} << 30;
  if (retention.heavy.is_share() && retention.recent.is_share() &&
      retention.heavy.of(whole) + retention.recent.of(whole) > whole)
    throw UsageError(where + ": the shares of 'heavy' and 'recent' are more than 1 together");
  if (heavy && !retention.heavy.is_share() && retention.sinks > retention.heavy.of(1))
    throw UsageError(where + ": sinks are part of the heavy tokens; " + std::to_string(retention.sinks) +
                     " sinks do not fit " + retention.heavy.text() + " heavy");
}

}  // namespace

Amount Amount::tokens(std::int64_t count) {
  Amount amount;
  amount.numerator_ = count;
  return amount;
}

Amount Amount::from_text(std::string_view text, const std::string& where) {
  const auto refuse_text = [&] {
    throw UsageError(where +
                     " must be a number of tokens (12) or a share from 0 to 1 with a decimal point (0.1), got '" +
                     std::string(text.substr(0, 40)) + "'");
  };
  Amount amount;
  bool point = false;
  std::int64_t scale = 1;
  if (text.empty() || text.front() == '.') refuse_text();
  for (const char c : text) {
    if (c == '.' && !point) {
      point = true;
      continue;
    }
    if (c < '0' || c > '9') refuse_text();
    if (amount.numerator_ > kMostTokens || scale > 100'000'000'000'000'000) {
      if (!point) refuse_text();
      continue;  // further decimals are below one token of any length
    }
    amount.numerator_ = amount.numerator_ * 10 + (c - '0');
    if (point) scale *= 10;
  }
  if (!point) {
    if (amount.numerator_ > kMostTokens) refuse_text();
    return amount;
  }
  if (text.back() == '.' || amount.numerator_ > scale) refuse_text();
  amount.denominator_ = scale;
  return amount;
}

std::int64_t Amount::of(std::int64_t total) const {
  if (!is_share()) return numerator_;
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(Wide{numerator_} * total / denominator_);
}

std::string Amount::text() const {
  if (!is_share()) return std::to_string(numerator_);
  std::string digits = std::to_string(numerator_);
  std::size_t decimals = 0;
  for (std::int64_t d = denominator_; d > 1; d /= 10) ++decimals;
  if (digits.size() <= decimals) digits.insert(0, decimals + 1 - digits.size(), '0');
  digits.insert(digits.size() - decimals, ".");
  return decimals == 0 ? digits + "0" : digits;
}

Kept Retention::kept(std::int64_t prompt, std::int64_t generation) const {
  const std::int64_t all = prompt + generation, base = of == Of::prompt ? prompt : all;
  const auto tokens = [&](std::int64_t count) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(count, 0, all));
  };
  if (rule == Rule::full) return {.heavy = 0, .recent = tokens(all)};
  Kept kept{.heavy = tokens(heavy.of(base)), .recent = tokens(recent.of(base))};
  if (rule == Rule::recent) kept.heavy = sinks;
  if (rule == Rule::heavy) kept.recent = 0;
  kept.sinks = std::min(sinks, kept.heavy);
  // FlexGen's version evicts only among the heavy, never what leaves the window: with none it would have no victim.
  if (rule == Rule::h2o_flexgen) kept.heavy = std::max(kept.heavy, kept.sinks + 1), kept.grace = 1;
  if (kept.heavy + kept.recent == 0)
    kept.recent = 1;  // shares of a short sequence floor to nothing; its newest token stays
  return kept;
}

std::int64_t Retention::slots(std::int64_t prompt, std::int64_t generation) const {
  const Kept keep = kept(prompt, generation);
  const std::int64_t budget = std::int64_t{keep.heavy} + keep.recent,
                     stored = prompt + std::max<std::int64_t>(1, generation - 1);
  return std::min(budget + 1, stored);
}

Retention Retention::from_text(std::string_view text) {
  const std::string where = "--retention";
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  Retention retention;
  retention.rule = rule_named(parts[0], where);
  const RuleRow& row = row_of(retention.rule);
  const std::size_t wanted = 1 + (row.heavy ? 1 : 0) + (row.recent ? 1 : 0);
  if (parts.size() != wanted)
    throw UsageError(where + ": '" + name_of(retention.rule) + "' is written " + name_of(retention.rule) +
                     (wanted == 1   ? ""
                      : wanted == 2 ? ":N"
                                    : ":HEAVY:RECENT") +
                     ", got '" + std::string(text.substr(0, 60)) + "'");
  if (row.heavy) retention.heavy = Amount::from_text(parts[1], where + " heavy");
  if (row.recent) retention.recent = Amount::from_text(parts.back(), where + " recent");
  check(retention, where);
  return retention;
}

Retention Retention::from_json(const nlohmann::json& object, const std::string& where) {
  Fields fields(object, where, Blame::usage);
  Retention retention;
  retention.rule = rule_named(fields.text("rule"), where);
  const std::string of_text = fields.text("of", "prompt+generation");
  if (of_text == "prompt") retention.of = Of::prompt;
  else if (of_text != "prompt+generation") fields.refuse_field("of", "'prompt' or 'prompt+generation'");
  if (retention.rule != Rule::full) {
    if (row_of(retention.rule).heavy && fields.has("heavy"))
      retention.heavy = amount_from_json(fields.at("heavy"), where + ".heavy");
    if (row_of(retention.rule).recent && fields.has("recent"))
      retention.recent = amount_from_json(fields.at("recent"), where + ".recent");
    retention.sinks = static_cast<std::int32_t>(fields.integer("sinks", 0, kMostTokens, 0));
    if (retention.rule == Rule::random)
      retention.seed = static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MAX, 0));
    if (retention.scored()) {
      retention.window = static_cast<std::int32_t>(fields.integer("window", 0, kMostTokens, 0));
      retention.decay = fields.number("decay", 0, 1, 1.0);
    }
  }
  fields.refuse_unknown();
  check(retention, where);
  return retention;
}

nlohmann::ordered_json Retention::to_json() const {
  const auto number = [](const Amount& amount) {
    return amount.is_share() ? nlohmann::ordered_json(std::stod(amount.text())) : nlohmann::ordered_json(amount.of(0));
  };
  nlohmann::ordered_json json{{"rule", name_of(rule)}};
  if (rule == Rule::full) return json;
  if (row_of(rule).heavy) json["heavy"] = number(heavy);
  if (row_of(rule).recent) json["recent"] = number(recent);
  json["sinks"] = sinks;
  json["of"] = of == Of::prompt ? "prompt" : "prompt+generation";
  if (rule == Rule::random) json["seed"] = seed;
  if (scored() && window > 0) json["window"] = window;
  if (scored() && decay != 1) json["decay"] = decay;
  return json;
}

bool Retention::scored() const { return row_of(rule).scored; }

const char* name_of(Retention::Rule rule) { return row_of(rule).name; }

}  // namespace weft::policy
