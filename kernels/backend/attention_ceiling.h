// kernels/backend/attention_ceiling.h: the measured rate of host attention, which `weft bench --lanes` shows next to
// that of memory.
#pragma once

#include <cstddef>

#include "kernels/machine/thread_pool.h"
#include "kernels/tensor.h"

namespace weft::kernels {

struct DecodeRate {
  double bytes_per_second = 0, heads_per_second = 0;  ///< heads: a step attends each KV head of each row once
};

/// Measures H2O decode steps over full slots of fp16, int8 or int4. The bytes are those of keys and values, at least
/// `kv_bytes`, each read once a step, and 12 bytes more per slot: the position and the score read, and the score
/// written. `kv_bytes` should be 1 GiB or more, so that a large cache flatters the result less. There is one query head
/// for each KV head, and half of the slots are heavy. Takes about `seconds` plus the time to fill the memory, and needs
/// the machine to itself. Returns the rate of the median step. Throws CapacityError without memory. With `read`, slots
/// are split, with coarse rows of 4 and 2 bits, and a step reads so many tokens with all their bits (only int8); the
/// bytes are still those of all rows.
DecodeRate measure_decode_attention(ThreadPool& pool, std::size_t kv_bytes, int slots, int head_dim, DType dtype,
                                    double seconds, int read = 0);

}  // namespace weft::kernels
