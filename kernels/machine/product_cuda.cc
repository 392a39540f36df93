#include "kernels/machine/product_cuda.h"

#include <algorithm>
#include <string>

#include "kernels/error.h"

namespace weft::kernels::cuda {
namespace {

/// The rows whose algorithm serves all numbers of rows, in a batch-invariant product: a decode step of a large batch,
/// or a short prompt.
constexpr std::int64_t kRowsOfChoice = 256;

cudaDataType_t cuda_type(DType dtype) {
  return dtype == DType::f16 ? CUDA_R_16F : dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

using Description = Owner<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owner<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;

template <class T> void set(const Description& of, cublasLtMatmulDescAttributes_t attribute, T value) {
  check(cublasLtMatmulDescSetAttribute(of.get(), attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
}
template <class T> void set(const Layout& of, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  check(cublasLtMatrixLayoutSetAttribute(of.get(), attribute, &value, sizeof value),
        "cublasLtMatrixLayoutSetAttribute");
}
template <class T> void set(const PreferenceHandle& of, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
  check(cublasLtMatmulPreferenceSetAttribute(of.get(), attribute, &value, sizeof value),
        "cublasLtMatmulPreferenceSetAttribute");
}

std::uint32_t epilogue_of(const Product& p) {
  const bool bias = static_cast<bool>(p.bias);
  if (p.activation == Activation::relu) return bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
  if (p.activation == Activation::gelu_tanh) return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
  return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// A row-major matrix [rows, cols] is a column-major one of `cols` rows.
Layout layout(const ConstView& matrix, std::int64_t rows, int parts, std::int64_t step) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, cuda_type(matrix.dtype), static_cast<std::uint64_t>(matrix.cols),
                                   static_cast<std::uint64_t>(rows), std::max(matrix.stride, matrix.cols)),
        "cublasLtMatrixLayoutCreate");
  Layout owned(made);
  if (parts > 1) {
    set(owned, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, std::int32_t{parts});
    set(owned, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, step);
  }
  return owned;
}

/// The largest power of two that divides the address of every row of every part, at most a word of 16 bytes, which is
/// all that kernels ask for. What the first row's place happens to be a multiple of beyond that may not change an
/// answer: a row is the first in one call and the third in another.
std::uint32_t alignment_of(const ConstView& matrix, std::int64_t step) {
  const auto bytes = [&](std::int64_t numbers) { return static_cast<std::uintptr_t>(numbers) * size_of(matrix.dtype); };
  const auto bits = reinterpret_cast<std::uintptr_t>(matrix.data) | bytes(std::max(matrix.stride, matrix.cols)) |
                    bytes(step) | std::uintptr_t{16};
  return static_cast<std::uint32_t>(bits & (~bits + 1));
}

}  // namespace

ProductLibrary::ProductLibrary(bool batch_invariant) : batch_invariant_(batch_invariant) {
  cublasLtHandle_t handle = nullptr;
  check(cublasLtCreate(&handle), "cublasLtCreate");
  handle_ = BlasHandle(handle);
  cublasLtMatmulPreference_t preference = nullptr;
  check(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate");
  preference_ = PreferenceHandle(preference);
  // Parts of a sum are added in fp32, never in the type of the result.
  set(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(batch_invariant ? CUBLASLT_REDUCTION_SCHEME_NONE
                                                 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
}

bool ProductLibrary::run(const Product& p, void* workspace, std::size_t bytes, cudaStream_t stream) const {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
  const Description description(made);
  // In column-major terms: out^T [cols, rows] = weight [cols, in] x^T [in, rows].
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p));
  if (p.bias) {
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.data);
    if (p.parts > 1) set(description, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.bias_step);
  }
  const Layout a = layout(p.weight, p.weight.rows, p.parts, p.weight_step), b = layout(p.x, p.x.rows, p.parts, 0),
               d = layout(p.out, p.out.rows, p.parts, p.out_step);
  set(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{bytes});
  set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of(p.weight, p.weight_step));
  set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of(p.x, 0));
  set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of(p.out, p.out_step));
  set(preference_, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of(p.out, p.out_step));

  cublasLtMatmulHeuristicResult_t choice = {};
  int found = 0;
  const auto choose = [&](const Layout& rows_of_x, const Layout& rows_of_out) {
    return cublasLtMatmulAlgoGetHeuristic(handle_.get(), description.get(), a.get(), rows_of_x.get(), rows_of_out.get(),
                                          rows_of_out.get(), preference_.get(), 1, &choice, &found);
  };
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (batch_invariant_) {
    status = choose(layout(p.x, kRowsOfChoice, p.parts, 0), layout(p.out, kRowsOfChoice, p.parts, p.out_step));
    cublasLtMatmulHeuristicResult_t checked = {};
    if (status == CUBLAS_STATUS_SUCCESS && found > 0)
      status = cublasLtMatmulAlgoCheck(handle_.get(), description.get(), a.get(), b.get(), d.get(), d.get(),
                                       &choice.algo, &checked);
  } else {
    status = choose(b, d);
  }
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) {
    if (p.bias || p.activation != Activation::none || p.parts > 1) return false;
    status = CUBLAS_STATUS_NOT_SUPPORTED;
  }
  check(status, "cublasLtMatmulAlgoGetHeuristic");
  const float alpha = 1, beta = p.accumulate ? 1.0f : 0.0f;
  check(cublasLtMatmul(handle_.get(), description.get(), &alpha, p.weight.data, a.get(), p.x.data, b.get(), &beta,
                       p.out.data, d.get(), p.out.data, d.get(), &choice.algo, workspace, bytes, stream),
        "cublasLtMatmul");
  return true;
}

}  // namespace weft::kernels::cuda
