// kernels/attention/cpu/kernels.cc: finds the compiled instruction sets that this processor has.
#include "kernels/attention/cpu/kernels.h"

#include "kernels/machine/cpu_features.h"
#include "kernels/machine/cpu_ops.h"

namespace weft::kernels {
namespace {

/// A processor with AVX-512 but no VNNI takes AVX2.
std::vector<const VectorKernels*> find() {
  std::vector<const VectorKernels*> found;
  if (const auto* kernels = vector_kernels_avx512(); kernels && cpu_has_avx512_vnni()) found.push_back(kernels);
  if (const auto* kernels = vector_kernels_avx2(); kernels && cpu_has_avx2()) found.push_back(kernels);
  found.push_back(vector_kernels_plain());
  return found;
}

}  // namespace

const std::vector<const VectorKernels*>& vector_kernels() {
  static const std::vector<const VectorKernels*> found = find();
  return found;
}

CpuOps::CpuOps(ThreadPool& pool) : CpuOps(pool, *vector_kernels().front()) {}

}  // namespace weft::kernels
