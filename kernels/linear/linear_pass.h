// kernels/linear/linear_pass.h: products of floats on a CPU, by the inner loops of an instruction set. Internal to
// linear_cpu.cc.
#pragma once

#include <span>

#include "kernels/linear/linear_kernels.h"
#include "kernels/machine/thread_pool.h"
#include "kernels/ops.h"

namespace weft::kernels {

/// Computes products of one x, which have passed check(), with their numbers as they are or as their levels mean them.
/// All their weights have one type, and levels one table and one size of groups. Weights in pairs of bf16 are seen as
/// numbers of f32, of which a row has half as many as x. Kernels for pairs make such pairs of levels.
void linear_by(const LinearKernels& kernels, std::span<const Linear> products, ThreadPool& pool);

}  // namespace weft::kernels
