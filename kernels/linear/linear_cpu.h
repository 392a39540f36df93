// kernels/linear/linear_cpu.h: the CPU twin of Linear. Internal to kernels/ and the tests.
#pragma once

#include <vector>

#include "kernels/machine/thread_pool.h"
#include "kernels/ops.h"

namespace weft::kernels {

/// The code that multiplies. automatic: the fastest that this processor has. amx: integer products by AMX, others by
/// AVX-512. plain: C++ for processors without AVX2.
enum class LinearPath { automatic, amx, avx512, avx2, plain };

/// Computes `op`, which has passed check(), on all threads of the pool. All paths are batch-invariant and give the same
/// bits.
///
/// Weights are read in place, at any address, and converted in registers (up to 16 rows) or into panels in the cache.
/// The pool keeps the working memory: at most 16 MiB (or about 64 rows of x in fp32, if that is more) for all threads,
/// and 2 MiB for each (or with AMX a tile of int8 weights, if that is more); the plain path needs one row of weights in
/// fp32 for each. Throws UsageError if this processor does not have `path`, CapacityError without memory.
void linear_cpu(const Linear& op, ThreadPool& pool, LinearPath path = LinearPath::automatic);
/// The same of a group, with the same bits: in integer arithmetic x becomes levels once for all products in groups of
/// one size.
void linear_group_cpu(const LinearGroup& op, ThreadPool& pool, LinearPath path = LinearPath::automatic);

/// The paths of this processor, the fastest first; the last is LinearPath::plain.
std::vector<LinearPath> linear_paths();

const char* name_of(LinearPath path);

/// Whether this processor can compute in Arithmetic::bfloat16.
bool multiplies_bf16();
/// Whether it does so by AMX, which adds products in an order of its own.
bool multiplies_by_tiles();

}  // namespace weft::kernels
