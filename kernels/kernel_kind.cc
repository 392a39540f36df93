#include "kernels/kernel_kind.h"

#include "kernels/cpu_features.h"
#include "kernels/linear_cpu.h"
#include "kernels/linear_kernels.h"
#include "kernels/linear_library.h"
#include "kernels/vector_kernels.h"

namespace weft::kernels {

std::string kernel_kind(const Backend& backend) {
  if (backend.name() != "cpu") return "CUDA on " + backend.description();
  const bool library = linear_paths().front() == LinearPath::library && has_linear_library();
  return std::string(vector_kernels().front()->name) + (library ? " with oneDNN" : "");
}

bool multiplies_bf16() { return cpu_has_avx512_bf16() && pair_kernels_avx512() != nullptr; }

bool same_bits(const std::string& a, const std::string& b) {
  // Sums have one order in both (linear_kernels.h, vector_kernels.h); without AVX2 they have another.
  const auto has_vectors = [](const std::string& kind) { return kind == "AVX-512" || kind == "AVX2"; };
  return a == b || (has_vectors(a) && has_vectors(b));
}

}  // namespace weft::kernels
