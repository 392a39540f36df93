#include "policy/layout/policy.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"

namespace weft::policy {
namespace {

constexpr double kSumTolerance = 1e-6;

/// Reads the fractions and refuses every key of `fields` that was not read.
Fractions last_fractions(Fields& fields, const std::string& where) {
  Fractions fractions;
  double sum = 0;
  for (const offload::Tier tier : offload::kTiers)
    sum += fractions.of[static_cast<std::size_t>(tier)] = fields.number(name_of(tier), 0, 1, 0.0);
  fields.refuse_unknown();
  if (std::abs(sum - 1) > kSumTolerance)
    throw UsageError(where + ": the fractions must sum to 1, they sum to " + std::to_string(sum));
  return fractions;
}

Fractions fractions_from_json(const nlohmann::json& object, const std::string& where) {
  Fields fields(object, where, Blame::usage);
  return last_fractions(fields, where);
}

bool has_fractions(Fields& fields) {
  return std::any_of(offload::kTiers.begin(), offload::kTiers.end(),
                     [&](offload::Tier tier) { return fields.has(name_of(tier)); });
}

/// Reads the placement of the weights, their format, or both.
void weights_from_json(const nlohmann::json& object, const std::string& where, PartialPolicy& policy) {
  Fields fields(object, where, Blame::usage);
  if (fields.has("dtype")) policy.weight_format = weight_format_from_text(fields.text("dtype"), where + ".dtype");
  if (fields.has("group")) {
    if (!policy.weight_format || !policy.weight_format->quantised())
      throw UsageError(where + ".group: is only for the dtypes int8 and int4");
    set_group(*policy.weight_format, fields.integer("group", 1, 1 << 20), where + ".group");
  }
  if (fields.has("arithmetic")) {
    if (!policy.weight_format) throw UsageError(where + ".arithmetic: needs a dtype of the weights beside it");
    policy.weight_format->arithmetic =
        arithmetic_from_text(fields.text("arithmetic"), policy.weight_format->dtype, where + ".arithmetic");
  }
  if (has_fractions(fields) || !fields.has("dtype")) policy.weights = last_fractions(fields, where);
  else fields.refuse_unknown();
}

/// Reads a retention, or the share of bytes that one is chosen for.
void read_retention(const nlohmann::json& object, const std::string& where, PartialPolicy& policy) {
  Fields fields(object, where, Blame::usage);
  if (fields.text("rule") != "auto") {
    policy.retention = Retention::from_json(object, where);
    return;
  }
  policy.kv_share = fields.number("share", 0, 1);
  fields.refuse_unknown();
  if (*policy.kv_share == 0) throw UsageError(where + ".share must be above 0 and at most 1, got 0");
}

/// Reads the shares of the KV, its format, or both.
void read_kv(const nlohmann::json& object, const std::string& where, PartialPolicy& policy) {
  Fields fields(object, where, Blame::usage);
  KvFormat format;
  if (fields.has("dtype")) format = KvFormat::of(dtype_from_text(fields.text("dtype"), where + ".dtype"));
  if (fields.has("coarse")) {
    Fields bits(fields.at("coarse"), where + ".coarse", Blame::usage);
    const auto number = [&](const char* key) {
      return static_cast<int>(bits.integer(key, 1, kernels::kMostCoarseBits));
    };
    format.coarse = {.keys = number("keys"), .values = number("values")};
    bits.refuse_unknown();
  }
  if (fields.has("rotate")) format.rotate = fields.boolean("rotate");
  if (fields.has("keys"))
    if (const auto keys = dtype_from_text(fields.text("keys"), where + ".keys")) format.keys = keys;  // auto: unchanged
  const bool formatted = fields.has("dtype") || fields.has("rotate") || fields.has("keys") || fields.has("coarse");
  if (formatted) policy.kv_format = format;
  if (has_fractions(fields) || !formatted) policy.kv = last_fractions(fields, where);
  else fields.refuse_unknown();
}

double host_share_from_json(const nlohmann::json& value, const std::string& where) {
  if (value.is_string() && value == "device") return 0;
  if (value.is_string() && value == "host") return 1;
  if (!value.is_object())
    throw UsageError(where + " must be \"device\", \"host\" or {\"device\": X, \"host\": 1 - X}, got " +
                     describe(value));
  Fields fields(value, where, Blame::usage);
  const double device = fields.number("device", 0, 1, 0.0), host = fields.number("host", 0, 1, 0.0);
  fields.refuse_unknown();
  if (std::abs(device + host - 1) > kSumTolerance)
    throw UsageError(where + ": the fractions must sum to 1, they sum to " + std::to_string(device + host));
  return host;
}

std::uint64_t bytes_from_json(const nlohmann::json& value, const std::string& where) {
  if (value.is_string()) return bytes_from_text(value.get<std::string>(), where);
  if (value.is_number_integer() && value >= 0) return value.get<std::uint64_t>();
  throw UsageError(where + " must be bytes or a size such as \"4GiB\", got " + describe(value));
}

/// The memory budgets of a complete or a partial policy.
template <class AnyPolicy> auto& budgets_of(AnyPolicy& policy) {
  if constexpr (requires { policy.budgets.bytes; }) return policy.budgets.bytes;
  else return policy.budgets;
}

/// Calls visit() with each field of two policies. Either policy may be complete or partial.
template <class A, class B, class Visit> void for_each_field(A& a, B& b, const Visit& visit) {
  visit(a.gpu_batch_size, b.gpu_batch_size);
  visit(a.num_gpu_batches, b.num_gpu_batches);
  visit(a.weights, b.weights);
  visit(a.kv, b.kv);
  visit(a.activations, b.activations);
  visit(a.weight_format, b.weight_format);
  visit(a.kv_format, b.kv_format);
  visit(a.attention_on_host, b.attention_on_host);
  visit(a.experts_on_host, b.experts_on_host);
  visit(a.retention, b.retention);
  visit(a.overlap, b.overlap);
  visit(a.continuous, b.continuous);
  visit(a.max_batched_tokens, b.max_batched_tokens);
  for (std::size_t tier = 0; tier < 3; ++tier) visit(budgets_of(a)[tier], budgets_of(b)[tier]);
}

nlohmann::ordered_json to_json(const Fractions& fractions) {
  nlohmann::ordered_json object = nlohmann::ordered_json::object();
  for (const offload::Tier tier : offload::kTiers) object[name_of(tier)] = fractions.of[static_cast<std::size_t>(tier)];
  return object;
}

nlohmann::ordered_json host_share_json(double on_host) {
  if (on_host == 0) return "device";
  if (on_host == 1) return "host";
  return {{"device", 1 - on_host}, {"host", on_host}};
}

}  // namespace

PartialPolicy PartialPolicy::from_json(const nlohmann::json& object, const std::string& where) {
  Fields fields(object, where, Blame::usage);
  PartialPolicy policy;
  fields.integer("version", 1, 1, 1);
  if (fields.has("gpu_batch_size"))
    policy.gpu_batch_size = static_cast<int>(fields.integer("gpu_batch_size", 1, kMostSequences));
  if (fields.has("num_gpu_batches"))
    policy.num_gpu_batches = static_cast<int>(fields.integer("num_gpu_batches", 1, kMostSequences));
  if (fields.has("weights")) weights_from_json(fields.at("weights"), where + ": weights", policy);
  if (fields.has("kv")) read_kv(fields.at("kv"), where + ": kv", policy);
  if (fields.has("activations"))
    policy.activations = fractions_from_json(fields.at("activations"), where + ": activations");
  if (fields.has("attention"))
    policy.attention_on_host = host_share_from_json(fields.at("attention"), where + ": attention");
  if (fields.has("experts")) policy.experts_on_host = host_share_from_json(fields.at("experts"), where + ": experts");
  if (fields.has("retention")) read_retention(fields.at("retention"), where + ": retention", policy);
  if (fields.has("overlap")) policy.overlap = fields.boolean("overlap");
  if (fields.has("schedule")) policy.continuous = continuous_from_text(fields.text("schedule"), where + ": schedule");
  if (fields.has("max_batched_tokens"))
    policy.max_batched_tokens = fields.integer("max_batched_tokens", kFewestBatchedTokens, kMostBatchedTokens);
  if (fields.has("budgets")) {
    Fields budgets(fields.at("budgets"), where + ": budgets", Blame::usage);
    for (const offload::Tier tier : offload::kTiers)
      if (budgets.has(name_of(tier)))
        policy.budgets[static_cast<std::size_t>(tier)] =
            bytes_from_json(budgets.at(name_of(tier)), where + ": budgets." + name_of(tier));
    budgets.refuse_unknown();
  }
  fields.refuse_unknown();
  return policy;
}

PartialPolicy PartialPolicy::of(const Policy& policy) {
  PartialPolicy partial;
  for_each_field(partial, policy, [](auto& open, const auto& value) { open = value; });
  return partial;
}

void PartialPolicy::set_percent(const std::array<double, 6>& percent) {
  std::array<std::optional<Fractions>*, 3> kinds{&weights, &kv, &activations};
  for (std::size_t kind = 0; kind < 3; ++kind) {
    const double device = percent[2 * kind], host = percent[2 * kind + 1];
    if (!(device >= 0 && host >= 0 && device + host <= 100 + 100 * kSumTolerance))
      throw UsageError("--percent: device and host percentages must be from 0 to 100 and sum to at most 100, got " +
                       std::to_string(device) + " and " + std::to_string(host));
    *kinds[kind] = Fractions{{device / 100, host / 100, std::max(0.0, 1 - device / 100 - host / 100)}};
  }
}

PartialPolicy PartialPolicy::over(const PartialPolicy& below) const {
  PartialPolicy both = *this;
  for_each_field(both, below, [](auto& mine, const auto& other) {
    if (!mine) mine = other;
  });
  if (kv_share) both.retention.reset();
  else if (!retention) both.kv_share = below.kv_share;
  return both;
}

Policy PartialPolicy::over(Policy below) const {
  for_each_field(*this, below, [](const auto& mine, auto& other) {
    if (mine) other = *mine;
  });
  return below;
}

nlohmann::ordered_json Policy::to_json() const {
  nlohmann::ordered_json object{
      {"version", 1}, {"gpu_batch_size", gpu_batch_size}, {"num_gpu_batches", num_gpu_batches}};
  object["weights"] = policy::to_json(weights);
  if (weight_format) {
    object.at("weights")["dtype"] = name_of(weight_format->dtype);
    if (weight_format->quantised()) object.at("weights")["group"] = weight_format->group;
    if (weight_format->names_arithmetic()) object.at("weights")["arithmetic"] = name_of(weight_format->arithmetic);
  }
  object["kv"] = policy::to_json(kv);
  if (kv_format.dtype) object.at("kv")["dtype"] = name_of(*kv_format.dtype);
  if (kv_format.quantised()) object.at("kv")["rotate"] = kv_format.rotates();
  if (kv_format.dtype == DType::i4) object.at("kv")["keys"] = name_of(kv_format.keys.value_or(DType::i4));
  if (kv_format.coarse)
    object.at("kv")["coarse"] = {{"keys", kv_format.coarse->keys}, {"values", kv_format.coarse->values}};
  object["activations"] = policy::to_json(activations);
  object["attention"] = host_share_json(attention_on_host);
  if (experts_on_host > 0) object["experts"] = host_share_json(experts_on_host);
  object["retention"] = retention.to_json();
  object["overlap"] = overlap;
  object["schedule"] = continuous ? "continuous" : "static";
  if (max_batched_tokens) object["max_batched_tokens"] = *max_batched_tokens;
  for (const offload::Tier tier : offload::kTiers) object_at(object, "budgets")[name_of(tier)] = budgets[tier];
  return object;
}

KvFormat KvFormat::of(std::optional<DType> dtype) {
  KvFormat format{.dtype = dtype, .rotate = {}, .keys = {}};
  if (format.quantised()) format.rotate = true;
  if (dtype == DType::i4) format.keys = DType::i8;
  return format;
}

KvFormat KvFormat::from_text(std::string_view text, const std::string& where) {
  const std::size_t colon = text.find(':');
  KvFormat format = of(dtype_from_text(text.substr(0, colon), where));
  if (colon == std::string_view::npos) return format;
  const std::string_view bits = text.substr(colon + 1);
  const auto bits_at = [&](std::size_t i) { return bits[i] - '0'; };
  if (bits.size() != 3 || bits[1] != ':' || bits_at(0) < 1 || bits_at(0) > kernels::kMostCoarseBits || bits_at(2) < 1 ||
      bits_at(2) > kernels::kMostCoarseBits)
    throw UsageError(where + ": the bits of cold keys and values are written int8:KEYS:VALUES, 1 to " +
                     std::to_string(kernels::kMostCoarseBits) + " each, such as int8:4:2; got '" +
                     std::string(text.substr(0, 40)) + "'");
  format.coarse = {.keys = bits_at(0), .values = bits_at(2)};
  return format;
}

void check(const Retention& retention, const KvFormat& format) {
  if (retention.cools() && format.dtype != DType::i8)
    throw UsageError("retention: 'cold' keeps the highest bits of int8 keys and values; give --kv-dtype int8");
  if (retention.selects() && format.dtype != DType::i8)
    throw UsageError(
        "retention: 'read' reads only the highest bits of most int8 keys and values; give --kv-dtype int8");
}

void check(const KvFormat& format, const std::string& where) {
  if (format.coarse && format.dtype != DType::i8)
    throw UsageError(where + ": the bits of cold tokens are those of int8 rows; give --kv-dtype int8");
  if (format.keys && format.dtype != DType::i4)
    throw UsageError(where +
                     ": keys have a type of their own only with values of int4; leave it out or give "
                     "--kv-dtype int4");
  if (format.keys && *format.keys != DType::i8 && *format.keys != DType::i4)
    throw UsageError(where + ": keys are " + name_of(*format.keys) + ", wanted int8 or int4");
  if (format.rotate.value_or(false) && !format.quantised())
    throw UsageError(where + ": rotate is for keys and values of int8 and int4; leave it out or give --kv-dtype int4");
}

std::string to_text(const KvFormat& format, DType model) {
  return std::string(name_of(format.dtype.value_or(model))) + (format.int8_keys() ? ", keys int8" : "") +
         (format.coarse ? ", cold " + std::to_string(format.coarse->keys) + ":" + std::to_string(format.coarse->values)
                        : "") +
         (format.rotates() ? ", rotated" : "");
}

bool continuous_from_text(std::string_view text, const std::string& where) {
  if (text == "continuous" || text == "static") return text == "continuous";
  throw UsageError(where + " must be continuous or static, got '" + std::string(text.substr(0, 40)) + "'");
}

double host_share_from_text(std::string_view text, const std::string& where) {
  if (text == "device") return 0;
  if (text == "host") return 1;
  double share = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (error != std::errc{} || end != text.data() + text.size() || !(share >= 0 && share <= 1))
    throw UsageError(where + " must be device, host, or the share on the host from 0 to 1, got '" +
                     std::string(text.substr(0, 40)) + "'");
  return share;
}

std::string host_share_to_text(double on_host) {
  if (on_host == 0) return "device";
  if (on_host == 1) return "host";
  const int percent = static_cast<int>(std::lround(on_host * 100));
  return "device " + std::to_string(100 - percent) + " % and host " + std::to_string(percent) + " %";
}

std::uint64_t bytes_from_text(std::string_view text, const std::string& where) {
  const auto refuse_text = [&] {
    throw UsageError(where + " must be bytes or a size such as 4GiB, 512MiB, 1.5G or 16GB, got '" +
                     std::string(text.substr(0, 40)) + "'");
  };
  std::size_t end = 0;
  while (end < text.size() && ((text[end] >= '0' && text[end] <= '9') || text[end] == '.')) ++end;
  const std::string_view unit = text.substr(end);
  constexpr std::array<std::string_view, 5> units{"B", "KiB", "MiB", "GiB", "TiB"};
  double scale = unit.empty() ? 1 : 0;
  for (std::size_t u = 0; u < units.size(); ++u) {
    if (unit == units[u]) scale = std::ldexp(1.0, static_cast<int>(10 * u));
    if (u == 0) continue;
    const std::string letter(1, units[u].front());  // 16G is 16GiB, as in Slurm and ulimit; a GB is 10^9
    if (unit == letter) scale = std::ldexp(1.0, static_cast<int>(10 * u));
    if (unit == letter + "B") scale = std::pow(1000.0, double(u));
  }
  if (scale == 0 || end == 0 || end > 20 || text.front() == '.') refuse_text();
  std::size_t used = 0;
  const std::string number(text.substr(0, end));
  double value = 0;
  try {
    value = std::stod(number, &used) * scale;
  } catch (const std::exception&) {
    refuse_text();
  }
  if (used != end || value > 0x1p62 || value != std::floor(value)) refuse_text();
  return static_cast<std::uint64_t>(value);
}

std::string bytes_to_text(std::uint64_t bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < units.size()) value /= 1024, ++unit;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text.data();
}

}  // namespace weft::policy
