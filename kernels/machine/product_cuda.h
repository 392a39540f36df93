// kernels/machine/product_cuda.h: matrix products by cuBLASLt, with what follows them in its epilogue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/machine/cuda.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace weft::kernels::cuda {

/// out[p] = activation(x weight[p]^T + bias[p]) for each part p, or with `accumulate` activation(out[p] + ...). Sums
/// are fp32, and each is rounded once, at the end.
///   x [rows, in] f32, f16 or bf16     weight [cols, in] of x's type     out [rows, cols] f32 or of x's type
///   bias [1, cols] of out's type, or empty
/// The views are those of part 0; the same matrix of the next part begins `step` numbers later.
struct Product {
  ConstView x, weight, bias;
  View out;
  Activation activation = Activation::none;
  bool accumulate = false;
  int parts = 1;
  std::int64_t weight_step = 0, bias_step = 0, out_step = 0;
};

/// One thread at a time uses it.
class ProductLibrary {
 public:
  /// A row's result depends on that row alone if `batch_invariant`: the algorithm of a product then depends on
  /// everything but its number of rows, and sums over `in` are made in one piece.
  explicit ProductLibrary(bool batch_invariant);

  /// Whether an epilogue computes it. That of gelu is the one with tanh.
  static bool has(Activation activation) {
    return activation == Activation::none || activation == Activation::relu || activation == Activation::gelu_tanh;
  }

  /// Queues the product. False, and nothing is queued, if cuBLASLt has no algorithm for it: of some kinds of bias or
  /// parts. A product of one part without bias and activation always has one. `workspace` is device memory, 256-byte
  /// aligned. Throws DeviceError.
  bool run(const Product& product, void* workspace, std::size_t bytes, cudaStream_t stream) const;

 private:
  BlasHandle handle_;
  PreferenceHandle preference_;
  bool batch_invariant_;
};

}  // namespace weft::kernels::cuda
