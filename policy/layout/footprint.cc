#include "policy/layout/footprint.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "kernels/error.h"
#include "policy/layout/placement.h"

namespace weft::policy {
namespace {

using offload::Arena;
using offload::kPage;
using offload::round_up;

double mean(const std::vector<WorkGroup>& groups, double WorkGroup::*of, std::int64_t otherwise) {
  double sum = 0, count = 0;
  for (const WorkGroup& group : groups) sum += group.choices * group.*of, count += group.choices;
  return count > 0 ? sum / count : double(otherwise);
}

/// The work space of one chunk in the sublayer that needs the most. Attention needs its values of a whole chunk, and
/// the keys and values of whole prompts; what works row by row has room for a piece.
std::uint64_t chunk_bytes(const ModelSpec& model, const Types& types, const Workspace& space) {
  const auto most_of = [&](const auto& used_by) {
    std::uint64_t most = 0;
    for (const int layer : layer_of_each_kind(model)) most = std::max<std::uint64_t>(most, used_by(layer));
    return most;
  };
  const auto take_all = [&](Arena& arena, Stage stage, int layer, bool of_chunk, const auto& shape) {
    for (const Value value : scratch_values(steps_of(model, stage, layer)))
      if (of_chunk == (stage == Stage::attend || spans_chunk(value))) {
        take(arena, shape(value));
        arena.take(0, kValueAlignment);
      }
  };
  const auto piece = [&](Stage stage) {
    return most_of([&](int layer) {
      Arena counting;
      take_all(counting, stage, layer, false,
               [&](Value value) { return shape_of(value, model, types, space.piece_tokens, layer); });
      return counting.used();
    });
  };
  const auto attention = [&](const AttentionRows& rows) {
    return most_of([&](int layer) {
      Arena counting;
      for (const Stage stage : {Stage::attention_in, Stage::attend})
        take_all(counting, stage, layer, true,
                 [&](Value value) { return attention_shape(value, model, types, rows, layer); });
      if (rows.prompts && space.prefix_tokens > 0)
        take(counting, prefix_score_shape(model, space.prefix_tokens, layer));
      return round_up(counting.used(), kValueAlignment);
    });
  };
  const std::uint64_t of_chunk = std::max(attention(space.attention), attention({.queries = space.chunk_tokens}));
  const std::uint64_t beside = std::max(piece(Stage::attention_in), piece(Stage::attention_out));
  return round_up(std::max({piece(Stage::embed), piece(Stage::mlp), piece(Stage::expert), piece(Stage::experts_end),
                            of_chunk + beside}),
                  kPage);
}

OutputLayout output_layout(const ModelSpec& model, const Types& types, std::int64_t block_size) {
  Arena counting;
  const auto place = [&](Value value) {
    return counting.take(shape_of(value, model, types, block_size).bytes(), kPage);
  };
  OutputLayout layout;
  layout.last_hidden = place(Value::last_hidden);
  layout.last_embed = place(Value::last_embed);
  layout.logits = place(Value::logits);
  layout.bytes = round_up(counting.used(), kPage);
  return layout;
}

ExchangeLayout exchange_layout(const ModelSpec& model, const Types& types, std::int64_t block_size, bool on_host) {
  Arena counting;
  const auto place = [&](Value value) {
    return counting.take(widest_shape_of(value, model, types, block_size).bytes(), size_of(types.activation));
  };
  ExchangeLayout layout;
  layout.q = place(Value::q);
  layout.k = place(Value::k);
  layout.v = place(Value::v);
  if (on_host) layout.attended = place(Value::attended);
  layout.bytes = round_up(counting.used(), kPage);
  return layout;
}

UnpackedLayout unpacked_layout(const ScheduleShape& shape, const std::vector<std::uint64_t>& unpacked_bytes) {
  UnpackedLayout layout;
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s) {
    if (!shape.unpacks_for(s)) continue;
    std::uint64_t& size = layout.size[shape.unpacked_space(s)];
    size = std::max(size, unpacked_bytes[static_cast<std::size_t>(shape.sublayers[s].unit)]);
  }
  Arena counting;
  for (std::size_t space = 0; space < layout.size.size(); ++space)
    layout.at[space] = counting.take(layout.size[space], kPage);
  layout.bytes = round_up(counting.used(), kPage);
  return layout;
}

// Without Policy::max_batched_tokens a longer prompt goes in chunks of so many tokens, and a batch begins as many
// prompts in its first sweep. These keep any device busy for longer than the weights need from wherever they are.
constexpr std::int64_t kChunkTokens = 2048, kFirstTokens = 524288;

/// The most rows of a batch in the first sweep, and where prompts join later ones.
std::int64_t first_rows(const Workload& work, const Workspace& space) {
  return std::min(space.batch_tokens, std::max(space.first_tokens, work.longest_prompt));
}
std::int64_t joined_rows(const Policy& policy, const Workload& work, const Workspace& space) {
  return std::min(space.batch_tokens, policy.gpu_batch_size + space.admitted_tokens + work.longest_prompt);
}

/// The numbers of a row of the widest table.
std::int64_t widest_table(const ModelSpec& model) {
  return std::max<std::int64_t>({model.embed, model.hidden, std::int64_t{model.layers} * model.layer_input});
}

Workspace workspace_of(const ModelSpec& model, const Policy& policy, const Workload& work, const Types& types,
                       std::int64_t rows_that_fill) {
  Workspace space;
  space.batch_tokens = work.batch_tokens(policy.gpu_batch_size);
  const std::int64_t chunk = std::max(rows_that_fill, std::min(kChunkTokens, work.longest_prompt));
  space.chunk_tokens = std::min(space.batch_tokens, policy.max_batched_tokens.value_or(chunk));
  space.piece_tokens = std::min(space.chunk_tokens, rows_that_fill);
  space.prefix_tokens = work.longest_prefix;
  space.first_tokens = policy.gpu_batch_size == 1
                           ? space.batch_tokens
                           : std::min(space.batch_tokens, policy.max_batched_tokens.value_or(kFirstTokens));
  space.admitted_tokens =
      policy.experts_on_host > 0 ? space.chunk_tokens : std::max(space.chunk_tokens, space.first_tokens / 4);
  space.attention = {.queries = std::min(space.prefix_tokens, space.chunk_tokens) + space.chunk_tokens,
                     .tokens = std::max(space.prefix_tokens + space.chunk_tokens, work.longest_prompt),
                     .prompts = true};
  space.chunk = chunk_bytes(model, types, space);
  const std::int64_t block = policy.block_size();
  space.output = output_layout(model, types, block);
  space.gather = round_up(bytes_of(DType::f32, space.piece_tokens * widest_table(model)), kPage);
  const std::int64_t most_rows = std::max(first_rows(work, space), joined_rows(policy, work, space));
  space.routing = 2 * round_up(bytes_of(DType::f32, most_rows * model.experts.chosen), kValueAlignment);
  if (policy.attention_on_host > 0) {
    space.exchange_device = exchange_layout(model, types, block, false);
    space.exchange_host = exchange_layout(model, types, block, true);
  }
  return space;
}

/// The KV buffers that the host attends: a share of those off the device, spread evenly over them.
std::vector<bool> host_attends(const std::vector<Tier>& kv_home, const std::vector<std::size_t>& weight, double share) {
  std::vector<std::size_t> off_device;
  for (std::size_t i = 0; i < kv_home.size(); ++i)
    if (kv_home[i] != Tier::device) off_device.push_back(weight[i]);
  const std::vector<Tier> side = spread(off_device, {1 - share, share, 0});
  std::vector<bool> attends;
  std::size_t next = 0;
  for (const Tier home : kv_home) attends.push_back(home != Tier::device && side[next++] == Tier::host);
  return attends;
}

/// Footprint::kv_lender. Only on the device, where a lender's buffer always is when a layer wants it, and only where no
/// layer chooses among its tokens: then those that share keep the same ones in the same slots.
std::vector<int> kv_lenders(const ModelSpec& model, const Policy& policy) {
  const Retention& retention = policy.retention;
  if (model.sharing_layers == 0 || policy.kv.device() != 1 || retention.rule != Retention::Rule::full ||
      retention.selects())
    return {};
  std::vector<int> lenders;
  for (int layer = 0; layer < model.layers; ++layer)
    lenders.push_back(model.shares_kv(layer) ? model.kv_source(layer) : layer);
  return lenders;
}

/// One entry, or one per layer if layers differ. Heads that keep everything evict nothing and need no scores.
std::vector<std::vector<offload::KvShape>> kv_shapes(const ModelSpec& model, const Policy& policy, const Workload& work,
                                                     DType slot_type, const std::vector<int>& lenders) {
  const Retention& retention = policy.retention;
  retention.require_layers(kv_heads_of_layers(model));
  const bool plain_logits = !model.sinks && model.attention_cap == 0;  // kernels::KvSlots::mean
  const bool alike =
      retention.alike() && work.slots.alike() && model.windows.empty() && model.global_head_dim == 0 && lenders.empty();
  std::vector<std::vector<offload::KvShape>> shapes(alike ? 1 : static_cast<std::size_t>(model.layers));
  for (int layer = 0; layer < std::ssize(shapes); ++layer)
    for (const auto& [head, count] : retention.runs(layer, model.kv_heads_of(layer)))
      shapes[static_cast<std::size_t>(layer)].push_back(
          {.sequences = policy.gpu_batch_size,
           .kv_heads = count,
           .slots = static_cast<int>(work.slots.of(layer, head) + work.cold_slots.of(layer, head)),
           .head_dim = model.head_dim_of(layer),
           .dtype = slot_type,
           .scores = retention.keeps_scores(layer, head),
           .rest = retention.rest && !retention.everything(layer, head),
           .int8_keys = policy.kv_format.int8_keys(),
           .key_sums = retention.keeps_key_sums(layer, head),
           .cold = static_cast<int>(work.cold_slots.of(layer, head)),
           .coarse = policy.kv_format.coarse.value_or(kCoarseBits),
           .split = retention.selects(),
           .read = retention.kept(work.longest_prompt, work.longest_generation, layer, head).read,
           .means = plain_logits && retention.cools() && !retention.everything(layer, head),
           .lent = !lenders.empty() && lenders[static_cast<std::size_t>(layer)] != layer});
  return shapes;
}

/// Per KV buffer, [layer * batches + batch]: its bytes, or 1 if all are alike.
std::vector<std::size_t> kv_weights(const Footprint& print) {
  std::vector<std::size_t> weights;
  for (int layer = 0; layer < print.shape.layers; ++layer)
    weights.insert(weights.end(), static_cast<std::size_t>(print.shape.batches),
                   print.layers_alike() ? 1 : static_cast<std::size_t>(print.kv_buffer_bytes(layer)));
  return weights;
}

bool any_on(Tier tier, const std::vector<Tier>& homes) {
  return std::find(homes.begin(), homes.end(), tier) != homes.end();
}

/// The gpu batches that prefill takes through the model together: as few as keep the device busy for as long as the
/// weights need over the link. Then another pass costs no time, and the others' prompts need no room. With anything on
/// the disk they are all of them, for there another pass would take long, and after a loss of its pages prompts begin
/// again in later sweeps.
int prefill_batches(const ScheduleShape& shape, const Workload& work, const Workspace& space, std::int64_t fill) {
  if (work.resumes || any_on(Tier::disk, shape.unit_home) || any_on(Tier::disk, shape.kv_home)) return shape.batches;
  constexpr std::int64_t fills = 4;  // flop of so many rows take as long as bringing the weights over PCIe
  const std::int64_t wanted = (fills * fill + space.first_tokens - 1) / space.first_tokens;
  return static_cast<int>(std::min<std::int64_t>(wanted, shape.batches));
}

/// The most rows that a batch has after the first sweep.
std::int64_t later_rows(const ScheduleShape& shape, const Policy& policy, const Workload& work,
                        const Workspace& space) {
  return shape.refills ? joined_rows(policy, work, space)
                       : std::min<std::int64_t>(space.batch_tokens, policy.gpu_batch_size);
}

/// The rows for which a batch without room of its own for prompts needs room.
std::int64_t decode_rows(const ScheduleShape& shape, const Policy& policy, const Workload& work,
                         const Workspace& space) {
  const std::int64_t later = later_rows(shape, policy, work, space);
  return shape.prefill_batches == shape.batches ? std::max(first_rows(work, space), later) : later;
}

/// Homes by the shares of the weights; those of experts that the host computes are on the host.
std::vector<Tier> unit_homes(const std::vector<std::uint64_t>& unit_bytes, const ScheduleShape& shape,
                             const Fractions& shares) {
  std::vector<std::size_t> others;
  for (std::size_t u = 0; u < unit_bytes.size(); ++u)
    if (!shape.is_of_host(u)) others.push_back(unit_bytes[u]);
  const std::vector<Tier> spread_homes = spread(others, shares.of);
  std::vector<Tier> homes;
  std::size_t next = 0;
  for (std::size_t u = 0; u < unit_bytes.size(); ++u)
    homes.push_back(shape.is_of_host(u) ? Tier::host : spread_homes[next++]);
  return homes;
}

/// The largest KV buffer that is away from home while it is used.
std::uint64_t largest_moved_kv(const Footprint& print) {
  std::uint64_t largest = 0;
  for (int layer = 0; layer < print.shape.layers; ++layer)
    for (int batch = 0; batch < print.shape.batches; ++batch)
      if (print.shape.kv_home[print.shape.kv_index(layer, batch)] != Tier::device)
        largest = std::max(largest, print.kv_buffer_bytes(layer));
  return largest;
}

Window window(Tier tier, std::uint32_t slots, std::uint64_t slot_bytes) {
  return {tier, slots, slots == 0 ? 0 : round_up(slot_bytes, kPage)};
}

}  // namespace

Workload alike(std::optional<std::int64_t> requests, std::int64_t prompt, std::int64_t generation,
               const Retention& retention, const std::vector<int>& windows) {
  return {.requests = requests,
          .longest_prompt = prompt,
          .slots = retention.slots(prompt, generation, windows),
          .cold_slots = retention.cold_slots(prompt, generation, windows),
          .longest_generation = generation};
}

std::int64_t Workload::batch_tokens(std::int64_t places) const {
  if (prompt_lengths.empty()) return std::max<std::int64_t>(1, places * longest_prompt);
  std::int64_t tokens = 0, left = places;
  for (auto length = prompt_lengths.begin(); length != prompt_lengths.end() && left > 0; ++length) {
    const std::int64_t choices = std::min(length->choices, left);
    tokens += choices * length->tokens, left -= choices;
  }
  return tokens + left;
}
std::int64_t Workload::most_slots() const { return slots.most() + cold_slots.most(); }
double Workload::prompt() const { return mean(groups, &WorkGroup::prompt, longest_prompt); }
double Workload::generation() const { return mean(groups, &WorkGroup::generation, longest_generation); }

std::uint64_t Footprint::kv_bytes_from_host(int layer) const {
  std::uint64_t total = 0;
  for (const offload::KvShape& run : kv_runs(layer)) total += run.bytes() - run.low_bytes();
  return total;
}

std::vector<std::uint32_t> Footprint::first_alike() const {
  std::vector<std::uint32_t> first;
  first.reserve(shape.sublayers.size());
  std::vector<std::pair<std::tuple<Sublayer::Kind, bool, int, bool, bool>, std::uint32_t>> known;  // of a few kinds
  for (std::uint32_t s = 0; s < shape.sublayers.size(); ++s) {
    const Sublayer& sub = shape.sublayers[s];
    const bool in_layer = sub.layer >= 0, own = sub.kind == Sublayer::Kind::attention && !layers_alike();
    const bool sparse = s + 1 < shape.sublayers.size() && shape.sublayers[s + 1].kind == Sublayer::Kind::experts;
    const bool by_host = shape.computed_on_host(s, false), shares = sub.layer >= own_kv_layers;
    first.push_back(s);
    if (!in_layer || own) continue;
    const std::tuple alike{sub.kind, sparse, sub.experts, by_host, shares};
    const auto same = std::find_if(known.begin(), known.end(), [&](const auto& one) { return one.first == alike; });
    if (same != known.end()) first.back() = same->second;
    else known.push_back({alike, s});
  }
  return first;
}

std::uint64_t Footprint::activation_buffer_bytes(int batch) const {
  return batch < shape.batches_of_pass(true) ? std::max(prefill_hidden_bytes, decode_hidden_bytes)
                                             : decode_hidden_bytes;
}

std::uint64_t Footprint::activation_bytes() const {
  std::uint64_t total = 0;
  for (int batch = 0; batch < shape.batches; ++batch) total += activation_buffer_bytes(batch);
  return total;
}

std::uint64_t Footprint::kv_bytes() const {
  std::uint64_t total = 0;
  for (int layer = 0; layer < shape.layers; ++layer)
    total += static_cast<std::uint64_t>(shape.batches) * kv_buffer_bytes(layer);
  return total;
}

std::optional<Tier> lacking(const Footprint& print, const Budgets& budgets) {
  for (const Tier tier : offload::kTiers)
    if (print[tier] > budgets[tier]) return tier;
  return {};
}

bool holds_prefixes(const ModelSpec& model, const Policy& policy) {
  const auto sees_all = [](int window) { return window == 0; };
  return policy.retention.rule == Retention::Rule::full && !policy.kv_format.quantised() &&
         policy.attention_on_host == 0 && std::all_of(model.windows.begin(), model.windows.end(), sees_all);
}

Footprint footprint(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy, const Workload& work,
                    const SizingInputs& sizing) {
  check(policy.retention, policy.kv_format);
  Footprint print;
  ScheduleShape& shape = print.shape;
  shape.sublayers = model_sublayers(model, units);
  shape.layers = model.layers;
  print.own_kv_layers = model.layers - model.sharing_layers;
  shape.batches = policy.num_gpu_batches;
  for (int layer = 0; model.sharing_layers > 0 && layer < model.layers; ++layer)
    shape.lends_kv.push_back(model.lends_kv(layer));
  shape.disk_reads_device = sizing.disk_reads_device;
  shape.host_computes = host_computes(model, units, sizing.unit_bytes, policy.experts_on_host);
  shape.unit_home = unit_homes(sizing.unit_bytes, shape, policy.weights);
  // A prompt attends to its own keys and values before they are quantised.
  const DType slot_type = policy.kv_format.dtype.value_or(sizing.kv);
  const bool quantised = is_quantised(slot_type);
  print.types = {sizing.activation, quantised ? sizing.kv : slot_type, sizing.product, quantised};
  print.kv_lender = kv_lenders(model, policy);
  print.kv_shapes = kv_shapes(model, policy, work, slot_type, print.kv_lender);
  for (const std::vector<offload::KvShape>& runs : print.kv_shapes)
    print.kv_sizes.push_back(std::accumulate(runs.begin(), runs.end(), std::uint64_t{0},
                                             [](std::uint64_t sum, const auto& run) { return sum + run.bytes(); }));
  const std::vector<std::size_t> kv_weight = kv_weights(print);
  shape.kv_home = spread(kv_weight, policy.kv.of);
  shape.host_attends = host_attends(shape.kv_home, kv_weight, policy.attention_on_host);
  for (const std::uint64_t bytes : sizing.unpacked_bytes) shape.unpacks.push_back(bytes > 0);

  print.gpu_batch_size = policy.gpu_batch_size;
  print.workspace = workspace_of(model, policy, work, print.types, sizing.rows_that_fill);
  shape.refills = work.resumes || print.workspace.first_tokens < print.workspace.batch_tokens ||
                  (policy.continuous && work.requests && *work.requests > policy.block_size());
  shape.prefill_batches = prefill_batches(shape, work, print.workspace, sizing.rows_that_fill);
  const auto hidden_bytes = [&](std::int64_t rows) {
    return round_up(hidden_layout(model, print.types, rows).bytes, kPage);
  };
  print.prefill_hidden_bytes = hidden_bytes(first_rows(work, print.workspace));
  print.decode_hidden_bytes = hidden_bytes(decode_rows(shape, policy, work, print.workspace));
  std::vector<std::size_t> activation_bytes;
  for (int batch = 0; batch < shape.batches; ++batch) activation_bytes.push_back(print.activation_buffer_bytes(batch));
  shape.activation_home = spread(activation_bytes, policy.activations.of);
  shape.slots = shape.slots_needed(2);
  print.workspace.unpacked = unpacked_layout(shape, sizing.unpacked_bytes);
  print.workspace.host_experts = host_experts_layout(
      model, shape, print.types, later_rows(shape, policy, work, print.workspace), print.workspace.piece_tokens);
  bool gathered_from_disk = false;
  for (std::size_t u = 0; u < units.size(); ++u)
    gathered_from_disk |= shape.unit_home[u] == Tier::disk && units[u].gathered;
  if (!gathered_from_disk) print.workspace.gather = 0;

  std::uint64_t streamed = 0;
  for (std::size_t u = 0; u < units.size(); ++u)
    if (units[u].streamed && shape.unit_home[u] != Tier::device) streamed = std::max(streamed, sizing.unit_bytes[u]);
  print.unit = window(Tier::device, shape.slots.unit, streamed);
  const std::uint64_t moved_kv = largest_moved_kv(print);
  print.kv = window(Tier::device, shape.slots.kv, moved_kv);
  print.activation = window(Tier::device, shape.slots.activation, print.activation_buffer_bytes(0));
  print.unit_staging = window(Tier::host, shape.slots.unit_staging, streamed);
  print.kv_staging = window(Tier::host, shape.slots.kv_staging, moved_kv);
  print.activation_staging = window(Tier::host, shape.slots.activation_staging, print.activation_buffer_bytes(0));
  print.host_kv = window(Tier::host, shape.slots.host_kv, moved_kv);

  const auto count = [&](Tier tier, std::uint64_t bytes) {
    print.bytes[static_cast<std::size_t>(tier)] += round_up(bytes, tier == Tier::disk ? offload::kSpillPage : kPage);
  };
  for (std::size_t u = 0; u < units.size(); ++u)
    if ((shape.unit_home[u] != Tier::disk || !sizing.unit_in_files[u]) && !shape.is_of_host(u))
      count(shape.unit_home[u], sizing.unit_bytes[u]);
  if (any_on(Tier::disk, shape.unit_home)) count(Tier::disk, sizing.copy_bytes);
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int batch = 0; batch < shape.batches; ++batch)
      count(shape.kv_home[shape.kv_index(layer, batch)], print.kv_buffer_bytes(layer));
  for (std::size_t batch = 0; batch < shape.activation_home.size(); ++batch)
    count(shape.activation_home[batch], activation_bytes[batch]);
  const std::array<std::uint64_t, 3> homes = print.bytes;
  for (const Window* w : {&print.unit, &print.kv, &print.activation, &print.unit_staging, &print.kv_staging,
                          &print.activation_staging, &print.host_kv})
    count(w->tier, w->slots * w->slot_bytes);
  count(Tier::device, print.workspace.chunk + print.workspace.output.bytes + print.workspace.unpacked.bytes +
                          print.workspace.exchange_device.bytes);
  count(Tier::host, print.workspace.exchange_host.bytes + print.workspace.host_experts.bytes);
  for (std::size_t u = 0; u < units.size(); ++u)
    if (shape.is_of_host(u)) count(Tier::host, sizing.unit_bytes[u]);
  count(sizing.disk_reads_device ? Tier::device : Tier::host,
        static_cast<std::uint64_t>(shape.batches) * print.workspace.routing);
  count(sizing.disk_reads_device ? Tier::device : Tier::host, print.workspace.gather);
  const std::uint64_t job =
      work.job_bytes + static_cast<std::uint64_t>(work.at_most(policy.block_size())) * work.place_bytes;
  print.job = job - std::min(job, kUnchargedJob);
  count(sizing.disk_reads_device ? Tier::device : Tier::host, print.job);
  count(Tier::device, sizing.device_overhead);
  for (std::size_t tier = 0; tier < 3; ++tier) print.fixed[tier] = print.bytes[tier] - homes[tier];
  return print;
}

}  // namespace weft::policy
