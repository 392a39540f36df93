// kernels/backend/attention_ceiling.h: the measured rate of host attention, which `weft bench --lanes` shows next to
// that of memory.
#pragma once

#include <cstddef>

#include "kernels/machine/thread_pool.h"
#include "kernels/tensor.h"

namespace weft::kernels {

struct DecodeRate {
  double bytes_per_second = 0, heads_per_second = 0;  ///< heads: of a row, each attended once
};

/// How fast H2O decode steps are over full blocks of slots of fp16, int8 or int4. Of bytes count keys and values,
/// `kv_bytes` of them at least, each read once a step; and of each slot 12 bytes more, the position and the score read
/// and the score written.
/// 1 GiB or more, because a large cache would flatter less. One query head for each KV head, half of the slots
/// heavy. Takes about `seconds` plus the time to fill the memory; needs the machine to itself; returns the median step.
/// Throws CapacityError without memory.
DecodeRate measure_decode_attention(ThreadPool& pool, std::size_t kv_bytes, int slots, int head_dim, DType dtype,
                                    double seconds);

}  // namespace weft::kernels
