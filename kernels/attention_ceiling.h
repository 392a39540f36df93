// kernels/attention_ceiling.h: how fast host attention goes here, for `weft
// bench --lanes` beside the memory's own ceiling.
#pragma once

#include <cstddef>

#include "kernels/thread_pool.h"

namespace weft::kernels {

/// Bytes of keys and values per second of H2O decode steps over full blocks of fp16 slots: `kv_bytes` of them at least,
/// each read once a step; 1 GiB or more, for a large cache flatters anything smaller. One query head for each KV head,
/// half of the slots heavy. Takes about `seconds` besides filling the memory, wants the machine for itself, and returns
/// the median step. Throws CapacityError without memory.
double measure_decode_attention(ThreadPool& pool, std::size_t kv_bytes, int slots, int head_dim, double seconds);

}  // namespace weft::kernels
