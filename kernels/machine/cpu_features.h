// kernels/machine/cpu_features.h: whether this processor has the instruction sets that kernels are compiled for.
#pragma once

namespace weft::kernels {

bool cpu_has_avx512();       ///< F, BW, VL and DQ, in addition to cpu_has_avx2()
bool cpu_has_avx512_vnni();  ///< in addition to cpu_has_avx512()
bool cpu_has_avx512_bf16();  ///< in addition to cpu_has_avx512()
bool cpu_has_amx();          ///< tiles, for bf16 and integers, in addition to both; asks the system for them
bool cpu_has_avx2();         ///< and FMA and F16C

}  // namespace weft::kernels
