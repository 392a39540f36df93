#include "policy/footprint.h"

#include <algorithm>
#include <numeric>

#include "kernels/error.h"
#include "policy/placement.h"

namespace weft::policy {
namespace {

constexpr std::uint64_t kPage = 4096, kPart = 64;
constexpr std::uint64_t kSpillPage = 64 << 10;  // what the disk store checks and writes at once
constexpr std::int64_t kChunkTokens = 512;      // enough rows for the matrix kernels to reach their ceiling

std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) { return (value + unit - 1) / unit * unit; }

Workspace workspace_of(const ModelSpec& model, const Policy& policy, const Workload& work, const SizingInputs& sizing) {
  Workspace space;
  space.batch_tokens = std::max<std::int64_t>(1, policy.gpu_batch_size * work.longest_prompt);
  space.chunk_tokens = std::min(space.batch_tokens, std::max<std::int64_t>(kChunkTokens, work.longest_prompt));
  const std::uint64_t a = size_of(sizing.activation);
  const auto tokens = static_cast<std::uint64_t>(space.chunk_tokens);
  const auto q = static_cast<std::uint64_t>(model.heads) * static_cast<std::uint64_t>(model.head_dim);
  const auto kv = static_cast<std::uint64_t>(model.kv_heads) * static_cast<std::uint64_t>(model.head_dim);
  const auto hidden = static_cast<std::uint64_t>(model.hidden), embed = static_cast<std::uint64_t>(model.embed);
  const auto part = [](std::uint64_t bytes) { return round_up(bytes, kPart); };
  // attention: normed, q, k and v before they are taken apart, q, k, v, out, k and v as stored, row sums, scores
  std::uint64_t attention = part(tokens * hidden * a) + 2 * part(tokens * q * a) + 2 * part(tokens * kv * a) +
                            2 * part(tokens * kv * size_of(sizing.kv)) +
                            part(tokens * static_cast<std::uint64_t>(model.heads) * 4) +
                            part(tokens * static_cast<std::uint64_t>(model.kv_heads) * 4);
  if (model.fused_qkv) attention += part(tokens * (q + 2 * kv) * a);
  const std::uint64_t mlp =
      part(tokens * hidden * a) + (model.gated_mlp ? 2 : 1) * part(tokens * static_cast<std::uint64_t>(model.ffn) * a);
  if (model.parallel_residual) attention += mlp;
  const std::uint64_t embedding = part(tokens * embed * a) + part(tokens * hidden * a);
  space.chunk = round_up(std::max({attention, mlp, embedding}), kPage);
  const auto block = static_cast<std::uint64_t>(policy.block_size());
  space.rows = round_up(block * embed * a, kPage) + round_up(block * hidden * a, kPage) +
               round_up(block * static_cast<std::uint64_t>(model.vocab) * 4, kPage);
  space.gather = round_up(tokens * std::max(embed, hidden) * 4, kPage);
  if (policy.attention_on_host > 0) {
    space.rows_out = round_up(block * (q + 2 * kv) * a, kPage);
    space.rows_on_host = round_up(block * (2 * q + 2 * kv) * a, kPage);
  }
  return space;
}

/// Which KV blocks the host attends: a share of those off the device, evenly through them.
std::vector<bool> host_attends(const std::vector<Tier>& kv_home, double share) {
  const auto off_device =
      static_cast<std::size_t>(std::count_if(kv_home.begin(), kv_home.end(), [](Tier t) { return t != Tier::device; }));
  const std::vector<Tier> side = spread(off_device, {1 - share, share, 0});
  std::vector<bool> attends;
  std::size_t next = 0;
  for (const Tier home : kv_home) attends.push_back(home != Tier::device && side[next++] == Tier::host);
  return attends;
}

Window window(Tier tier, std::uint32_t slots, std::uint64_t slot_bytes) {
  return {tier, slots, slots == 0 ? 0 : round_up(slot_bytes, kPage)};
}

}  // namespace

std::uint64_t kv_buffer_bytes(const ModelSpec& model, std::int64_t sequences, std::int64_t slots, DType dtype,
                              bool scores) {
  const auto heads = static_cast<std::uint64_t>(sequences) * static_cast<std::uint64_t>(model.kv_heads);
  const std::uint64_t entries = heads * static_cast<std::uint64_t>(slots);
  const std::uint64_t rows = round_up(entries * static_cast<std::uint64_t>(model.head_dim) * size_of(dtype), kPart);
  return round_up(2 * rows + (scores ? 2 : 1) * round_up(entries * 4, kPart) + round_up(heads * 4, kPart), kPage);
}

Workload alike(std::int64_t requests, std::int64_t prompt, std::int64_t generation, const Retention& retention) {
  return {.requests = requests,
          .longest_prompt = prompt,
          .slots = retention.slots(prompt, generation),
          .longest_generation = generation};
}

std::optional<Tier> lacking(const Footprint& print, const Budgets& budgets) {
  for (const Tier tier : offload::kTiers)
    if (print[tier] > budgets[tier]) return tier;
  return {};
}

Footprint footprint(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy, const Workload& work,
                    const SizingInputs& sizing) {
  Footprint print;
  ScheduleShape& shape = print.shape;
  shape.sublayers = model_sublayers(model, units);
  shape.layers = model.layers;
  shape.batches = policy.num_gpu_batches;
  shape.disk_reads_device = sizing.disk_reads_device;
  const bool countless = work.requests == INT32_MAX;  // full blocks, see predict()
  shape.refills = policy.continuous && !countless && work.requests > policy.block_size();
  const std::vector<std::size_t> unit_bytes(sizing.unit_bytes.begin(), sizing.unit_bytes.end());
  shape.unit_home = spread(unit_bytes, policy.weights.of);
  shape.kv_home =
      spread(static_cast<std::size_t>(model.layers) * static_cast<std::size_t>(shape.batches), policy.kv.of);
  shape.host_attends = host_attends(shape.kv_home, policy.attention_on_host);
  shape.activation_home = spread(static_cast<std::size_t>(shape.batches), policy.activations.of);
  shape.slots = shape.slots_needed(2);

  const bool scored = policy.retention.scored() || policy.retention.rule == Retention::Rule::random;
  print.kv_buffer_bytes = kv_buffer_bytes(model, policy.gpu_batch_size, work.slots, sizing.kv, scored);
  print.activation_buffer_bytes = round_up(static_cast<std::uint64_t>(policy.gpu_batch_size * work.longest_prompt) *
                                               static_cast<std::uint64_t>(model.hidden) * size_of(sizing.activation),
                                           kPage);
  print.workspace = workspace_of(model, policy, work, sizing);
  bool gathered_from_disk = false;
  for (std::size_t u = 0; u < units.size(); ++u)
    gathered_from_disk |= shape.unit_home[u] == Tier::disk && units[u].gathered;
  if (!gathered_from_disk) print.workspace.gather = 0;

  std::uint64_t streamed = 0;
  for (std::size_t u = 0; u < units.size(); ++u)
    if (units[u].streamed && shape.unit_home[u] != Tier::device) streamed = std::max(streamed, sizing.unit_bytes[u]);
  print.unit = window(Tier::device, shape.slots.unit, streamed);
  print.kv = window(Tier::device, shape.slots.kv, print.kv_buffer_bytes);
  print.activation = window(Tier::device, shape.slots.activation, print.activation_buffer_bytes);
  print.unit_staging = window(Tier::host, shape.slots.unit_staging, streamed);
  print.kv_staging = window(Tier::host, shape.slots.kv_staging, print.kv_buffer_bytes);
  print.activation_staging = window(Tier::host, shape.slots.activation_staging, print.activation_buffer_bytes);
  print.host_kv = window(Tier::host, shape.slots.host_kv, print.kv_buffer_bytes);

  const auto count = [&](Tier tier, std::uint64_t bytes) {
    print.bytes[static_cast<std::size_t>(tier)] += round_up(bytes, tier == Tier::disk ? kSpillPage : kPage);
  };
  for (std::size_t u = 0; u < units.size(); ++u)
    if (shape.unit_home[u] != Tier::disk || !sizing.unit_in_files[u]) count(shape.unit_home[u], sizing.unit_bytes[u]);
  for (const Tier home : shape.kv_home) count(home, print.kv_buffer_bytes);
  for (const Tier home : shape.activation_home) count(home, print.activation_buffer_bytes);
  const std::array<std::uint64_t, 3> homes = print.bytes;
  for (const Window* w : {&print.unit, &print.kv, &print.activation, &print.unit_staging, &print.kv_staging,
                          &print.activation_staging, &print.host_kv})
    count(w->tier, w->slots * w->slot_bytes);
  count(Tier::device, print.workspace.chunk + print.workspace.rows + print.workspace.rows_out);
  count(Tier::host, print.workspace.rows_on_host);
  count(sizing.disk_reads_device ? Tier::device : Tier::host, print.workspace.gather);
  count(Tier::device, sizing.device_overhead);
  for (std::size_t tier = 0; tier < 3; ++tier) print.fixed[tier] = print.bytes[tier] - homes[tier];
  return print;
}

}  // namespace weft::policy
