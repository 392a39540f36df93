// kernels/linear_cpu.h: the CPU twin of Linear. Internal to kernels/*.cc, the tests and the ceilings.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "kernels/thread_pool.h"

namespace weft::kernels {

/// The code that multiplies. automatic: the fastest that this processor has. library: oneDNN's sgemm over weights
/// converted to fp32, for processors without AVX2.
enum class LinearPath { automatic, avx512, avx2, library };

/// Does `op`, which has passed check(), on all threads of the pool. avx512 and avx2 are batch-invariant and give the
/// same bits; library gives no such promise: there a row may depend on the number of rows.
///
/// Weights are read in place, at any address, and converted in registers (up to 16 rows) or into panels in the
/// cache. The pool keeps the working memory: at most 16 MiB (or about 64 rows of x in fp32, if that is more) for all
/// threads, and 2 MiB for each; the library path 5 MiB for each (or 16 rows of weights in fp32, if that is more).
/// Throws UsageError if this processor does not have `path`, CapacityError without memory.
void linear_cpu(const Linear& op, ThreadPool& pool, LinearPath path = LinearPath::automatic);

/// The paths of this processor, the fastest first; the last is LinearPath::library, but in a build without it.
std::vector<LinearPath> linear_paths();

const char* name_of(LinearPath path);

}  // namespace weft::kernels
