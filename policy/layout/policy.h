// policy/layout/policy.h: the layout of a run: block shape, placement over the tiers, retention, the place of
// attention.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/tensor.h"
#include "offload/kv_layout.h"
#include "offload/tier.h"
#include "policy/layout/retention.h"
#include "policy/model/weight_format.h"

namespace weft::policy {

/// The most batches, and the most sequences in one.
inline constexpr int kMostSequences = 1 << 15;
/// The fewest tokens of a chunk, which ends at a multiple of kernels::kPrefixStep, and the most.
inline constexpr std::int64_t kFewestBatchedTokens = 64, kMostBatchedTokens = std::int64_t{1} << 30;

/// Shares of a kind of buffer per tier; they sum to 1.
struct Fractions {
  std::array<double, 3> of{1, 0, 0};  ///< [offload::Tier]
  double device() const { return of[0]; }
  double host() const { return of[1]; }
  double disk() const { return of[2]; }
  bool operator==(const Fractions&) const = default;
};

/// Bytes that may be used per tier.
struct Budgets {
  std::array<std::uint64_t, 3> bytes{};  ///< [offload::Tier]
  std::uint64_t operator[](offload::Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
};

/// The bits of cold tokens, and those by which `read` reads most tokens, unless a format says otherwise.
inline constexpr kernels::CoarseBits kCoarseBits{.keys = 4, .values = 2};

/// The stored form of keys and values.
struct KvFormat {
  std::optional<DType> dtype;  ///< nullopt: the type that the model is computed in
  /// Whether heads are rotated before they are quantised (kernels::Hadamard). Defaults to false in code; policy files
  /// and flags that quantise default it to true.
  std::optional<bool> rotate;
  /// The type of keys, int8 or int4, if values are int4; nullopt: that of values. Policy files and flags that choose
  /// int4 default it to int8.
  std::optional<DType> keys;
  /// The bits of cold tokens, or of tokens that are not read in full, only with int8 and a retention that cools or
  /// selects (Retention::cold, Retention::read).
  std::optional<kernels::CoarseBits> coarse = {};

  /// The format that files and flags mean if they name only a type; nullopt: the model's type.
  static KvFormat of(std::optional<DType> dtype);
  /// Likewise, for a type or "int8:KEYS:VALUES" with the bits of cold tokens. Throws UsageError.
  static KvFormat from_text(std::string_view text, const std::string& where);
  bool int8_keys() const { return dtype == DType::i4 && keys == DType::i8; }
  bool quantised() const { return dtype && is_quantised(*dtype); }
  bool rotates() const { return quantised() && rotate.value_or(false); }
  bool operator==(const KvFormat&) const = default;
};
/// Throws UsageError for a rotation without quantised numbers, and for a type of keys that the format cannot have.
void check(const KvFormat& format, const std::string& where);
/// Throws UsageError if a retention cools or selects and the format is not int8.
void check(const Retention& retention, const KvFormat& format);
/// "int4, keys int8, rotated". `model`: the type that the model is computed in.
std::string to_text(const KvFormat& format, DType model);

/// A complete policy.
struct Policy {
  int gpu_batch_size = 1, num_gpu_batches = 1;
  Fractions weights, kv, activations;
  std::optional<WeightFormat> weight_format;  ///< nullopt: the checkpoint's, or --dtype's
  KvFormat kv_format;
  double attention_on_host = 0;  ///< share of the KV off the device that the host attends; the device attends the rest
  /// Share of the experts that the host computes in every sweep after a block's first. Their home is host memory; the
  /// other weights have the shares of `weights`.
  double experts_on_host = 0;
  Retention retention;
  bool overlap = true;
  /// Whether a finished sequence gives its place to the next request, whose prefill joins the next sweep. Otherwise
  /// blocks run to their end.
  bool continuous = true;
  /// The most prompt tokens of a gpu batch that are computed at once, kFewestBatchedTokens or more: a longer prompt
  /// goes through each layer in chunks, and others begin in later sweeps. nullopt: chosen by the footprint.
  std::optional<std::int64_t> max_batched_tokens = {};
  Budgets budgets;

  int block_size() const { return gpu_batch_size * num_gpu_batches; }
  nlohmann::ordered_json to_json() const;
};

/// The fields that a policy file or the flags set. The others are chosen.
struct PartialPolicy {
  std::optional<int> gpu_batch_size, num_gpu_batches;
  std::optional<Fractions> weights, kv, activations;
  std::optional<WeightFormat> weight_format;
  std::optional<KvFormat> kv_format;
  std::optional<double> attention_on_host, experts_on_host;
  std::optional<Retention> retention;
  /// In place of a retention and a KV format: the share that keys and values may take of the full cache's bytes in 16
  /// bits. settle_kv_share() chooses both (policy/layout/kv_share.h).
  std::optional<double> kv_share = {};
  std::optional<bool> overlap, continuous;
  std::optional<std::int64_t> max_batched_tokens;
  std::array<std::optional<std::uint64_t>, 3> budgets;  ///< [offload::Tier]

  /// Throws UsageError for unknown keys, with the nearest known one, for fractions that do not sum to 1, and so on.
  static PartialPolicy from_json(const nlohmann::json& json, const std::string& where);
  /// A partial policy that leaves nothing open.
  static PartialPolicy of(const Policy& policy);
  /// FlexGen's six numbers: weights, cache and activations on device and host in percent, the rest on disk.
  void set_percent(const std::array<double, 6>& percent);
  /// Whether a field that affects speed is left to choose, other than the places of attention and of experts.
  bool leaves_open() const { return !(gpu_batch_size && num_gpu_batches && weights && kv && activations); }
  /// The fields of this policy; those that it leaves open are taken from `below`.
  PartialPolicy over(const PartialPolicy& below) const;
  Policy over(Policy below) const;
};

/// "continuous" or "static". Throws UsageError.
bool continuous_from_text(std::string_view text, const std::string& where);
/// "device", "host", or the share on the host such as "0.6". Throws UsageError.
double host_share_from_text(std::string_view text, const std::string& where);
/// "device", "host", "device 40 % and host 60 %"
std::string host_share_to_text(double on_host);

/// "4GiB", "512MiB", "1073741824". Throws UsageError.
std::uint64_t bytes_from_text(std::string_view text, const std::string& where);
/// "3.25 GiB"
std::string bytes_to_text(std::uint64_t bytes);

}  // namespace weft::policy
