// kernels/unrolled.h: a for loop of constant length over an array that must stay in registers: at -O2 GCC would keep it
// in memory.
#pragma once

#if defined(__clang__)
#define WEFT_UNROLLED(...) _Pragma("clang loop unroll(full)") for (__VA_ARGS__)
#else
#define WEFT_UNROLLED(...) _Pragma("GCC unroll 32") for (__VA_ARGS__)
#endif
