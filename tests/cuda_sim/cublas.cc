// tests/cuda_sim/cublas.cc: C = alpha op(A) op(B) + beta C, column-major. Every element is one sum along k in its
// order, whatever the sizes. Fast enough for whole models, no faster.
#include "cublas_v2.h"

#include "internal.h"

struct cublasContext {
  cudaStream_t stream = nullptr;
};

using namespace cusim;

namespace {

struct Matrix {  // as it is stored
  char* data;
  cudaDataType type;
  int rows, cols, stride;

  std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
  char* column(std::size_t c) const { return data + c * static_cast<std::size_t>(stride) * element(); }
  std::size_t column_bytes() const { return static_cast<std::size_t>(rows) * element(); }
  Range range() const {
    if (rows == 0 || cols == 0) return {data, 0};
    return {data, static_cast<std::size_t>(column(static_cast<std::size_t>(cols) - 1) - data) + column_bytes()};
  }
};

struct Gemm {
  Matrix a, b, c;
  bool transpose_a, transpose_b;
  std::size_t m, n, k;
  float alpha, beta;
};

template <float (*kNumber)(std::uint16_t)> void widen(const char* raw, std::size_t count, float* to) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, raw + i * sizeof bits, sizeof bits);
    to[i] = kNumber(bits);
  }
}

/// `count` numbers of a column. Memory of the program passes through memcpy, which the sanitizers see; the arithmetic
/// is on copies.
void load(const Matrix& matrix, std::size_t c, std::size_t first, std::size_t count, std::vector<char>& raw,
          float* to) {
  if (count == 0) return;
  std::memcpy(raw.data(), matrix.column(c) + first * matrix.element(), count * matrix.element());
  if (matrix.type == CUDA_R_32F) std::memcpy(to, raw.data(), count * sizeof(float));
  else if (matrix.type == CUDA_R_16F) widen<from_half_bits>(raw.data(), count, to);
  else widen<from_bfloat_bits>(raw.data(), count, to);
}
void store_column(const Matrix& matrix, std::size_t c, std::vector<char>& raw, const float* from) {
  for (std::size_t r = 0; r < static_cast<std::size_t>(matrix.rows); ++r) {
    const std::uint16_t bits = matrix.type == CUDA_R_16F ? half_bits(from[r]) : bfloat_bits(from[r]);
    if (matrix.type == CUDA_R_32F) std::memcpy(&raw[r * 4], &from[r], 4);
    else std::memcpy(&raw[r * 2], &bits, 2);
  }
  std::memcpy(matrix.column(c), raw.data(), matrix.column_bytes());
}

constexpr std::size_t kRows = 16, kCols = 4;  // of C at a time: what registers hold

/// Rows [first, first + kRows) of op(A) as [k, kRows]; beyond its last row: zeros, or what an earlier panel left.
void load_panel(const Gemm& g, std::size_t first, std::vector<char>& raw, std::vector<float>& lines,
                std::vector<float>& panel) {
  const std::size_t count = std::min(kRows, g.m - first);
  if (!g.transpose_a) {
    for (std::size_t l = 0; l < g.k; ++l) load(g.a, l, first, count, raw, &panel[l * kRows]);
    return;
  }
  for (std::size_t r = 0; r < count; ++r) load(g.a, first + r, 0, g.k, raw, &lines[r * g.k]);
  for (std::size_t l = 0; l < g.k; ++l)
    for (std::size_t r = 0; r < kRows; ++r) panel[l * kRows + r] = lines[r * g.k + l];
}
/// op(B) as [n, k], with zeros up to a multiple of kCols.
std::vector<float> columns_of(const Gemm& g) {
  std::vector<float> columns((g.n + kCols - 1) / kCols * kCols * g.k), column(static_cast<std::size_t>(g.b.rows));
  std::vector<char> raw(g.b.column_bytes());
  for (int c = 0; c < g.b.cols; ++c) {
    load(g.b, static_cast<std::size_t>(c), 0, column.size(), raw, column.data());
    for (std::size_t r = 0; r < column.size(); ++r)
      columns[g.transpose_b ? r * g.k + static_cast<std::size_t>(c) : static_cast<std::size_t>(c) * g.k + r] =
          column[r];
  }
  return columns;
}

/// sums[kCols][kRows] = a panel times kCols columns.
[[gnu::no_sanitize("address", "undefined")]] void multiply(const float* panel, const float* columns, std::size_t k,
                                                           float (&sums)[kCols][kRows]) {
  using Rows [[gnu::vector_size(kRows * sizeof(float))]] = float;
  Rows total[kCols] = {};
  for (std::size_t l = 0; l < k; ++l) {
    Rows rows;
    __builtin_memcpy(&rows, panel + l * kRows, sizeof rows);
    for (std::size_t c = 0; c < kCols; ++c) total[c] += rows * columns[c * k + l];
  }
  __builtin_memcpy(&sums, &total, sizeof sums);
}

void run(const Gemm& g) {
  const std::vector<float> columns = columns_of(g);
  const std::size_t rows = (g.m + kRows - 1) / kRows * kRows;
  std::vector<float> panel(g.k * kRows), lines(g.transpose_a ? g.k * kRows : 0);
  std::vector<float> products((g.n + kCols - 1) / kCols * kCols * rows), old(g.m);
  std::vector<char> raw(std::max({g.a.column_bytes(), kRows * g.a.element(), g.c.column_bytes()}));
  for (std::size_t row = 0; row < rows; row += kRows) {
    load_panel(g, row, raw, lines, panel);
    for (std::size_t first = 0; first < g.n; first += kCols) {
      float sums[kCols][kRows];
      multiply(panel.data(), columns.data() + first * g.k, g.k, sums);
      for (std::size_t c = 0; c < kCols; ++c) std::copy_n(sums[c], kRows, &products[(first + c) * rows + row]);
    }
  }
  for (std::size_t c = 0; c < g.n; ++c) {
    float* const column = &products[c * rows];
    if (g.beta != 0) load(g.c, c, 0, g.m, raw, old.data());  // else C may hold NaN
    for (std::size_t r = 0; r < g.m; ++r) column[r] = g.alpha * column[r] + (g.beta != 0 ? g.beta * old[r] : 0.0f);
    store_column(g.c, c, raw, column);
  }
}

}  // namespace

extern "C" {
cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetWorkspace(cublasHandle_t, void* workspace, std::size_t bytes) {
  if (bytes > 0 && where_is({workspace, bytes}) != Where::device) return CUBLAS_STATUS_INVALID_VALUE;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasGetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_ALLOC_FAILED: return "CUBLAS_STATUS_ALLOC_FAILED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "unknown cuBLAS status";
}
const char* cublasGetStatusString(cublasStatus_t status) { return cublasGetStatusName(status); }

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transpose_a, cublasOperation_t transpose_b, int m,
                            int n, int k, const void* alpha, const void* a, cudaDataType a_type, int a_stride,
                            const void* b, cudaDataType b_type, int b_stride, const void* beta, void* c,
                            cudaDataType c_type, int c_stride, cublasComputeType_t compute, cublasGemmAlgo_t) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const bool plain_a = transpose_a == CUBLAS_OP_N, plain_b = transpose_b == CUBLAS_OP_N;
  const Matrix as{static_cast<char*>(const_cast<void*>(a)), a_type, plain_a ? m : k, plain_a ? k : m, a_stride};
  const Matrix bs{static_cast<char*>(const_cast<void*>(b)), b_type, plain_b ? k : n, plain_b ? n : k, b_stride};
  const Matrix cs{static_cast<char*>(c), c_type, m, n, c_stride};
  if (m < 0 || n < 0 || k < 0) return CUBLAS_STATUS_INVALID_VALUE;
  for (const Matrix& x : {as, bs, cs})
    if (x.stride < std::max(1, x.rows)) return CUBLAS_STATUS_INVALID_VALUE;
  if (a_type != b_type || (c_type != a_type && c_type != CUDA_R_32F) || compute == CUBLAS_COMPUTE_16F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (m == 0 || n == 0) return CUBLAS_STATUS_SUCCESS;
  if (!alpha || !beta || !a || !b || !c) return CUBLAS_STATUS_INVALID_VALUE;
  const std::vector<Range> ranges{as.range(), bs.range(), cs.range()};
  for (const Range& range : ranges)
    if (!check_range(range)) return CUBLAS_STATUS_EXECUTION_FAILED;
  // cuBLAS's fast kernels want every column of the operands to begin at a word. A stride may make that impossible.
  const auto off = [](const Matrix& x) {
    const std::size_t stride = static_cast<std::size_t>(x.stride) * x.element();
    return reinterpret_cast<std::uintptr_t>(x.data) % std::min<std::size_t>(16, stride & (~stride + 1)) != 0;
  };
  {
    Lock lock;
    counters().products++;
    counters().slow_products += off(as) || off(bs) || off(cs);
  }
  const Gemm gemm{as,
                  bs,
                  cs,
                  !plain_a,
                  !plain_b,
                  static_cast<std::size_t>(m),
                  static_cast<std::size_t>(n),
                  static_cast<std::size_t>(k),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta)};
  const cudaError_t error = submit(What::gemm, handle->stream, ranges, [gemm] { run(gemm); });
  return error == cudaSuccess && sticky() == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
