// policy/model/rotary_config.cc: the frequencies of rotary embeddings, as transformers' modeling_rope_utils computes
// them.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "kernels/error.h"
#include "policy/model/model_config.h"

namespace weft::policy {
namespace {

/// The context that a model was trained with before its rotary embedding was scaled, unless it is null.
std::optional<std::int64_t> trained_if_any(Fields& fields) {
  constexpr const char* kKey = "original_max_position_embeddings";
  if (!fields.has(kKey) || fields.is_null(kKey)) return {};
  return fields.integer(kKey, 1, 1 << 24);
}

/// Llama 3.1's scaling: slows low frequencies by `factor`, keeps high ones, and blends smoothly in between.
void scale_as_llama3(std::vector<float>& frequencies, Fields& fields, std::int64_t trained_positions) {
  const auto factor = static_cast<float>(fields.number("factor", 1, 1e6));
  const auto low = static_cast<float>(positive(fields, "low_freq_factor", 1e6));
  const auto high = static_cast<float>(positive(fields, "high_freq_factor", 1e6));
  if (!(low < high)) fields.refuse_field("high_freq_factor", "more than low_freq_factor");
  const auto trained = static_cast<float>(trained_positions);
  for (float& frequency : frequencies) {
    const float wave = 2 * std::numbers::pi_v<float> / frequency;
    const float smooth = std::clamp((trained / wave - low) / (high - low), 0.0f, 1.0f);
    frequency = (1 - smooth) * frequency / factor + smooth * frequency;
  }
}

/// A number that null leaves absent.
std::optional<double> number_if_any(Fields& fields, const char* key, double low, double high) {
  if (!fields.has(key) || fields.is_null(key)) return {};
  return fields.number(key, low, high);
}

/// YaRN (arXiv 2309.00071): slows frequencies that turn less than beta_slow times within the trained context by
/// `factor`, keeps those that turn more than beta_fast times, and blends in between. Returns the magnitude.
float scale_as_yarn(std::vector<float>& frequencies, Fields& fields, double theta, int positions,
                    std::int64_t trained_positions) {
  const auto trained = double(trained_positions);
  const double factor = number_if_any(fields, "factor", 1e-6, 1e6).value_or(positions / trained);
  const auto dims = static_cast<int>(2 * frequencies.size());
  const auto pair_that_turns = [&](double times) {
    return dims * std::log(trained / (times * 2 * std::numbers::pi)) / (2 * std::log(theta));
  };
  const auto fast = number_if_any(fields, "beta_fast", 0, 1e6).value_or(0);
  const auto slow = number_if_any(fields, "beta_slow", 0, 1e6).value_or(0);
  double low = pair_that_turns(fast > 0 ? fast : 32), high = pair_that_turns(slow > 0 ? slow : 1);
  if (!fields.is_null("truncate") && fields.boolean("truncate", true)) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, double(dims - 1));
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float slowed =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float interpolated = frequencies[i] / static_cast<float>(factor);
    frequencies[i] = interpolated * slowed + frequencies[i] * (1 - slowed);
  }
  if (const auto given = number_if_any(fields, "attention_factor", 0, 1e6)) return static_cast<float>(*given);
  const auto magnitude = [factor](double scale) { return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1; };
  const double scale = number_if_any(fields, "mscale", 0, 1e6).value_or(0),
               of_all = number_if_any(fields, "mscale_all_dim", 0, 1e6).value_or(0);
  return static_cast<float>(scale > 0 && of_all > 0 ? magnitude(scale) / magnitude(of_all) : magnitude(1));
}

/// LongRoPE (arXiv 2402.13753): divides each frequency by a factor of its own. Returns the magnitude. Its second set of
/// factors, for sequences longer than the trained context, is not used: a sequence that grows past that length would
/// have keys rotated by both sets. The context therefore ends there.
float scale_as_longrope(std::vector<float>& frequencies, Fields& fields, std::int64_t trained, ModelSpec& model) {
  const double factor = number_if_any(fields, "factor", 1e-6, 1e6).value_or(double(model.positions) / double(trained));
  const nlohmann::json& list = fields.at("short_factor");
  const auto is_factor = [](const nlohmann::json& x) { return x.is_number() && x > 1e-6 && x < 1e6; };
  if (!list.is_array() || list.size() != frequencies.size() || !std::all_of(list.begin(), list.end(), is_factor))
    fields.refuse_field("short_factor", "a list of " + std::to_string(frequencies.size()) + " positive numbers");
  for (std::size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = 1 / (list[i].get<float>() * (1 / frequencies[i]));
  if (trained < model.positions) {
    model.longer_positions = model.positions;
    model.positions = static_cast<int>(trained);
  }
  if (const auto given = number_if_any(fields, "attention_factor", 0, 1e6)) return static_cast<float>(*given);
  return factor <= 1 ? 1.0f : static_cast<float>(std::sqrt(1 + std::log(factor) / std::log(double(trained))));
}

}  // namespace

RotaryFrequencies rotary_from_config(Fields& fields, const std::string& where, ModelSpec& model,
                                     const RotaryKeys& keys) {
  double theta = keys.default_theta, fraction = keys.default_fraction;
  const auto read = [&](Fields& from, const char* theta_key, const char* fraction_key) {
    if (!from.is_null(theta_key)) theta = positive(from, theta_key, 1e12, theta);
    if (!from.is_null(fraction_key)) fraction = from.number(fraction_key, 0, 1, fraction);
  };
  read(fields, keys.theta, keys.fraction);
  std::string type = "default";
  std::optional<Fields> nested;
  bool of_layers = false;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (nested || !fields.has(key) || fields.is_null(key)) continue;
    const nlohmann::json* object = &fields.at(key);
    std::string place = where + ": " + key;
    if (keys.layers && object->is_object() &&
        (object->contains("full_attention") || object->contains("sliding_attention"))) {
      if (!object->contains(keys.layers) || object->at(keys.layers).is_null()) continue;
      object = &object->at(keys.layers), place = place + ": " + keys.layers;
      of_layers = true;
    } else if (!keys.scaled) {
      continue;
    }
    nested.emplace(*object, place, Blame::data);
    read(*nested, "rope_theta", "partial_rotary_factor");
    type = nested->text("rope_type", nested->text("type", type));
  }
  const nlohmann::json absent = keys.absent && !nested ? nlohmann::json::parse(keys.absent) : nlohmann::json();
  if (absent.is_object()) {
    nested.emplace(absent, where + ": the default of rope_parameters", Blame::data);
    read(*nested, "rope_theta", "partial_rotary_factor");
    type = nested->text("rope_type");
  }
  if (keys.whole && fraction != 1) {
    fraction = 1;
    model.notes.emplace_back("partial_rotary_factor is not used: whole heads turn in models of this type");
  }
  const int head_dim = keys.head_dim > 0 ? keys.head_dim : model.head_dim;
  const bool proportional = type == "proportional";
  auto dims = static_cast<int>(head_dim * fraction);
  if (proportional) dims -= dims % 2;
  if (dims < 2 || dims % 2 != 0)
    throw DataError(where + ": " + std::to_string(dims) + " of the " + std::to_string(head_dim) +
                    " numbers of a head would be rotated; wanted an even number of at least 2");
  if (keys.scales_base && type == "dynamic" && nested)
    if (const auto alpha = number_if_any(*nested, "alpha", 1e-6, 1e9)) theta *= std::pow(*alpha, dims / (dims - 2.0));
  RotaryFrequencies rotary;
  for (int i = 0; i < dims; i += 2)  // in fp32, as in transformers: at far positions the rounding shows
    rotary.frequencies.push_back(1 /
                                 std::pow(static_cast<float>(theta),
                                          static_cast<float>(i) / static_cast<float>(proportional ? head_dim : dims)));
  if (keys.of_images && type == "mrope") type = "default";
  if (model.architecture == "phi3" && (type == "su" || type == "yarn")) type = "longrope";  // as transformers
  // As in transformers, the key at the top is the stronger one, but is not of layers with an entry of their own.
  const auto trained = [&] {
    const auto at_top = of_layers ? std::nullopt : trained_if_any(fields);
    return at_top ? *at_top : trained_if_any(*nested).value_or(model.positions);
  };
  if (type == "llama3") {
    scale_as_llama3(rotary.frequencies, *nested, trained());
  } else if (type == "linear") {
    const auto factor = static_cast<float>(nested->number("factor", 1, 1e6));
    for (float& frequency : rotary.frequencies) frequency /= factor;
  } else if (proportional) {  // a share of the frequencies of whole heads, of which the other pairs stay
    const double factor = nested->number("factor", 1e-6, 1e6, 1);
    for (float& frequency : rotary.frequencies) frequency /= static_cast<float>(factor);
    rotary.frequencies.resize(static_cast<std::size_t>(head_dim / 2));
  } else if (type == "yarn") {
    rotary.magnitude = scale_as_yarn(rotary.frequencies, *nested, theta, model.positions, trained());
  } else if (type == "longrope") {
    rotary.magnitude = scale_as_longrope(rotary.frequencies, *nested, trained(), model);
  } else if (type != "default" && type != "dynamic") {  // dynamic scales beyond the context alone
    throw DataError(where + ": rope_type '" + type.substr(0, 40) +
                    "' is not supported; supported: default, dynamic, linear, llama3, longrope, proportional, yarn");
  }
  return rotary;
}

}  // namespace weft::policy
