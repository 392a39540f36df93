// tests/cuda_sim/include/cusim_tensor.h: what kernels/machine/tensor_core_cuda.h makes of PTX, with the layouts of
// the PTX ISA.
#pragma once

#include "cuda_runtime.h"

namespace cusim {

extern constinit thread_local std::uint64_t bank_conflicts;  // of load_tiles(), in this grid

/// mma.m16n8k16 with sums in fp32.
void multiply_fragments(float* sums, const std::uint32_t* a, const std::uint32_t* b, bool bfloat, Location at = {});
/// ldmatrix.x4 of 16-bit numbers.
void load_fragments(std::uint32_t* to, const void* row, bool transposed, Location at = {});
/// cp.async of 16 bytes. The bytes arrive when the thread waits for them and no sooner, so that a missing wait shows.
void start_copy(void* to, const void* from, bool present, Location at = {});
/// cp.async.wait_all.
void finish_copies();

}  // namespace cusim
