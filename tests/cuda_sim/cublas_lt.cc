// tests/cuda_sim/cublas_lt.cc: D = epilogue(alpha op(A) op(B) + beta C), column-major, for one or several matrices at
// equal distances. Fast enough for whole models, no faster.
//
// Every element is a sum along k in its order, whatever the sizes, unless Config::products_by_shape asks for the habits
// of the real library: then the heuristic's choice depends on the shape, and the order of a sum on the choice.
#include "cublasLt.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "internal.h"

struct cublasLtContext {};
struct cublasLtMatrixLayoutOpaque_t {
  cudaDataType type;
  std::uint64_t rows, cols;
  std::int64_t stride;
  std::int32_t count = 1;
  std::int64_t apart = 0;
};
struct cublasLtMatmulDescOpaque_t {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int64_t bias_apart = 0;
  std::int32_t bias_type = -1;
};
struct cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t workspace_bytes = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};  // of A, B, C, D
};

using namespace cusim;

namespace {

struct Matrix {  // as it is stored; `count` of them, `apart` elements from one to the next
  char* data;
  cudaDataType type;
  int rows, cols;
  std::int64_t stride;
  int count = 1;
  std::int64_t apart = 0;

  std::size_t element() const { return type == CUDA_R_32F ? 4 : 2; }
  char* column(std::size_t c) const { return data + static_cast<std::int64_t>(c) * stride * bytes(); }
  std::size_t column_bytes() const { return static_cast<std::size_t>(rows) * element(); }
  Matrix number(int i) const {
    Matrix one = *this;
    one.data += i * apart * bytes(), one.count = 1;
    return one;
  }
  /// The bytes from the first matrix to the end of the last.
  Range range() const {
    if (rows == 0 || cols == 0) return {data, 0};
    const std::int64_t others = (count - 1) * apart * bytes();
    char* const first = data + std::min<std::int64_t>(0, others);
    return {first, static_cast<std::size_t>(column(static_cast<std::size_t>(cols) - 1) - data) + column_bytes() +
                       static_cast<std::size_t>(std::abs(others))};
  }

 private:
  std::int64_t bytes() const { return static_cast<std::int64_t>(element()); }
};

/// What the heuristic chooses, in the words of cublasLtMatmulAlgo_t::data.
struct Algorithm {
  std::uint64_t mark = kMark;
  std::uint64_t step = 0;       // sums of so many products are made apart and added up; 0: all in one
  std::uint64_t splits = 1;     // parts of k, each summed by itself
  std::uint64_t alignment = 1;  // that every matrix must have

  static constexpr std::uint64_t kMark = 0x517;
  cublasLtMatmulAlgo_t words() const { return {{mark, step, splits, alignment, 0, 0, 0, 0}}; }
  static Algorithm of(const cublasLtMatmulAlgo_t& a) { return {a.data[0], a.data[1], a.data[2], a.data[3]}; }
};

struct Gemm {
  Matrix a, b, c, d, bias;
  bool transpose_a, transpose_b;
  std::size_t m, n, k;
  float alpha, beta;
  std::uint32_t epilogue;
  Algorithm algorithm;
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

/// sums[kCols][kRows] += a panel times kCols columns, over [first, last) of k.
[[gnu::no_sanitize("address", "undefined")]] void multiply(const float* panel, const float* columns, std::size_t k,
                                                           std::size_t first, std::size_t last,
                                                           float (&sums)[kCols][kRows]) {
  using Rows [[gnu::vector_size(kRows * sizeof(float))]] = float;
  Rows total[kCols] = {}, before[kCols];
  for (std::size_t l = first; l < last; ++l) {
    Rows rows;
    __builtin_memcpy(&rows, panel + l * kRows, sizeof rows);
    for (std::size_t c = 0; c < kCols; ++c) total[c] += rows * columns[c * k + l];
  }
  __builtin_memcpy(&before, &sums, sizeof sums);
  for (std::size_t c = 0; c < kCols; ++c) before[c] += total[c];
  __builtin_memcpy(&sums, &before, sizeof sums);
}

float with_epilogue(std::uint32_t epilogue, float x) {
  if (epilogue & CUBLASLT_EPILOGUE_RELU) return std::max(x, 0.0f);
  if (epilogue & CUBLASLT_EPILOGUE_GELU)
    return 0.5f * x * (1.0f + std::tanh(0.79788456f * (x + 0.044715f * x * x * x)));
  return x;
}

void run(const Gemm& g) {
  const std::vector<float> columns = columns_of(g);
  const std::size_t rows = (g.m + kRows - 1) / kRows * kRows;
  std::vector<float> panel(g.k * kRows), lines(g.transpose_a ? g.k * kRows : 0);
  std::vector<float> products((g.n + kCols - 1) / kCols * kCols * rows), old(g.m), bias(g.m);
  std::vector<char> raw(
      std::max({g.a.column_bytes(), kRows * g.a.element(), g.c.column_bytes(), g.d.column_bytes(), g.m * 4}));
  const std::size_t part = (g.k + g.algorithm.splits - 1) / g.algorithm.splits;
  const std::size_t step = g.algorithm.step ? std::min<std::size_t>(g.algorithm.step, part) : part;
  for (std::size_t row = 0; row < rows; row += kRows) {
    load_panel(g, row, raw, lines, panel);
    for (std::size_t first = 0; first < g.n; first += kCols) {
      float all[kCols][kRows] = {};
      for (std::size_t begin = 0; begin < g.k; begin += part) {
        float sums[kCols][kRows] = {};
        const std::size_t end = std::min(g.k, begin + part);
        for (std::size_t l = begin; l < end; l += step)
          multiply(panel.data(), columns.data() + first * g.k, g.k, l, std::min(end, l + step), sums);
        for (std::size_t c = 0; c < kCols; ++c)
          for (std::size_t r = 0; r < kRows; ++r) all[c][r] += sums[c][r];
      }
      for (std::size_t c = 0; c < kCols; ++c) std::copy_n(all[c], kRows, &products[(first + c) * rows + row]);
    }
  }
  if (g.epilogue & CUBLASLT_EPILOGUE_BIAS) load(g.bias, 0, 0, g.m, raw, bias.data());
  for (std::size_t c = 0; c < g.n; ++c) {
    float* const column = &products[c * rows];
    if (g.beta != 0) load(g.c, c, 0, g.m, raw, old.data());  // else C may hold NaN
    for (std::size_t r = 0; r < g.m; ++r) {
      const float sum = g.alpha * column[r] + (g.beta != 0 ? g.beta * old[r] : 0.0f);
      column[r] = with_epilogue(g.epilogue, g.epilogue & CUBLASLT_EPILOGUE_BIAS ? sum + bias[r] : sum);
    }
    store_column(g.d, c, raw, column);
  }
}

template <class T> cublasStatus_t set(T& to, const void* value, std::size_t bytes) {
  if (!value || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, value, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

Matrix matrix(const void* data, const cublasLtMatrixLayoutOpaque_t& layout) {
  return {static_cast<char*>(const_cast<void*>(data)),
          layout.type,
          static_cast<int>(layout.rows),
          static_cast<int>(layout.cols),
          layout.stride,
          layout.count,
          layout.apart};
}

/// Whether op(A) op(B) has D's shape, C is as D, and the library can do it. `bias` alone is read of pointers, as
/// NVIDIA's own does.
cublasStatus_t examine(const cublasLtMatmulDescOpaque_t& desc, const cublasLtMatrixLayoutOpaque_t& a,
                       const cublasLtMatrixLayoutOpaque_t& b, const cublasLtMatrixLayoutOpaque_t& c,
                       const cublasLtMatrixLayoutOpaque_t& d) {
  const bool plain_a = desc.transpose_a == CUBLAS_OP_N, plain_b = desc.transpose_b == CUBLAS_OP_N;
  const std::uint64_t k = plain_a ? a.cols : a.rows;
  if ((plain_a ? a.rows : a.cols) != d.rows || (plain_b ? b.cols : b.rows) != d.cols ||
      (plain_b ? b.rows : b.cols) != k)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (c.rows != d.rows || c.cols != d.cols || c.type != d.type) return CUBLAS_STATUS_INVALID_VALUE;
  for (const auto* x : {&a, &b, &c, &d})
    if (x->rows == 0 || x->cols == 0 || x->stride < static_cast<std::int64_t>(x->rows) || x->count != d.count)
      return CUBLAS_STATUS_INVALID_VALUE;
  if (a.type != b.type || (d.type != a.type && d.type != CUDA_R_32F) || desc.compute != CUBLAS_COMPUTE_32F ||
      desc.scale != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if ((desc.epilogue & CUBLASLT_EPILOGUE_BIAS) == 0) return CUBLAS_STATUS_SUCCESS;
  if (!desc.bias) return CUBLAS_STATUS_INVALID_VALUE;
  // A bias has D's type, and the epilogue reads it by words of 16 bytes.
  const bool of_type = desc.bias_type == -1 || desc.bias_type == static_cast<std::int32_t>(d.type);
  const bool in_words = reinterpret_cast<std::uintptr_t>(desc.bias) % 16 == 0;
  return of_type && in_words ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

bool aligned(const Matrix& x, std::uint64_t alignment) {
  return reinterpret_cast<std::uintptr_t>(x.data) % alignment == 0 &&
         (x.count == 1 || static_cast<std::uint64_t>(std::abs(x.apart)) * x.element() % alignment == 0);
}

std::size_t workspace_of(const Algorithm& algorithm, const cublasLtMatrixLayoutOpaque_t& d) {
  return algorithm.splits > 1 ? algorithm.splits * d.rows * d.cols * sizeof(float) * static_cast<std::size_t>(d.count)
                              : 0;
}

}  // namespace

extern "C" {
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasLtGetStatusString(cublasStatus_t status) {
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

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  *desc = new cublasLtMatmulDescOpaque_t{.compute = compute, .scale = scale};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) {
  delete desc;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return set(desc->transpose_a, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB: return set(desc->transpose_b, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return set(desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return set(desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE: return set(desc->bias_apart, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: return set(desc->bias_type, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t cols, std::int64_t stride) {
  *layout = new cublasLtMatrixLayoutOpaque_t{.type = type, .rows = rows, .cols = cols, .stride = stride};
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: return set(layout->count, value, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: return set(layout->apart, value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  *preference = new cublasLtMatmulPreferenceOpaque_t;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    std::size_t bytes) {
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return set(preference->workspace_bytes, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return set(preference->reductions, value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return set(preference->alignment[0], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return set(preference->alignment[1], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return set(preference->alignment[2], value, bytes);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return set(preference->alignment[3], value, bytes);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t results[], int* found) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  *found = 0;
  if (wanted <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = examine(*desc, *a, *b, *c, *d); status != CUBLAS_STATUS_SUCCESS) return status;
  Algorithm algorithm;
  algorithm.alignment = *std::min_element(std::begin(preference->alignment), std::end(preference->alignment));
  algorithm.alignment = std::min<std::uint64_t>(algorithm.alignment, 16);
  if (config().products_by_shape) {
    algorithm.step = d->cols <= 4 ? 8 : d->cols <= 16 ? 16 : 32;
    if (d->cols <= 8 && (preference->reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)) algorithm.splits = 2;
    if (workspace_of(algorithm, *d) > preference->workspace_bytes) algorithm.splits = 1;
    if (algorithm.alignment < 16) algorithm.step /= 2;  // other kernels, which load narrower words
  }
  results[0] = {.algo = algorithm.words(),
                .workspaceSize = workspace_of(algorithm, *d),
                .state = CUBLAS_STATUS_SUCCESS,
                .wavesCount = 1,
                .reserved = {}};
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const Algorithm algorithm = Algorithm::of(*algo);
  if (algorithm.mark != Algorithm::kMark) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = examine(*desc, *a, *b, *c, *d); status != CUBLAS_STATUS_SUCCESS) return status;
  result->workspaceSize = workspace_of(algorithm, *d), result->state = CUBLAS_STATUS_SUCCESS, result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              std::size_t workspace_bytes, cudaStream_t stream) {
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!alpha || !beta || !a || !b || !c || !d || !algo) return CUBLAS_STATUS_INVALID_VALUE;
  if (const cublasStatus_t status = examine(*desc, *a_layout, *b_layout, *c_layout, *d_layout);
      status != CUBLAS_STATUS_SUCCESS)
    return status;
  const Algorithm algorithm = Algorithm::of(*algo);
  if (algorithm.mark != Algorithm::kMark || workspace_of(algorithm, *d_layout) > workspace_bytes)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (workspace_bytes > 0 && (where_is({workspace, workspace_bytes}) != Where::device ||
                              reinterpret_cast<std::uintptr_t>(workspace) % 16 != 0))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Matrix as = matrix(a, *a_layout), bs = matrix(b, *b_layout), cs = matrix(c, *c_layout),
               ds = matrix(d, *d_layout);
  for (const Matrix& x : {as, bs, cs, ds})
    if (!aligned(x, algorithm.alignment)) return CUBLAS_STATUS_INVALID_VALUE;
  if (c == d && (cs.stride != ds.stride || cs.apart != ds.apart)) return CUBLAS_STATUS_INVALID_VALUE;
  const Matrix bias{static_cast<char*>(const_cast<void*>(desc->bias)),
                    ds.type,
                    (desc->epilogue & CUBLASLT_EPILOGUE_BIAS) ? ds.rows : 0,
                    1,
                    ds.rows,
                    ds.count,
                    desc->bias_apart};
  std::vector<Range> ranges{as.range(), bs.range(), ds.range()};
  if (*static_cast<const float*>(beta) != 0) ranges.push_back(cs.range());
  if (bias.rows > 0) ranges.push_back(bias.range());
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
    counters().slow_products += off(as) || off(bs) || off(ds);
  }
  const Gemm gemm{as,
                  bs,
                  cs,
                  ds,
                  bias,
                  desc->transpose_a != CUBLAS_OP_N,
                  desc->transpose_b != CUBLAS_OP_N,
                  static_cast<std::size_t>(ds.rows),
                  static_cast<std::size_t>(ds.cols),
                  static_cast<std::size_t>(desc->transpose_a == CUBLAS_OP_N ? as.cols : as.rows),
                  *static_cast<const float*>(alpha),
                  *static_cast<const float*>(beta),
                  desc->epilogue,
                  algorithm};
  const cudaError_t error = submit(What::gemm, stream, ranges, [gemm] {
    for (int i = 0; i < gemm.d.count; ++i) {
      Gemm one = gemm;
      one.a = gemm.a.number(i), one.b = gemm.b.number(i), one.c = gemm.c.number(i), one.d = gemm.d.number(i);
      one.bias = gemm.bias.number(i);
      run(one);
    }
  });
  return error == cudaSuccess && sticky() == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
}
