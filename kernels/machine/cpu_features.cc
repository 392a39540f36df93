#include "kernels/machine/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft::kernels {

#if defined(__x86_64__)
bool cpu_has_avx512() {
  return cpu_has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool cpu_has_avx512_vnni() { return cpu_has_avx512() && __builtin_cpu_supports("avx512vnni"); }
bool cpu_has_avx512_bf16() { return cpu_has_avx512() && __builtin_cpu_supports("avx512bf16"); }
bool cpu_has_amx() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  static const bool here = [] {
    constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25, kAll = kBf16 | kTiles | kInt8;
    constexpr long kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM (arch_prctl(2)), for all threads
    unsigned a = 0, b = 0, c = 0, d = 0;
    return cpu_has_avx512_vnni() && cpu_has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
           (d & kAll) == kAll && syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
  }();
  return here;
#else
  return false;
#endif
}
bool cpu_has_avx2() {
  // Asked once, because in a virtual machine it takes as long as a small product.
  static const bool f16c = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;  // clang 14's __builtin_cpu_supports does not know f16c
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1u << 29)) != 0;
  }();
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512_vnni() { return false; }
bool cpu_has_avx512_bf16() { return false; }
bool cpu_has_amx() { return false; }
bool cpu_has_avx2() { return false; }
#endif

}  // namespace weft::kernels
