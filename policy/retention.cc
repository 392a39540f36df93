#include "policy/retention.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "kernels/error.h"
#include "policy/json.h"

namespace weft::policy {
namespace {

using Rule = Retention::Rule;
constexpr std::array kRules{Rule::full, Rule::recent, Rule::heavy, Rule::h2o, Rule::h2o_flexgen, Rule::random};
constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

Rule rule_named(std::string_view name, const std::string& where) {
  std::vector<std::string> known;
  for (const Rule rule : kRules) {
    if (name == name_of(rule)) return rule;
    known.emplace_back(name_of(rule));
  }
  const auto close = nearest(name, known);
  throw UsageError(where + ": unknown retention rule '" + std::string(name.substr(0, 40)) + "'; " +
                   (close ? "did you mean '" + *close + "'?" : "known: full, recent, heavy, h2o, h2o-flexgen, random"));
}

/// JSON tells tokens from shares by the number's form; the shortest decimal of a double is what was written.
Amount amount_from_json(const nlohmann::json& value, const std::string& where) {
  if (value.is_number_integer()) return Amount::from_text(std::to_string(value.get<std::int64_t>()), where);
  if (!value.is_number_float())
    throw UsageError(where + " must be a number of tokens or a share such as 0.1, got " + describe(value));
  std::array<char, 64> buffer;
  const auto end =
      std::to_chars(buffer.data(), buffer.data() + buffer.size(), value.get<double>(), std::chars_format::fixed).ptr;
  std::string text(buffer.data(), end);
  if (text.find('.') == std::string::npos) text += ".0";
  return Amount::from_text(text, where);
}

void check(const Retention& retention, const std::string& where) {
  const bool heavy = retention.rule != Rule::full && retention.rule != Rule::recent;
  const auto nothing = [](const Amount& a) { return !a.is_share() && a.of(1) == 0; };
  if (retention.rule == Rule::recent && nothing(retention.recent))
    throw UsageError(where + ": rule 'recent' needs 'recent', a number of tokens or a share");
  if (heavy && nothing(retention.heavy) && (retention.rule != Rule::h2o || nothing(retention.recent)))
    throw UsageError(where + ": rule '" + name_of(retention.rule) + "' needs 'heavy', a number of tokens or a share");
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
  const bool one = retention.rule == Rule::recent || retention.rule == Rule::heavy;
  const std::size_t wanted = retention.rule == Rule::full ? 1 : one ? 2 : 3;
  if (parts.size() != wanted)
    throw UsageError(where + ": '" + name_of(retention.rule) + "' is written " + name_of(retention.rule) +
                     (wanted == 1   ? ""
                      : wanted == 2 ? ":N"
                                    : ":HEAVY:RECENT") +
                     ", got '" + std::string(text.substr(0, 60)) + "'");
  if (retention.rule == Rule::recent) retention.recent = Amount::from_text(parts[1], where + " recent");
  else if (wanted > 1) retention.heavy = Amount::from_text(parts[1], where + " heavy");
  if (wanted == 3) retention.recent = Amount::from_text(parts[2], where + " recent");
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
    if (retention.rule != Rule::recent && fields.has("heavy"))
      retention.heavy = amount_from_json(fields.at("heavy"), where + ".heavy");
    if (retention.rule != Rule::heavy && fields.has("recent"))
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
  if (rule != Rule::recent) json["heavy"] = number(heavy);
  if (rule != Rule::heavy) json["recent"] = number(recent);
  json["sinks"] = sinks;
  json["of"] = of == Of::prompt ? "prompt" : "prompt+generation";
  if (rule == Rule::random) json["seed"] = seed;
  if (scored() && window > 0) json["window"] = window;
  if (scored() && decay != 1) json["decay"] = decay;
  return json;
}

const char* name_of(Retention::Rule rule) {
  constexpr std::array names{"full", "recent", "heavy", "h2o", "h2o-flexgen", "random"};
  return names[static_cast<std::size_t>(rule)];
}

}  // namespace weft::policy
