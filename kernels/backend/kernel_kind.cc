#include "kernels/backend/kernel_kind.h"

#include "kernels/attention/cpu/kernels.h"
#include "kernels/linear/linear_cpu.h"

namespace weft::kernels {

std::string kernel_kind(const Backend& backend, Arithmetic arithmetic) {
  if (backend.name() != "cpu") return "CUDA on " + backend.description();
  const std::string vectors = vector_kernels().front()->name;
  if (arithmetic != Arithmetic::bfloat16) return vectors;
  return vectors + (multiplies_by_tiles() ? ", bfloat16 products by AMX" : ", bfloat16 products");
}

bool same_bits(const std::string& a, const std::string& b) {
  // Sums have one order in all of them (linear_kernels.h, cpu/kernels.h). But for attention and log-probabilities plain
  // C++ rounds each product before it is added. Fused, as for products with weights, they would be far slower on a
  // processor without FMA.
  const auto has_vectors = [](const std::string& kind) { return kind == "AVX-512" || kind == "AVX2"; };
  return a == b || (has_vectors(a) && has_vectors(b));
}

}  // namespace weft::kernels
