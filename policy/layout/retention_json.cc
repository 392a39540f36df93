// policy/layout/retention_json.cc: retentions in policy files and on the command line.
#include <array>
#include <cassert>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>
#include <vector>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/retention_rules.h"

namespace weft::policy {
namespace {

using Rule = Retention::Rule;
using kernels::Statistic;

constexpr std::array<const char*, 2> kStatistics{"sum", "largest"};     // by Statistic
constexpr std::array<const char*, 2> kPositions{"absolute", "rolled"};  // by Positions
constexpr std::int64_t kMostTokens = Retention::kMostTokens, kMostPooled = 1023;
constexpr double kMostFactor = 1000;

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
                   (close ? "did you mean '" + *close + "'?" : "known: " + list + ", auto:SHARE"));
}

/// In JSON an integer is tokens, any other number a share. A double's shortest decimal is the number as written.
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

nlohmann::ordered_json factor_json(std::int32_t factor) {
  if (factor == Retention::kEverything) return "full";
  return double(factor) / Retention::kOnce;
}

std::string factor_text(std::int32_t factor) {
  return factor == Retention::kEverything ? "full" : to_line(factor_json(factor));
}

/// `or_list` ends the message if the entry may be a list instead.
std::int32_t factor_from_json(const nlohmann::json& entry, const std::string& where, const char* or_list) {
  const double factor = entry.is_number() ? entry.get<double>() : 0, scaled = factor * Retention::kOnce;
  const bool exact = factor <= kMostFactor && scaled > 0.5 && std::abs(scaled - std::round(scaled)) < 1e-4;
  if (!exact && entry != "full")
    throw UsageError(where + " must be a factor from 0.0001 to 1000 with at most four decimals, or \"full\"" + or_list +
                     "; got " + describe(entry));
  return exact ? static_cast<std::int32_t>(std::lround(scaled)) : Retention::kEverything;
}

std::vector<std::vector<std::int32_t>> layers_from_json(const nlohmann::json& list, const std::string& where) {
  if (!list.is_array() || list.empty())
    throw UsageError(where + " must be a list with a factor or \"full\" for each layer, got " + describe(list));
  std::vector<std::vector<std::int32_t>> layers;
  for (const nlohmann::json& entry : list) {
    const std::string place = where + "[" + std::to_string(layers.size()) + "]";
    std::vector<std::int32_t>& heads = layers.emplace_back();
    if (!entry.is_array() || entry.empty())
      heads.push_back(factor_from_json(entry, place, ", or a list of these for the KV heads"));
    else
      for (const nlohmann::json& of_head : entry)
        heads.push_back(factor_from_json(of_head, place + "[" + std::to_string(heads.size()) + "]", ""));
  }
  return layers;
}

/// Refuses a factor that asks a head to keep more than all tokens.
void check_factor(const Retention& retention, std::int32_t factor, const std::string& place) {
  const auto share = [&](const Amount& amount) { return amount.is_share() ? amount.of(kMostTokens, factor) : 0; };
  if (share(retention.heavy) + share(retention.recent) > kMostTokens)
    throw UsageError(place + ": " + factor_text(factor) +
                     " times the shares of 'heavy' and 'recent' is more than all " +
                     "tokens; take \"full\" or a smaller factor");
  if (!retention.heavy.is_share() && row_of(retention.rule).heavy && retention.sinks > retention.heavy.of(1, factor))
    throw UsageError(place + ": " + std::to_string(retention.sinks) + " sinks do not fit " + factor_text(factor) +
                     " times " + retention.heavy.text() + " heavy");
}

/// Refuses factors unless the heads keep the KV budget on average.
void check_layers(const Retention& retention, const std::string& where) {
  std::size_t most = 1;  // heads of a layer
  for (const auto& heads : retention.layers) most = std::max(most, heads.size());
  double sum = 0, count = 0;
  for (std::size_t layer = 0; layer < retention.layers.size(); ++layer) {
    const std::vector<std::int32_t>& heads = retention.layers[layer];
    const std::string place = where + ": layers[" + std::to_string(layer) + "]";
    if (heads.size() != 1 && heads.size() != most)
      throw UsageError(place + " has " + std::to_string(heads.size()) + " factors, and another layer has " +
                       std::to_string(most) + "; give one for each KV head, or one for all");
    const double weight = double(most) / double(heads.size());
    for (std::size_t head = 0; head < heads.size(); ++head) {
      if (heads[head] == Retention::kEverything) continue;
      sum += weight * heads[head] / Retention::kOnce, count += weight;
      check_factor(retention, heads[head], heads.size() == 1 ? place : place + "[" + std::to_string(head) + "]");
    }
  }
  if (retention.layers.empty()) return;
  if (count == 0) throw UsageError(where + ": 'layers' are all \"full\"; take the rule 'full'");
  if (std::abs(sum / count - 1) > Retention::kMeanIs1)
    throw UsageError(where + ": the factors of 'layers' must be 1 on average over the layers and heads that are not " +
                     "full, so that 'heavy' and 'recent' are what these keep on average; they are " +
                     std::to_string(sum / count) + ": divide them by that");
}

/// Rolled positions need decode steps that evict, and no feature that depends on a token's original position.
void check_rolled(const Retention& retention, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(where + ": 'positions' is 'rolled', but " + why);
  };
  if (retention.rule == Rule::full) refuse("rule 'full' keeps everything; choose a rule that evicts, such as 'h2o'");
  if (!retention.layers.empty()) refuse("'layers' have budgets of their own, and so would move at different times");
  if (retention.once) refuse("with 'once' steps evict nothing, so the cache would outgrow the context");
  if (retention.rule == Rule::keydiff) refuse("rule 'keydiff' scores a token by the position it had when it came");
  if (retention.rest) refuse("the mean of what was evicted ('rest') has no position that could be rolled");
  if (retention.selects()) refuse("the pieces of a key ('read') cannot be turned without rounding it again");
  if (retention.cools()) refuse("the few bits of a cold key ('cold') cannot be turned without rounding them again");
}

void check_read(const Retention& retention, const std::string& where) {
  const auto refuse = [&](const std::string& why) { throw UsageError(where + ": " + why); };
  if (retention.read.of(kMostTokens) == 0) refuse("'read' is 0 tokens; leave it out, so that all are read");
  if (retention.read == Amount::tokens(1)) refuse("'read' is one token; write 1.0 for all, or a share such as 0.1");
  if (retention.cools())
    refuse(
        "'read' chooses among tokens that have all their bits, and 'cold' takes bits away; leave one of the two out");
  if (retention.rest) refuse("'rest' and 'read' do not go together; leave one of the two out");
}

void check_cold(const Retention& retention, const std::string& where) {
  if (retention.cold == Amount::tokens(1))
    throw UsageError(where + ": 'cold' is one token; write 1.0 for all that would be evicted, or 0.5 for half of it");
  if (retention.rest)
    throw UsageError(where +
                     ": 'rest' needs the numbers of what is evicted, and 'cold' keeps only a few bits of them; " +
                     "leave one of the two out");
}

void check(const Retention& retention, const std::string& where) {
  const RuleRow& row = row_of(retention.rule);
  const auto& [rule, name, heavy, recent] = std::tie(row.rule, row.name, row.heavy, row.recent);
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
  if (retention.pool % 2 == 0)
    throw UsageError(where + ": 'pool' must be odd, the token and its neighbours; got " +
                     std::to_string(retention.pool));
  if (retention.once && retention.decay != 1)
    throw UsageError(where + ": with 'once' steps evict nothing, so there is no 'decay'");
  if (retention.once && rule == Rule::h2o_flexgen)
    throw UsageError(where + ": 'once' leaves nothing of 'h2o-flexgen', which differs from h2o only in steps");
  check_layers(retention, where);
  if (retention.rolled()) check_rolled(retention, where);
  if (retention.cools()) check_cold(retention, where);
  if (retention.selects()) check_read(retention, where);
}

/// Reads the parameters that the JSON and the text form share.
void read_parameters(Fields& fields, Retention& retention, const std::string& where) {
  const std::string of_text = fields.text("of", row_of(retention.rule).once ? "prompt" : "prompt+generation");
  if (of_text == "prompt") retention.of = Retention::Of::prompt;
  else if (of_text == "prompt+generation") retention.of = Retention::Of::prompt_and_generation;
  else fields.refuse_field("of", "'prompt' or 'prompt+generation'");
  const std::string positions = fields.text("positions", kPositions[0]);
  if (positions == kPositions[1]) retention.positions = Retention::Positions::rolled;
  else if (positions != kPositions[0]) fields.refuse_field("positions", "'absolute' or 'rolled'");
  if (fields.has("read")) {
    retention.read = amount_from_json(fields.at("read"), where + ": read");
    if (!retention.selects()) fields.refuse_field("read", "a number of tokens or a share above 0");
  }
  if (retention.rule == Rule::full) return;
  retention.sinks = static_cast<std::int32_t>(fields.integer("sinks", 0, kMostTokens, 0));
  retention.rest = fields.boolean("rest", false);
  if (fields.has("cold")) retention.cold = amount_from_json(fields.at("cold"), where + ": cold");
  if (fields.has("layers")) retention.layers = layers_from_json(fields.at("layers"), where + ": layers");
  if (retention.rule == Rule::random)
    retention.seed = static_cast<std::uint64_t>(fields.integer("seed", 0, INT64_MAX, 0));
  const RuleRow& row = row_of(retention.rule);
  if (retention.scored() || retention.rule == Rule::keydiff) retention.once = fields.boolean("once", row.once);
  if (!retention.scored()) return;
  retention.observation = static_cast<std::int32_t>(fields.integer("window", 0, kMostTokens, row.observation));
  retention.pool = static_cast<std::int32_t>(fields.integer("pool", 1, kMostPooled, row.pool));
  retention.decay = fields.number("decay", 0, 1, row.decay);
  const auto name = fields.text("statistic", kStatistics[static_cast<std::size_t>(row.statistic)]);
  const auto* const known = std::find(kStatistics.begin(), kStatistics.end(), name);
  if (known == kStatistics.end()) fields.refuse_field("statistic", "'sum' or 'largest'");
  retention.statistic = static_cast<Statistic>(known - kStatistics.begin());
}

/// The value as a number, a boolean, or text.
nlohmann::json value_from_text(const std::string& text) {
  auto parsed = nlohmann::json::parse(text, nullptr, false);
  return parsed.is_number() || parsed.is_boolean() ? parsed : nlohmann::json(text);
}

/// The parts between separators.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Adds "KEY=VALUE" to an object. The value of "layers" is a list separated by commas; an entry may be a list separated
/// by slashes.
void add_parameter(std::string_view text, nlohmann::json& object, const std::string& where) {
  const std::size_t equals = text.find('=');
  const std::string key(text.substr(0, equals)), value(text.substr(equals + 1));
  if (object.contains(key)) throw UsageError(where + ": '" + key.substr(0, 40) + "' is given twice");
  if (key != "layers") {
    object[key] = value_from_text(value);
    return;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& layer : split(value, ',')) {
    const std::vector<std::string> heads = split(layer, '/');
    nlohmann::json entry = nlohmann::json::array();
    for (const std::string& head : heads) entry.push_back(value_from_text(head));
    list.push_back(heads.size() == 1 ? entry[0] : entry);
  }
  object[key] = std::move(list);
}

}  // namespace

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
      continue;  // further decimals are less than a token for any length
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

std::string Amount::text() const {
  if (!is_share()) return std::to_string(numerator_);
  std::string digits = std::to_string(numerator_);
  std::size_t decimals = 0;
  for (std::int64_t d = denominator_; d > 1; d /= 10) ++decimals;
  if (digits.size() <= decimals) digits.insert(0, decimals + 1 - digits.size(), '0');
  digits.insert(digits.size() - decimals, ".");
  return decimals == 0 ? digits + "0" : digits;
}

Retention Retention::from_text(std::string_view text, const std::string& where) {
  std::vector<std::string_view> parts;
  nlohmann::json parameters = nlohmann::json::object();
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    const std::string_view part = text.substr(begin, end - begin);
    if (!parts.empty() && part.find('=') != std::string_view::npos) add_parameter(part, parameters, where);
    else parts.push_back(part);
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
  Fields fields(parameters, where, Blame::usage);
  read_parameters(fields, retention, where);
  fields.refuse_unknown();
  check(retention, where);
  return retention;
}

Retention Retention::from_json(const nlohmann::json& object, const std::string& where) {
  Fields fields(object, where, Blame::usage);
  Retention retention;
  retention.rule = rule_named(fields.text("rule"), where);
  if (row_of(retention.rule).heavy && fields.has("heavy"))
    retention.heavy = amount_from_json(fields.at("heavy"), where + ".heavy");
  if (row_of(retention.rule).recent && fields.has("recent"))
    retention.recent = amount_from_json(fields.at("recent"), where + ".recent");
  read_parameters(fields, retention, where);
  fields.refuse_unknown();
  check(retention, where);
  return retention;
}

nlohmann::ordered_json Retention::to_json() const {
  const auto number = [](const Amount& amount) {
    return amount.is_share() ? nlohmann::ordered_json(std::stod(amount.text())) : nlohmann::ordered_json(amount.of(0));
  };
  const char* const of_text = of == Of::prompt ? "prompt" : "prompt+generation";
  nlohmann::ordered_json json{{"rule", name_of(rule)}};
  if (rule == Rule::full) {
    if (selects()) json["of"] = of_text, json["read"] = number(read);
    return json;
  }
  if (row_of(rule).heavy) json["heavy"] = number(heavy);
  if (row_of(rule).recent) json["recent"] = number(recent);
  json["sinks"] = sinks;
  json["of"] = of_text;
  if (rule == Rule::random) json["seed"] = seed;
  // Fields that still have the rule's default are omitted, if that is also the general default.
  const RuleRow& row = row_of(rule);
  if (rest) json["rest"] = rest;
  if (cools()) json["cold"] = number(cold);
  if (selects()) json["read"] = number(read);
  if (rule == Rule::keydiff && once) json["once"] = once;
  for (const std::vector<std::int32_t>& heads : layers) {
    nlohmann::ordered_json entry = nlohmann::ordered_json::array();
    for (const std::int32_t factor : heads) entry.push_back(factor_json(factor));
    array_at(json, "layers").push_back(heads.size() == 1 ? entry[0] : entry);
  }
  if (rolled()) json["positions"] = kPositions[static_cast<std::size_t>(positions)];
  if (!scored()) return json;
  if (observation > 0 || row.observation > 0) json["window"] = observation;
  if (pool > 1 || row.pool > 1) json["pool"] = pool;
  if (decay != 1 || row.decay != 1) json["decay"] = decay;
  if (statistic != Statistic::sum || row.statistic != Statistic::sum)
    json["statistic"] = kStatistics[static_cast<std::size_t>(statistic)];
  if (once || row.once) json["once"] = once;
  return json;
}

}  // namespace weft::policy
