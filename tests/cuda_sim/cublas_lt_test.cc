// tests/cuda_sim/cublas_lt_test.cc: the simulator's cublasLt.
#include <cublasLt.h>

#include <cmath>
#include <vector>

#include "kernels/tensor.h"
#include "tests/cuda_sim/support.h"
#include "tests/support/numbers.h"

using namespace weft::test;
using weft::bf16;
using weft::f16;

namespace {

/// One call of cublasLtMatmul, with what it takes.
struct Matmul {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatrixLayout_t layout[4] = {};  // A, B, C, D

  Matmul() {
    REQUIRE(cublasLtCreate(&handle) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS);
    for (const auto attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      set(attribute, std::uint32_t{2});
  }
  Matmul(const Matmul&) = delete;
  ~Matmul() {
    for (const auto one : layout)
      if (one) CHECK(cublasLtMatrixLayoutDestroy(one) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulPreferenceDestroy(preference) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtMatmulDescDestroy(desc) == CUBLAS_STATUS_SUCCESS);
    CHECK(cublasLtDestroy(handle) == CUBLAS_STATUS_SUCCESS);
  }
  template <class T> void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    REQUIRE(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
  }
  template <class T> void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    REQUIRE(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value) == CUBLAS_STATUS_SUCCESS);
  }
  void set_layout(int which, cudaDataType type, int rows, int cols, int stride, int count = 1, std::int64_t apart = 0) {
    if (layout[which]) CHECK(cublasLtMatrixLayoutDestroy(layout[which]) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatrixLayoutCreate(&layout[which], type, static_cast<std::uint64_t>(rows),
                                       static_cast<std::uint64_t>(cols), stride) == CUBLAS_STATUS_SUCCESS);
    const std::int32_t matrices = count;
    REQUIRE(cublasLtMatrixLayoutSetAttribute(layout[which], CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &matrices,
                                             sizeof matrices) == CUBLAS_STATUS_SUCCESS);
    REQUIRE(cublasLtMatrixLayoutSetAttribute(layout[which], CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &apart,
                                             sizeof apart) == CUBLAS_STATUS_SUCCESS);
  }
  cublasStatus_t choose(cublasLtMatmulHeuristicResult_t& chosen) {
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, desc, layout[0], layout[1], layout[2],
                                                                 layout[3], preference, 1, &chosen, &found);
    if (status == CUBLAS_STATUS_SUCCESS) REQUIRE(found == 1);
    return status;
  }
  cublasStatus_t run(float alpha, const void* a, const void* b, float beta, const void* c, void* d,
                     const Stream& stream, void* workspace = nullptr, std::size_t bytes = 0) {
    cublasLtMatmulHeuristicResult_t chosen = {};
    const cublasStatus_t status = choose(chosen);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
    return cublasLtMatmul(handle, desc, &alpha, a, layout[0], b, layout[1], &beta, c, layout[2], d, layout[3],
                          &chosen.algo, workspace, bytes, stream.handle);
  }
};

}  // namespace

TEST_CASE("cublasLtMatmul multiplies all transpositions, and leaves NaN where beta is 0 out") {
  const bool transpose_a = GENERATE(false, true), transpose_b = GENERATE(false, true);
  const float alpha = 0.5f, beta = GENERATE(0.0f, 2.0f);
  const int m = 37, n = 6, k = 51, a_stride = (transpose_a ? k : m) + 3, b_stride = (transpose_b ? n : k) + 1,
            c_stride = m + 2;
  const auto at = [](int stride, int row, int col) { return static_cast<std::size_t>(stride * col + row); };
  const std::vector<float> a = normal(60 * 60, 6), b = normal(60 * 60, 7);
  std::vector<float> c = normal(static_cast<std::size_t>(c_stride * n), 8);
  if (beta == 0) c[3] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<__half> half_a(a.begin(), a.end()), half_b(b.begin(), b.end());
  const Device<__half> device_a(half_a), device_b(half_b);
  const Device<float> device_c(c);
  const Stream stream;
  Matmul matmul;
  matmul.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N});
  matmul.set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N});
  matmul.set_layout(0, CUDA_R_16F, transpose_a ? k : m, transpose_a ? m : k, a_stride);
  matmul.set_layout(1, CUDA_R_16F, transpose_b ? n : k, transpose_b ? k : n, b_stride);
  const auto multiply = [&](int rows) {
    for (const int which : {2, 3}) matmul.set_layout(which, CUDA_R_32F, rows, n, c_stride);
    return matmul.run(alpha, device_a.data, device_b.data, beta, device_c.data, device_c.data, stream);
  };
  CHECK(multiply(m + 1) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(m) == CUBLAS_STATUS_SUCCESS);
  CHECK(stream.synchronize() == cudaSuccess);
  const std::vector<float> got = device_c.fetch();
  const auto value_a = [&](int row, int l) {
    return double{__half2float(half_a[transpose_a ? at(a_stride, l, row) : at(a_stride, row, l)])};
  };
  const auto value_b = [&](int l, int col) {
    return double{__half2float(half_b[transpose_b ? at(b_stride, col, l) : at(b_stride, l, col)])};
  };
  for (int row = 0; row < c_stride; ++row)
    for (int col = 0; col < n; ++col) {
      const std::size_t i = at(c_stride, row, col);
      double expected = beta != 0 ? double{beta} * c[i] : 0.0;
      for (int l = 0; l < k; ++l) expected += alpha * value_a(row, l) * value_b(l, col);
      if (row < m) CHECK(got[i] == Approx(expected).margin(1e-4));
      else CHECK(got[i] == c[i]);  // between the columns
    }
  cusim::fail_nth(cusim::What::gemm, 1, cudaErrorLaunchFailure);
  CHECK(multiply(m) == CUBLAS_STATUS_EXECUTION_FAILED);
  CHECK(std::string(cublasLtGetStatusString(CUBLAS_STATUS_EXECUTION_FAILED)) == "CUBLAS_STATUS_EXECUTION_FAILED");
  cusim::reset();
}

TEST_CASE(
    "cublasLtMatmul's epilogue adds a bias along D's rows, applies an activation and then rounds, matrix by matrix") {
  const auto [epilogue, activated] = GENERATE(table<cublasLtEpilogue_t, double (*)(double)>(
      {{CUBLASLT_EPILOGUE_BIAS, [](double x) { return x; }},
       {CUBLASLT_EPILOGUE_RELU_BIAS, [](double x) { return std::max(x, 0.0); }},
       {CUBLASLT_EPILOGUE_GELU_BIAS,
        [](double x) { return 0.5 * x * (1 + std::tanh(0.7978845608 * (x + 0.044715 * x * x * x))); }}}));
  constexpr int m = 16, n = 5, k = 24, count = 3;
  const std::vector<float> a = normal(count * m * k, 1), b = normal(n * k, 2), bias = normal(count * m, 3);
  const std::vector<__half> half_a(a.begin(), a.end()), half_b(b.begin(), b.end()), half_bias(bias.begin(), bias.end());
  const Device<__half> device_a(half_a), device_b(half_b), device_bias(half_bias), d(count * m * n);
  const Stream stream;
  Matmul matmul;
  matmul.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  matmul.set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<std::uint32_t>(epilogue));
  matmul.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(device_bias.data));
  matmul.set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, std::int64_t{m});
  matmul.set_layout(0, CUDA_R_16F, k, m, k, count, m * k);
  matmul.set_layout(1, CUDA_R_16F, k, n, k, count, 0);  // one B for all
  for (const int which : {2, 3}) matmul.set_layout(which, CUDA_R_16F, m, n, m, count, m * n);
  CHECK(matmul.run(1, device_a.data, device_b.data, 0, d.data, d.data, stream) == CUBLAS_STATUS_SUCCESS);
  CHECK(stream.synchronize() == cudaSuccess);
  const std::vector<__half> got = d.fetch();
  for (int i = 0; i < count; ++i)
    for (int col = 0; col < n; ++col)
      for (int row = 0; row < m; ++row) {
        double sum = __half2float(half_bias[static_cast<std::size_t>(i * m + row)]);
        for (int l = 0; l < k; ++l)
          sum += double{__half2float(half_a[static_cast<std::size_t>((i * m + row) * k + l)])} *
                 double{__half2float(half_b[static_cast<std::size_t>(col * k + l)])};
        CHECK(__half2float(got[static_cast<std::size_t>((i * n + col) * m + row)]) ==
              Approx(activated(sum)).epsilon(1e-3).margin(1e-5));
      }
  // A bias has D's type.
  matmul.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{CUDA_R_32F});
  CHECK(matmul.run(1, device_a.data, device_b.data, 0, d.data, d.data, stream) == CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_CASE("cublasLt's heuristic keeps to the workspace, the reductions and the alignment that it is told") {
  const Restore restore;
  cusim::config().products_by_shape = true;
  constexpr int m = 8, n = 4, k = 64;
  const std::vector<float> numbers = normal(m * k + 8, 1);
  const Device<float> a(numbers), b(numbers), d(m * n), workspace(4 * m * n);
  const Stream stream;
  Matmul matmul;
  matmul.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
  matmul.set_layout(0, CUDA_R_32F, k, m, k), matmul.set_layout(1, CUDA_R_32F, k, n, k);
  for (const int which : {2, 3}) matmul.set_layout(which, CUDA_R_32F, m, n, m);
  cublasLtMatmulHeuristicResult_t chosen = {};
  CHECK(matmul.choose(chosen) == CUBLAS_STATUS_SUCCESS);
  CHECK(chosen.workspaceSize == 0);  // by default there is none
  matmul.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1 << 20});
  CHECK(matmul.choose(chosen) == CUBLAS_STATUS_SUCCESS);
  CHECK(chosen.workspaceSize == 2 * m * n * sizeof(float));
  const auto run = [&](const float* from, std::size_t bytes) {
    return matmul.run(1, from, b.data, 0, d.data, d.data, stream, workspace.data, bytes);
  };
  CHECK(run(a.data, 16) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(run(a.data, chosen.workspaceSize) == CUBLAS_STATUS_SUCCESS);
  CHECK(stream.synchronize() == cudaSuccess);
  const std::vector<float> split = d.fetch();
  matmul.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
  CHECK(matmul.choose(chosen) == CUBLAS_STATUS_SUCCESS);
  CHECK(chosen.workspaceSize == 0);
  CHECK(run(a.data, 0) == CUBLAS_STATUS_SUCCESS);
  CHECK(stream.synchronize() == cudaSuccess);
  CHECK(split != d.fetch());  // another order of the sums
  for (const auto attribute : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                               CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    matmul.set(attribute, std::uint32_t{16});
  CHECK(run(a.data, 0) == CUBLAS_STATUS_SUCCESS);
  CHECK(run(a.data + 1, 0) == CUBLAS_STATUS_INVALID_VALUE);
}
