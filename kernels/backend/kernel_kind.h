// kernels/backend/kernel_kind.h: the kind of kernels that compute, as far as the bits of answers may depend on it.
#pragma once

#include <string>

#include "kernels/backend.h"

namespace weft::kernels {

/// "AVX-512", "AVX2" or "plain C++" for the CPU, with ", bfloat16 products" or ", bfloat16 products by AMX" in that
/// arithmetic; "CUDA on ..." for a card.
std::string kernel_kind(const Backend& backend, Arithmetic arithmetic = Arithmetic::exact);

/// Whether kernels of these kinds give the same bits.
bool same_bits(const std::string& a, const std::string& b);

}  // namespace weft::kernels
