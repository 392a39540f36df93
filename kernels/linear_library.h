// kernels/linear_library.h: matrix products by oneDNN, the only door to it. The fallback of linear_cpu, and the ceiling
// that our own kernels are measured against.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear_cpu.h"

namespace weft::kernels {

bool has_linear_library();  ///< false in a build without oneDNN

/// linear_cpu() by the library. Each thread of the pool multiplies its own columns; the library starts no threads.
void linear_library(const Linear& op, ThreadPool& pool);

/// y [rows, out] = x [rows, in] weight^T in fp32, with the library's own threads and its own order of the weights,
/// which are put into it beforehand. One thread at a time.
class LibraryProduct {
 public:
  LibraryProduct(std::int64_t rows, std::int64_t in, std::int64_t out, int threads);
  ~LibraryProduct();
  std::size_t weight_bytes() const;
  /// weight [out, in] row-major; `to` is 64-byte aligned.
  void reorder(const float* weight, void* to);
  void run(const float* x, const void* reordered, float* y);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::kernels
