// policy/layout/policy.h: how a run is laid out: block shape, placement over the tiers, retention, where attention
// runs.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "kernels/tensor.h"
#include "offload/tier.h"
#include "policy/layout/retention.h"
#include "policy/model/weight_format.h"

namespace weft::policy {

/// The most batches, and the most sequences in one.
inline constexpr int kMostSequences = 1 << 15;

/// Shares of a kind of block per tier; they sum to 1.
struct Fractions {
  std::array<double, 3> of{1, 0, 0};  ///< by offload::Tier
  double device() const { return of[0]; }
  double host() const { return of[1]; }
  double disk() const { return of[2]; }
  bool operator==(const Fractions&) const = default;
};

/// Bytes that may be used per tier.
struct Budgets {
  std::array<std::uint64_t, 3> bytes{};  ///< by offload::Tier
  std::uint64_t operator[](offload::Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
};

/// What keys and values are stored as.
struct KvFormat {
  std::optional<DType> dtype;  ///< nothing: the type that the model is computed in
  /// Whether heads are rotated before they are quantised (kernels::Hadamard); nothing: not. Files and flags
  /// that quantise say true unless told otherwise.
  std::optional<bool> rotate;
  /// Of int4: what keys are stored as, int8 or int4; nothing: as values are. Files and flags that say int4 say int8
  /// here unless told otherwise.
  std::optional<DType> keys;

  /// What files and flags mean by a type alone; nothing: the model's.
  static KvFormat of(std::optional<DType> dtype);
  bool int8_keys() const { return dtype == DType::i4 && keys == DType::i8; }
  bool quantised() const { return dtype && is_quantised(*dtype); }
  bool rotates() const { return quantised() && rotate.value_or(false); }
  bool operator==(const KvFormat&) const = default;
};
/// Throws UsageError where a rotation is asked for that nothing would undergo, or a type of keys that is not to be had.
void check(const KvFormat& format, const std::string& where);
/// "int4, keys int8, rotated"; of a model that is computed in `model`.
std::string to_text(const KvFormat& format, DType model);

/// A complete policy.
struct Policy {
  int gpu_batch_size = 1, num_gpu_batches = 1;
  Fractions weights, kv, activations;
  std::optional<WeightFormat> weight_format;  ///< nothing: as the checkpoint has them, by --dtype
  KvFormat kv_format;
  double attention_on_host = 0;  ///< share of the KV off the device that the host attends; the rest comes to the device
  Retention retention;
  bool overlap = true;
  /// A finished sequence gives its place to the next request, whose prefill joins the next sweep; else blocks run to
  /// their end.
  bool continuous = true;
  Budgets budgets;

  int block_size() const { return gpu_batch_size * num_gpu_batches; }
  nlohmann::ordered_json to_json() const;
};

/// What a policy file or the flags say; the rest is chosen.
struct PartialPolicy {
  std::optional<int> gpu_batch_size, num_gpu_batches;
  std::optional<Fractions> weights, kv, activations;
  std::optional<WeightFormat> weight_format;
  std::optional<KvFormat> kv_format;
  std::optional<double> attention_on_host;
  std::optional<Retention> retention;
  std::optional<bool> overlap, continuous;
  std::array<std::optional<std::uint64_t>, 3> budgets;  ///< by offload::Tier

  /// Throws UsageError: unknown keys with the nearest known one, fractions that do not sum to 1, and so on.
  static PartialPolicy from_json(const nlohmann::json& json, const std::string& where);
  /// Nothing left open.
  static PartialPolicy of(const Policy& policy);
  /// FlexGen's six numbers: weights, cache and activations on device and host in percent, the rest on disk.
  void set_percent(const std::array<double, 6>& percent);
  /// Whether something that speed depends on, other than where attention runs, is left to choose.
  bool leaves_open() const { return !(gpu_batch_size && num_gpu_batches && weights && kv && activations); }
  /// This, and `below` where this says nothing.
  PartialPolicy over(const PartialPolicy& below) const;
  Policy over(Policy below) const;
};

/// "continuous" or "static". Throws UsageError.
bool continuous_from_text(std::string_view text, const std::string& where);
/// "device", "host", or the share on the host such as "0.6". Throws UsageError.
double attention_from_text(std::string_view text, const std::string& where);
/// "device", "host", "device 40 % and host 60 %"
std::string attention_to_text(double on_host);

/// "4GiB", "512MiB", "1073741824". Throws UsageError.
std::uint64_t bytes_from_text(std::string_view text, const std::string& where);
/// "3.25 GiB"
std::string bytes_to_text(std::uint64_t bytes);

}  // namespace weft::policy
