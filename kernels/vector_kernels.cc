// kernels/vector_kernels.cc: which of the compiled instruction sets this processor has.
#include "kernels/vector_kernels.h"

#include "kernels/cpu_features.h"

namespace weft::kernels {
namespace {

std::vector<const VectorKernels*> find() {
  std::vector<const VectorKernels*> found;
  if (const auto* kernels = vector_kernels_avx512(); kernels && cpu_has_avx512()) found.push_back(kernels);
  if (const auto* kernels = vector_kernels_avx2(); kernels && cpu_has_avx2()) found.push_back(kernels);
  found.push_back(vector_kernels_plain());
  return found;
}

}  // namespace

const std::vector<const VectorKernels*>& vector_kernels() {
  static const std::vector<const VectorKernels*> found = find();
  return found;
}

}  // namespace weft::kernels
