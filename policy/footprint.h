// policy/footprint.h: the blocks and windows that a policy asks for, before any is allocated. The run allocates exactly
// these, so that "does it fit?" and "allocate it" cannot disagree.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "policy/schedule.h"

namespace weft::policy {

/// What a job asks for at its largest.
struct Workload {
  std::int64_t requests = 0;
  std::int64_t longest_prompt = 1;  ///< tokens
  std::int64_t slots = 1;           ///< of the sequence that needs the most (Retention::slots)
  std::int64_t longest_generation = 1;
  double mean_prompt = 0, mean_generation = 0;  ///< tokens; 0: all are as long as the longest

  double prompt() const { return mean_prompt > 0 ? mean_prompt : double(longest_prompt); }
  double generation() const { return mean_generation > 0 ? mean_generation : double(longest_generation); }
};
/// Of requests that are all alike.
Workload alike(std::int64_t requests, std::int64_t prompt, std::int64_t generation, const Retention& retention);

/// What of the machine and the checkpoint sizes depend on.
struct SizingInputs {
  std::vector<std::uint64_t> unit_bytes;  ///< per unit, as it will lie in memory
  std::vector<bool> unit_in_files;        ///< per unit: on disk it needs no space of its own
  DType kv = DType::f16, activation = DType::f32;
  bool disk_reads_device = false;     ///< Backend::device_is_host_memory()
  std::uint64_t device_overhead = 0;  ///< Backend::device_overhead()
};

struct Window {
  Tier tier;
  std::uint32_t slots = 0;
  std::uint64_t slot_bytes = 0;
};

/// Per chunk of tokens and per block, what the kernels need beside the blocks.
struct Workspace {
  std::int64_t batch_tokens = 0;   ///< of a batch of the longest prompts
  std::int64_t chunk_tokens = 0;   ///< a compute op works on whole prompts of at most this many tokens together
  std::uint64_t chunk = 0;         ///< bytes, device: projections, attention, mlp of one chunk
  std::uint64_t rows = 0;          ///< bytes, device: last hidden rows and logits of the whole block
  std::uint64_t rows_out = 0;      ///< bytes, device: queries, keys and values for attention on the host
  std::uint64_t rows_on_host = 0;  ///< bytes, host: the same and the results
  std::uint64_t gather = 0;        ///< bytes, where disk reads land: rows of tables that lie on disk
};

struct Footprint {
  ScheduleShape shape;  ///< homes of all blocks, window slots
  std::uint64_t kv_buffer_bytes = 0, activation_buffer_bytes = 0;
  Window unit, kv, activation, unit_staging, kv_staging, activation_staging, host_kv;
  Workspace workspace;
  std::array<std::uint64_t, 3> bytes{};  ///< per tier: all blocks at home there, windows, workspace; disk: spill
  std::array<std::uint64_t, 3> fixed{};  ///< of these, what no block has its home in

  std::uint64_t operator[](Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
};

/// Bytes of one KV block; the same layout as offload::KvShape.
std::uint64_t kv_buffer_bytes(const ModelSpec& model, std::int64_t sequences, std::int64_t slots, DType dtype,
                              bool scores);

/// The fastest tier that has less than the blocks and windows want, if any.
std::optional<Tier> lacking(const Footprint& print, const Budgets& budgets);

Footprint footprint(const ModelSpec& model, const std::vector<Unit>& units, const Policy& policy,
                    const Workload& workload, const SizingInputs& sizing);

}  // namespace weft::policy
