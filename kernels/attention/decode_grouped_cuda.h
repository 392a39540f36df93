// kernels/attention/decode_grouped_cuda.h: decode attention of query heads that share a KV head, on tensor cores.
#pragma once

#include "kernels/attention/decode_choice_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels::cuda::decode {

/// Runs the step if tensor cores can: 16-bit slots, heads of 64 or 128 numbers, and a multiple of 4 query heads
/// for each KV head. Returns whether it did.
bool run_grouped(const DecodeArgs& args, DType dtype, int rows, CudaStream& stream);

}  // namespace weft::kernels::cuda::decode
