// kernels/linear/linear_quantised_cuda.h: products of few rows with quantised weights as they lie, on a GPU.
#pragma once

#include "kernels/machine/ops_cuda.h"

namespace weft::kernels::cuda {

constexpr int kPackedRows = 64;  ///< rows of x at most

/// Runs a product whose weights are quantised. Numbers are those that UnpackWeights writes; the order of sums depends
/// on shapes and the device alone. Returns false, and does nothing, in a batch-invariant stream, if x has more than
/// kPackedRows rows, if whole groups do not fill 32 columns, or if x and the sums of the parts do not fit the
/// workspace.
bool multiply_packed(const Linear& op, CudaStream& stream);

}  // namespace weft::kernels::cuda
