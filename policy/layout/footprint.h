// policy/layout/footprint.h: the buffers and windows that a policy needs, computed before any is allocated. The run
// allocates exactly these, so that "does it fit?" and "allocate it" cannot disagree.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/kv_layout.h"
#include "policy/layout/host_experts.h"
#include "policy/layout/policy.h"
#include "policy/model/steps.h"
#include "policy/schedule/schedule.h"

namespace weft::policy {

/// Choices that follow each other in the order of a job and are nearly alike.
struct WorkGroup {
  double choices = 0;
  double prompt = 1, generation = 1;  ///< tokens, on average
  double prompts = 0;                 ///< distinct prompts; equal ones are neighbours
  bool continues = false;             ///< the first of them is the last one of the group before
  double prefix = 0;                  ///< tokens of a prompt that neighbours share, on average; 0: none
  double prefixes = 0;                ///< distinct beginnings of prompts; equal ones are neighbours
  bool prefix_continues = false;      ///< the first of them is that of the last prompt of the group before
};

/// So many choices of a job have prompts of so many tokens.
struct PromptLength {
  std::int64_t tokens = 1, choices = 0;
};

/// A job's requests: upper bounds, and how they are distributed.
struct Workload {
  std::optional<std::int64_t> requests = 0;  ///< choices; nullopt: endless, so that blocks are always full
  std::int64_t longest_prompt = 1;           ///< tokens
  LayerSlots slots = 1;                      ///< most slots that a sequence needs (Retention::slots)
  LayerSlots cold_slots = 0;                 ///< likewise, Retention::cold_slots
  std::int64_t longest_generation = 1;
  std::int64_t longest_prefix = 0;  ///< most tokens that neighbours' prompts share and that are computed once
  bool resumes = false;  ///< some sequences start partway through their answers, so prompts join others' decode
  std::vector<WorkGroup> groups = {};             ///< in the order of the job; empty: all are as long as the longest
  std::vector<PromptLength> prompt_lengths = {};  ///< the longest first; empty: all are as long as the longest
  std::uint64_t job_bytes = 0;                    ///< memory outside buffers: the request list and pending answers
  std::uint64_t place_bytes = 0;                  ///< the same per place: its sequence and answer

  /// The number of requests, at most `most`.
  std::int64_t at_most(std::int64_t most) const { return std::min(requests.value_or(most), most); }
  /// The most tokens that the prompts of a batch of `places` choices have together, at least one for each place.
  std::int64_t batch_tokens(std::int64_t places) const;
  std::int64_t most_slots() const;  ///< the most of both kinds together, in any layer and head
  double prompt() const;            ///< tokens, on average
  double generation() const;        ///< likewise
};
/// The workload of equal requests, for a model with these sliding windows (ModelSpec::windows).
Workload alike(std::optional<std::int64_t> requests, std::int64_t prompt, std::int64_t generation,
               const Retention& retention, const std::vector<int>& windows = {});

/// Inputs from the machine and the checkpoint that determine buffer sizes.
struct SizingInputs {
  std::vector<std::uint64_t> unit_bytes;  ///< per unit, in memory
  std::vector<bool> unit_in_files;        ///< per unit: in a file, so it needs no space in the spill file
  std::uint64_t copy_bytes = 0;  ///< size of the packed copy that is needed if any unit's home is the disk; 0: none
  DType kv = DType::f16, activation = DType::f32;  ///< kv: the KV type unless the policy has a KV format
  DType product = DType::f32;                      ///< Backend::product_type()
  std::optional<WeightFormat> weight_format;       ///< as in Policy
  /// Per unit, the bytes of its quantised matrices in 16 bits, for Backend::unpacks_weights(); empty: matrices are not
  /// unpacked.
  std::vector<std::uint64_t> unpacked_bytes = {};
  bool disk_reads_device = false;     ///< Backend::device_is_host_memory()
  std::uint64_t device_overhead = 0;  ///< Backend::device_overhead()
  std::int64_t rows_that_fill = 512;  ///< Backend::rows_that_fill()
};

struct Window {
  Tier tier;
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
};

/// Offsets of the rows that sampling reads. They are matrices [block_size, ...] in one work space.
struct OutputLayout {
  std::uint64_t last_hidden = 0;  ///< [block_size, hidden]
  std::uint64_t last_embed = 0;   ///< [block_size, embed]
  std::uint64_t logits = 0;       ///< [block_size, vocab] f32
  std::uint64_t bytes = 0;
};
/// Offsets of the rows that go to the host to be attended there and, on the host, of the results: matrices
/// [block_size, ...].
struct ExchangeLayout {
  std::uint64_t q = 0, k = 0, v = 0;
  std::uint64_t attended = 0;  ///< on the host only
  std::uint64_t bytes = 0;     ///< 0: the host attends nothing
};

/// Offsets of unpacked units in one work space, by ScheduleShape::unpacked_space().
struct UnpackedLayout {
  std::array<std::uint64_t, ScheduleShape::kUnpackedSpaces> at{}, size{};
  std::uint64_t bytes = 0;  ///< 0: nothing is unpacked
};

/// The space, per chunk of tokens and per block, that the kernels need in addition to the buffers.
struct Workspace {
  std::int64_t batch_tokens = 0;  ///< most tokens that the prompts of a batch have together
  std::int64_t chunk_tokens = 0;  ///< most tokens in a chunk, which holds whole prompts or a part of one that is longer
  std::int64_t piece_tokens = 0;  ///< most tokens in a piece of a chunk: what works row by row goes piece by piece
  std::int64_t prefix_tokens = 0;  ///< most tokens of a shared prefix, which lie beside those of a chunk
  /// Prompt tokens of a batch that may begin in the first sweep, or one prompt if it has more; batch_tokens if all
  /// begin.
  std::int64_t first_tokens = 0;
  /// Prompt tokens of a batch that may join a sweep after the first, not counting the last prompt of them: a quarter of
  /// what its prefill has, so that decode does not stall. A chunk, if the host computes experts, for theirs too.
  std::int64_t admitted_tokens = 0;
  AttentionRows attention;  ///< a prefix's last chunk and one more; a whole prompt, or a prefix and a chunk
  std::uint64_t chunk = 0;  ///< bytes, device: projections, attention and mlp of one chunk
  OutputLayout output;      ///< device
  UnpackedLayout unpacked;  ///< device
  ExchangeLayout exchange_device, exchange_host;
  HostExpertsLayout host_experts;  ///< host
  std::uint64_t gather = 0;        ///< bytes, where disk reads land: gathered rows of tables on disk
  /// Bytes of a batch, on the host: the experts that each row has chosen, and their weights. 0: all layers are dense.
  std::uint64_t routing = 0;
};

/// Job data beyond this many bytes is charged to a memory budget; the first bytes count as the process itself.
constexpr std::uint64_t kUnchargedJob = std::uint64_t{4} << 20;

struct Footprint {
  ScheduleShape shape;  ///< the home of every buffer, window slots
  int gpu_batch_size = 1;
  int own_kv_layers = 0;  ///< those before ModelSpec::sharing_layers
  Types types;            ///< types of the hidden states, of a prompt's keys and values, of rows that enter products
  /// The parts of a KV buffer, one after the other: a range of slots for each of Retention::runs(). [1] if the buffers
  /// of all layers are alike, else [layers].
  std::vector<std::vector<offload::KvShape>> kv_shapes;
  std::vector<std::uint64_t> kv_sizes;  ///< bytes of a KV buffer, as kv_shapes
  /// [layers] The layer in whose KV buffers a layer's keys and values lie (offload::KvShape::lent); empty: each in its
  /// own.
  std::vector<int> kv_lender;
  /// Bytes of the hidden states of a batch in a sweep: of all its prompts, and of what it has after the first sweep.
  std::uint64_t prefill_hidden_bytes = 0, decode_hidden_bytes = 0;
  Window unit, kv, activation, unit_staging, kv_staging, activation_staging, host_kv;
  Workspace workspace;
  std::uint64_t job = 0;  ///< the bytes of requests and answers that are charged
  /// Per tier: all buffers at home there, windows, work space; on the disk the spill and the packed copy.
  std::array<std::uint64_t, 3> bytes{};
  /// The part of `bytes` that is windows, work space, job data and the experts that the host computes.
  std::array<std::uint64_t, 3> fixed{};

  std::uint64_t operator[](Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
  bool layers_alike() const { return kv_shapes.size() == 1; }
  /// The first sublayer that computes the same shapes as each; attentions do if all KV buffers are alike.
  std::vector<std::uint32_t> first_alike() const;
  const std::vector<offload::KvShape>& kv_runs(int layer) const { return entry_of(kv_shapes, layer); }
  std::uint64_t kv_buffer_bytes(int layer) const { return entry_of(kv_sizes, layer); }
  int lender(int layer) const { return kv_lender.empty() ? layer : kv_lender[static_cast<std::size_t>(layer)]; }
  /// The bytes of a KV buffer at home on the host that come to the device in a sweep after the first: all but low rows,
  /// of which the device reads at home what it needs (offload::KvShape::split).
  std::uint64_t kv_bytes_from_host(int layer) const;
  /// Only as many buffers as a pass of prefill has batches hold prompts; each holds its own batch's rows in decode.
  std::uint64_t activation_buffer_bytes(int batch) const;
  std::uint64_t activation_bytes() const;  ///< all buffers of hidden states
  std::uint64_t kv_bytes() const;          ///< all KV buffers
};

/// The fastest tier whose budget is below its footprint, if any.
std::optional<Tier> lacking(const Footprint& print, const Budgets& budgets);

/// Whether the slots of a sequence have all that attention reads of its prompt, on the device: floats, and none
/// evicted.
bool holds_prefixes(const ModelSpec& model, const Policy& policy);

Footprint footprint(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy,
                    const Workload& workload, const SizingInputs& sizing);

}  // namespace weft::policy
