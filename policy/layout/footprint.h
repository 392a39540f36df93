// policy/layout/footprint.h: the blocks and windows that a policy needs, computed before any is allocated. The run
// allocates exactly these, so that "does it fit?" and "allocate it" cannot disagree.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "offload/kv_layout.h"
#include "policy/layout/policy.h"
#include "policy/model/steps.h"
#include "policy/schedule/schedule.h"

namespace weft::policy {

/// The largest that a job's requests can be.
struct Workload {
  std::optional<std::int64_t> requests = 0;  ///< choices; nothing: without end, so that blocks are always full
  std::int64_t longest_prompt = 1;           ///< tokens
  LayerSlots slots = 1;                      ///< of the sequence that needs the most (Retention::slots)
  std::int64_t longest_generation = 1;
  bool resumes = false;  ///< some begin amid their answers, so that prompts join sweeps in which others decode
  double mean_prompt = 0, mean_generation = 0;  ///< tokens; 0: all are as long as the longest
  std::uint64_t job_bytes = 0;    ///< of memory for what is no buffer: the list of requests, answers on their way out
  std::uint64_t place_bytes = 0;  ///< and for the sequence in each place, and its answer

  /// The requests, or `most` where there are more.
  std::int64_t at_most(std::int64_t most) const { return std::min(requests.value_or(most), most); }
  double prompt() const { return mean_prompt > 0 ? mean_prompt : double(longest_prompt); }
  double generation() const { return mean_generation > 0 ? mean_generation : double(longest_generation); }
};
/// Of requests that are all alike.
Workload alike(std::optional<std::int64_t> requests, std::int64_t prompt, std::int64_t generation,
               const Retention& retention);

/// What of the machine and the checkpoint sizes depend on.
struct SizingInputs {
  std::vector<std::uint64_t> unit_bytes;           ///< per unit, in memory
  std::vector<bool> unit_in_files;                 ///< per unit: on disk it needs no space of its own
  DType kv = DType::f16, activation = DType::f32;  ///< kv: what a policy without a KV format means
  std::optional<WeightFormat> weight_format;       ///< as in Policy
  /// Per unit, of its quantised matrices in 16 bits, for Backend::unpacks_weights(); empty: they are used as they are.
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

/// Where the rows are from which a block's tokens are chosen: offsets in one work space, of matrices [block_size, ...].
struct OutputLayout {
  std::uint64_t last_hidden = 0;  ///< [block_size, hidden]
  std::uint64_t last_embed = 0;   ///< [block_size, embed]
  std::uint64_t logits = 0;       ///< [block_size, vocab] f32
  std::uint64_t bytes = 0;
};
/// Where the rows are that go to the host to be attended there, and on the host their results: offsets of
/// matrices [block_size, ...].
struct ExchangeLayout {
  std::uint64_t q = 0, k = 0, v = 0;
  std::uint64_t attended = 0;  ///< on the host only
  std::uint64_t bytes = 0;     ///< 0: the host attends nothing
};

/// Where units are while they are unpacked: offsets in one work space, by ScheduleShape::unpacked_space().
struct UnpackedLayout {
  std::array<std::uint64_t, ScheduleShape::kUnpackedSpaces> at{}, size{};
  std::uint64_t bytes = 0;  ///< 0: nothing is unpacked
};

/// Per chunk of tokens and per block, what the kernels need in addition to the buffers.
struct Workspace {
  std::int64_t batch_tokens = 0;  ///< of a batch of the longest prompts
  std::int64_t chunk_tokens = 0;  ///< a compute op works on whole prompts of at most this many tokens together
  std::uint64_t chunk = 0;        ///< bytes, device: projections, attention, mlp of one chunk
  OutputLayout output;            ///< device
  UnpackedLayout unpacked;        ///< device
  ExchangeLayout exchange_device, exchange_host;
  std::uint64_t gather = 0;  ///< bytes, where disk reads land: rows of tables that are on disk
};

/// What a job needs besides buffers is charged to a memory budget from here on; less belongs to the process itself.
constexpr std::uint64_t kUnchargedJob = std::uint64_t{4} << 20;

struct Footprint {
  ScheduleShape shape;  ///< homes of all blocks, window slots
  int gpu_batch_size = 1;
  Types types;  ///< of the hidden states and of a prompt's keys and values
  /// What lies in a KV buffer, one after the other: a block of slots for each of Retention::runs(). [1] where the
  /// buffers of all layers are alike, else [layers].
  std::vector<std::vector<offload::KvShape>> kv_shapes;
  std::uint64_t activation_buffer_bytes = 0;
  Window unit, kv, activation, unit_staging, kv_staging, activation_staging, host_kv;
  Workspace workspace;
  std::uint64_t job = 0;                 ///< requests and answers, as far as they are charged
  std::array<std::uint64_t, 3> bytes{};  ///< per tier: all blocks at home there, windows, workspace; disk: spill
  std::array<std::uint64_t, 3> fixed{};  ///< of these, what is not the home of a block

  std::uint64_t operator[](Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
  bool layers_alike() const { return kv_shapes.size() == 1; }
  const std::vector<offload::KvShape>& kv_runs(int layer) const { return entry_of(kv_shapes, layer); }
  std::uint64_t kv_buffer_bytes(int layer) const;
  std::uint64_t kv_bytes() const;  ///< of all buffers
};

/// The fastest tier that has less than the blocks and windows need, if any.
std::optional<Tier> lacking(const Footprint& print, const Budgets& budgets);

Footprint footprint(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy,
                    const Workload& workload, const SizingInputs& sizing);

}  // namespace weft::policy
