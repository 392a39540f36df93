// tests/cuda_sim/ptx_kernels.cu: see ptx_kernels.h. What is PTX here has no other body: it only ever runs as PTX.
#include "tests/cuda_sim/ptx_kernels.h"

#include "kernels/machine/device_cuda.h"

namespace weft::test {
namespace {

__device__ float as_float(std::uint32_t bits) { return __uint_as_float(bits); }
__device__ std::uint64_t bits_of(float x) { return __float_as_uint(x); }

}  // namespace

__global__ void numbers(const std::uint32_t* in, std::uint64_t* out) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t a = in[3 * thread], b = in[3 * thread + 1], c = in[3 * thread + 2];
  const auto sa = static_cast<int>(a), sb = static_cast<int>(b);
  const std::uint64_t wide = std::uint64_t{a} << 32 | b;
  const auto swide = static_cast<long long>(wide);
  const float x = as_float(a), y = as_float(b);
  std::uint64_t* const o = out + std::size_t{thread} * kNumbers;
  int n = 0;
  o[n++] = b == 0 ? 0 : a / b;
  o[n++] = b == 0 ? 0 : a % b;
  o[n++] = sb == 0 || sb == -1 ? 0 : static_cast<unsigned>(sa / sb);
  o[n++] = sb == 0 || sb == -1 ? 0 : static_cast<unsigned>(sa % sb);
  o[n++] = c == 0 ? 0 : wide / c;
  o[n++] = c == 0 ? 0 : static_cast<std::uint64_t>(swide % static_cast<long long>(c));
  o[n++] = __umulhi(a, b);
  o[n++] = static_cast<std::uint64_t>(__umul64hi(wide, wide ^ c));
  o[n++] = static_cast<unsigned>(__popc(a) + __popcll(wide) * 100);
  o[n++] = static_cast<unsigned>(__clz(sa) + __clzll(swide) * 100);
  o[n++] = static_cast<unsigned>(__ffs(sa) + __ffsll(swide) * 100);
  o[n++] = a << (c & 31) | b >> (32 - (c & 31 ? c & 31 : 1));
  o[n++] = static_cast<unsigned>(sa >> (c & 31));
  o[n++] = static_cast<std::uint64_t>(swide >> (c & 63));
  o[n++] = static_cast<std::uint64_t>(swide * static_cast<long long>(sb));
  o[n++] = static_cast<unsigned>(min(sa, sb)) ^ (a > b ? a : b);
  o[n++] = (a & b) | (a ^ c) | ~(b | c);
  o[n++] = static_cast<std::uint64_t>(static_cast<long long>(sa) + sb) & 0xffff00ff0ff0ull;
  o[n++] = bits_of(static_cast<float>(sa));
  o[n++] = bits_of(static_cast<float>(wide));
  o[n++] = __half_as_ushort(__float2half_rn(static_cast<float>(sa % 100000) / 64.0f));
  o[n++] = bits_of(__half2float(__ushort_as_half(static_cast<unsigned short>(a & 0x7bff))));
  o[n++] = static_cast<std::uint64_t>(static_cast<double>(b) * 0.75);
  o[n++] = static_cast<unsigned char>(a) + static_cast<unsigned>(static_cast<signed char>(b));
  o[n++] = static_cast<unsigned>(x < y) | static_cast<unsigned>(x >= y) << 1 | static_cast<unsigned>(x != y) << 2;
  o[n++] = bits_of(static_cast<float>(a) / static_cast<float>(b | 1));
  o[n++] = bits_of(sqrtf(static_cast<float>(a)));
  o[n++] = bits_of(fmaxf(static_cast<float>(sa), static_cast<float>(sb)) - fminf(static_cast<float>(sa), 3.5f));
  const float small = static_cast<float>(sa) * 0x1p-31f, ratio = static_cast<float>(b) * 0x1p-30f;  // to here: exactly
  o[n++] = bits_of(expf(small * 20));
  o[n++] = bits_of(logf(ratio + 1e-6f));
  o[n++] = bits_of(tanhf(small * 3));
  o[n++] = bits_of(sinf(small * 500));
  o[n++] = bits_of(cosf(ratio * 100));
  o[n++] = bits_of(rsqrtf(ratio + 1e-3f));
  o[n++] = bits_of(exp2f(small * 8));
  o[n++] = bits_of(powf(10000.0f, -ratio));
}

__global__ void multiply_halves([[maybe_unused]] const __half* a, [[maybe_unused]] const __half* b,
                                [[maybe_unused]] float* c, [[maybe_unused]] int stride,
                                [[maybe_unused]] int read_stride) {
#if defined(__CUDACC__)
  __shared__ __align__(32) __half a_tile[16 * 24];
  __shared__ __align__(32) __half b_tile[16 * 8];
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) a_tile[i / 16 * stride + i % 16] = a[i];
  for (int i = lane; i < 128; i += 32) b_tile[i] = b[i];
  __syncwarp();
  const auto a_at = static_cast<unsigned>(__cvta_generic_to_shared(a_tile + lane % 16 * read_stride + lane / 16 * 8));
  const auto b_at = static_cast<unsigned>(__cvta_generic_to_shared(b_tile + lane % 16 * 8));
  unsigned r[4], s[2];
  float d[4] = {};
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(a_at));
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(s[0]), "=r"(s[1]) : "r"(b_at));
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
      "%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]), "r"(s[0]), "r"(s[1]));
#else
  for (int k = 0; k < 2; ++k)
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(r[2 * k]), "r"(r[2 * k + 1]), "r"(s[k]));
#endif
  for (int i = 0; i < 4; ++i) c[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
#endif
}

__global__ void multiply_bytes([[maybe_unused]] const std::int8_t* a, [[maybe_unused]] const std::int8_t* b,
                               [[maybe_unused]] std::int32_t* c) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, place = lane % 4;
  const auto word = [](const std::int8_t* p) { return *reinterpret_cast<const unsigned*>(p); };
  int d[4] = {};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(word(a + group * 32 + place * 4)), "r"(word(a + (group + 8) * 32 + place * 4)),
        "r"(word(a + group * 32 + place * 4 + 16)), "r"(word(a + (group + 8) * 32 + place * 4 + 16)),
        "r"(word(b + group * 32 + place * 4)), "r"(word(b + group * 32 + place * 4 + 16)));
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + place * 2 + i % 2] = d[i];
#endif
}

__global__ void multiply_small_bytes([[maybe_unused]] const std::int8_t* a, [[maybe_unused]] const std::int8_t* b,
                                     [[maybe_unused]] std::int32_t* c) {
#if defined(__CUDACC__)
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, place = lane % 4;
  int d[2] = {};
  asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%0, %1};"
               : "+r"(d[0]), "+r"(d[1])
               : "r"(*reinterpret_cast<const unsigned*>(a + group * 16 + place * 4)),
                 "r"(*reinterpret_cast<const unsigned*>(b + group * 16 + place * 4)));
  for (int i = 0; i < 2; ++i) c[group * 8 + place * 2 + i] = d[i];
#endif
}

__global__ void multiply_small_halves([[maybe_unused]] const __half* a, [[maybe_unused]] const __half* b,
                                      [[maybe_unused]] float* c) {
#if defined(__CUDACC__)
  const int lane = static_cast<int>(threadIdx.x), group = lane / 4, place = lane % 4;
  const auto word = [](const __half* p) { return *reinterpret_cast<const unsigned*>(p); };
  float d[4] = {};
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(word(a + group * 8 + place * 2)), "r"(word(a + (group + 8) * 8 + place * 2)),
                 "r"(word(b + group * 8 + place * 2)));
  for (int i = 0; i < 4; ++i) c[(group + i / 2 * 8) * 8 + place * 2 + i % 2] = d[i];
#endif
}

__global__ void neighbours(const float* in, float* out, int distance, bool barrier) {
  WEFT_SHARED(float, tile, [128]);
  const unsigned thread = threadIdx.x;
  tile[thread] = in[thread];
  if (barrier) __syncthreads();
  out[thread] = tile[(thread + static_cast<unsigned>(distance)) % 128];
}

__global__ void neighbours_in_warp(const float* in, float* out, bool barrier) {
  WEFT_SHARED(float, tile, [32]);
  tile[threadIdx.x] = in[threadIdx.x];
  if (barrier) __syncwarp();
  out[threadIdx.x] = tile[threadIdx.x ^ 1];
}

__global__ void neighbours_by_copy([[maybe_unused]] const float* in, [[maybe_unused]] float* out,
                                   [[maybe_unused]] bool wait) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 800
  __shared__ __align__(32) float tile[128];
  const auto to = static_cast<unsigned>(__cvta_generic_to_shared(tile + 4 * threadIdx.x));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(in + 4 * threadIdx.x) : "memory");
  asm volatile("cp.async.commit_group;" ::: "memory");
  if (wait) asm volatile("cp.async.wait_group 0;" ::: "memory");
  else asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncwarp();
  for (unsigned i = threadIdx.x; i < 128; i += 32) out[i] = tile[127 - i];
#endif
}

__global__ void read_vector(const float* in, float* out) {
  const float4 v = reinterpret_cast<const float4*>(in)[threadIdx.x];
  out[threadIdx.x] = v.x + v.y + v.z + v.w;
}
__global__ void write_at(float* out, int index) {
  if (threadIdx.x == 7) out[index] = 1;
}
__global__ void write_shared_at(float* out, int index) {
  WEFT_SHARED(float, tile, [8]);
  WEFT_SHARED(float, other, [8]);
  if (threadIdx.x < 8) tile[threadIdx.x] = other[threadIdx.x] = 0;
  __syncthreads();
  if (threadIdx.x == 0) tile[index] = 2;
  __syncthreads();
  if (threadIdx.x < 8) out[threadIdx.x] = tile[threadIdx.x] + other[threadIdx.x];
}
__global__ void read_unwritten(float* out, int written) {
  WEFT_SHARED(float, tile, [32]);
  if (static_cast<int>(threadIdx.x) < written) tile[threadIdx.x] = 1;
  __syncthreads();
  out[threadIdx.x] = tile[threadIdx.x];
}
__global__ void shuffle_with_mask(int* out, unsigned mask) {
  out[threadIdx.x] = __shfl_xor_sync(mask, static_cast<int>(threadIdx.x), 1);
}
__global__ void shuffle_lanes_below(int* out, int lanes) {
  int value = static_cast<int>(threadIdx.x);
  if (value < lanes) value = __shfl_xor_sync(~0u, value, 1);
  __syncwarp();
  out[threadIdx.x] = value;
}
__global__ void barrier_below(int* out, int threads) {
  WEFT_SHARED(int, tile, [64]);
  tile[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (static_cast<int>(threadIdx.x) < threads) __syncthreads();
  else out[threadIdx.x] = 0;
  out[threadIdx.x] = tile[threadIdx.x];
}

__global__ void uneven_loops(const int* turns, int* out) {
  int sum = 0;
  for (int i = 0; i < turns[threadIdx.x]; ++i) {
    if ((i + static_cast<int>(threadIdx.x)) % 3 == 0) continue;
    sum += i;
    if (sum > 40) break;
  }
  out[threadIdx.x] = sum + __shfl_xor_sync(~0u, sum, 16) * 1000;
}

__global__ void __launch_bounds__(64) bounded(int* out) { out[threadIdx.x] = 1; }

__global__ void sleeps(int* out) {
#if defined(__CUDACC__)
  __nanosleep(20);
#endif
  out[threadIdx.x] = 1;
}

__global__ void columns(const float* in, float* out, int stride) {
  WEFT_SHARED(float, tile, [32 * 33]);
  const int lane = static_cast<int>(threadIdx.x);
  tile[lane * stride] = in[lane * stride];
  __syncwarp();
  out[lane] = tile[lane * stride];
}

}  // namespace weft::test
