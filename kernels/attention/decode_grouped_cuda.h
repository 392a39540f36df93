// kernels/attention/decode_grouped_cuda.h: decode attention where several query heads share a KV head, on tensor cores.
#pragma once

#include "kernels/attention/decode_choice_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels::cuda::decode {

/// Runs the step if tensor cores do it: 16-bit slots, heads of 64 or 128 numbers in groups of 4 or 8, and blocks enough
/// to fill the device.
bool run_grouped(const DecodeArgs& args, DType dtype, int rows, CudaStream& stream);

}  // namespace weft::kernels::cuda::decode
