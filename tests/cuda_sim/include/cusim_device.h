// tests/cuda_sim/include/cusim_device.h: what device code calls. Included by cuda_runtime.h.
#pragma once

namespace cusim {

/// Where a device thread synchronises; filled in by default arguments.
struct Location {
  const char* file;
  int line;
  constexpr Location(const char* f = __builtin_FILE(), int l = __builtin_LINE()) : file(f), line(l) {}
};
struct ThreadContext {
  uint3 index;
  int linear;
};
extern constinit thread_local ThreadContext* self;
extern constinit thread_local std::uint64_t wide_atomics;  // of 64 bits, in this grid

enum class Vote { count, all, any };
void block_barrier(Location at);
int block_vote(bool predicate, Vote vote, Location at);
void warp_barrier(unsigned mask, Location at);
unsigned warp_ballot(unsigned mask, bool predicate, Location at);
/// What the lane `source` passes; `source` < 0: the own value.
std::uint64_t warp_shuffle(unsigned mask, std::uint64_t value, int source, Location at);
void thread_fence();

int new_shared_site();
void* shared_slot(int site, std::size_t bytes, const char* name);
void* shared_dynamic();
template <class Tag> inline const int kSharedSite = new_shared_site();
/// One variable per block and place in the source, which the type of the tag stands for.
template <class T, class Tag> T& shared_static(Tag, const char* name) {
  return *static_cast<T*>(shared_slot(kSharedSite<Tag>, sizeof(T), name));
}

inline int lane() { return self->linear & 31; }

/// No wider than the device's own: what compiles here compiles there.
template <class T> inline constexpr bool kShuffles = std::is_arithmetic_v<T> && sizeof(T) >= 4 && sizeof(T) <= 8;
template <class T> T shuffle(unsigned mask, T value, int source, Location at) {
  static_assert(kShuffles<T>);
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = warp_shuffle(mask, bits, source, at);
  std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

template <class T>
concept AtomicInteger = std::is_same_v<T, int> || std::is_same_v<T, unsigned> || std::is_same_v<T, unsigned long long>;
template <class T>
concept AtomicNumber = AtomicInteger<T> || std::is_same_v<T, float>;
template <class T> using Same = std::type_identity_t<T>;  // so that only the pointer decides the type
template <class T, class Update> T atomic_update(T* p, Update update) {
  T old, wanted;
  __atomic_load(p, &old, __ATOMIC_RELAXED);
  do wanted = update(old);
  while (!__atomic_compare_exchange(p, &old, &wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return old;
}

}  // namespace cusim

extern constinit thread_local uint3 threadIdx, blockIdx;
extern constinit thread_local dim3 blockDim, gridDim;
constexpr int warpSize = 32;
using std::max, std::min;

inline void __syncthreads(cusim::Location at = {}) { cusim::block_barrier(at); }
inline int __syncthreads_count(int p, cusim::Location at = {}) {
  return cusim::block_vote(p != 0, cusim::Vote::count, at);
}
inline int __syncthreads_and(int p, cusim::Location at = {}) { return cusim::block_vote(p != 0, cusim::Vote::all, at); }
inline int __syncthreads_or(int p, cusim::Location at = {}) { return cusim::block_vote(p != 0, cusim::Vote::any, at); }
inline void __syncwarp(unsigned mask = ~0u, cusim::Location at = {}) { cusim::warp_barrier(mask, at); }
inline void __threadfence() { cusim::thread_fence(); }
inline void __threadfence_block() { cusim::thread_fence(); }

template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32, cusim::Location at = {}) {
  return cusim::shuffle(mask, value, (cusim::lane() & ~(width - 1)) | (source & (width - 1)), at);
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, cusim::Location at = {}) {
  const int lane = cusim::lane(), source = lane - static_cast<int>(delta);
  return cusim::shuffle(mask, value, source < (lane & ~(width - 1)) ? -1 : source, at);
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, cusim::Location at = {}) {
  const int lane = cusim::lane(), source = lane + static_cast<int>(delta);
  return cusim::shuffle(mask, value, source > (lane | (width - 1)) ? -1 : source, at);
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, cusim::Location at = {}) {
  const int lane = cusim::lane(), source = lane ^ bits;
  return cusim::shuffle(mask, value, source > (lane | (width - 1)) ? -1 : source, at);
}
inline unsigned __ballot_sync(unsigned mask, int p, cusim::Location at = {}) {
  return cusim::warp_ballot(mask, p != 0, at);
}
inline int __any_sync(unsigned mask, int p, cusim::Location at = {}) { return __ballot_sync(mask, p, at) != 0; }
inline int __all_sync(unsigned mask, int p, cusim::Location at = {}) { return __ballot_sync(mask, !p, at) == 0; }

template <cusim::AtomicNumber T> T atomicAdd(T* p, cusim::Same<T> v) {
  // Device threads of one grid count here at the same time, as far as a thread sanitizer knows.
  if constexpr (sizeof(T) == 8) __atomic_fetch_add(&cusim::wide_atomics, 1, __ATOMIC_RELAXED);
  return cusim::atomic_update(p, [v](T old) { return old + v; });
}
template <cusim::AtomicInteger T> T atomicMax(T* p, cusim::Same<T> v) {
  return cusim::atomic_update(p, [v](T old) { return std::max(old, v); });
}
template <cusim::AtomicInteger T> T atomicMin(T* p, cusim::Same<T> v) {
  return cusim::atomic_update(p, [v](T old) { return std::min(old, v); });
}
template <cusim::AtomicInteger T> T atomicOr(T* p, cusim::Same<T> v) {
  return cusim::atomic_update(p, [v](T old) { return old | v; });
}
template <cusim::AtomicNumber T> T atomicExch(T* p, cusim::Same<T> v) {
  return cusim::atomic_update(p, [v](T) { return v; });
}
template <cusim::AtomicInteger T> T atomicCAS(T* p, cusim::Same<T> expected, cusim::Same<T> v) {
  return cusim::atomic_update(p, [=](T old) { return old == expected ? v : old; });
}

template <class T> T __ldg(const T* p) { return *p; }
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, cusim::Same<T> v) { *p = v; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __byte_perm(unsigned low, unsigned high, unsigned selector) {  // of whole bytes, without their signs
  const std::uint64_t both = std::uint64_t{high} << 32 | low;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) result |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xff) << 8 * i;
  return result;
}
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>((std::uint64_t{a} * b) >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<unsigned long long>((static_cast<Wide>(a) * b) >> 64);
}
