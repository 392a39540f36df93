// tests/cuda_sim/simt_test.cc: what device code computes: indices, warps, atomics, 16-bit floats, tiles.
#include <cmath>

#include "kernels/machine/tensor_core_cuda.h"
#include "kernels/tensor.h"
#include "tests/cuda_sim/support.h"
#include "tests/support/numbers.h"

using namespace weft::test;
using cusim::Order;
using weft::bf16;
using weft::f16;

namespace {

__global__ void write_indices(int* out) {
  const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] = static_cast<int>(block * 1000 + thread);
}

constexpr int kWarpResults = 12;
__global__ void use_warp(int* results) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  int* out = results + thread * kWarpResults;
  out[0] = __shfl_sync(~0u, thread, 5);
  out[1] = __shfl_up_sync(~0u, thread, 3);
  out[2] = __shfl_down_sync(~0u, thread, 3);
  out[3] = __shfl_xor_sync(~0u, thread, 1);
  out[4] = __shfl_sync(~0u, thread, 1, 8);
  out[5] = __shfl_up_sync(~0u, thread, 1, 8);
  out[6] = __shfl_down_sync(~0u, thread, 1, 8);
  out[7] = static_cast<int>(__ballot_sync(~0u, lane % 3 == 0));
  out[8] = __any_sync(~0u, lane == 7) * 2 + __all_sync(~0u, lane < 31);
  const unsigned half_warp = lane < 16 ? 0xffffu : 0xffff0000u;  // the halves go different ways
  int sum = thread;
  if (lane < 16) {
    for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(half_warp, sum, step);
  } else {
    sum = __shfl_sync(half_warp, sum, 31);
  }
  out[9] = sum;
  out[10] = static_cast<int>(__shfl_sync(~0u, thread * 0.5, 2) * 2);
  out[11] = __syncthreads_count(thread % 2) * 4 + __syncthreads_and(thread >= 0) * 2 + __syncthreads_or(thread == 1000);
}

__global__ void use_atomics(int* ints, float* sum, unsigned* bits, unsigned long long* wide) {
  const int thread = static_cast<int>(threadIdx.x);
  atomicAdd(ints, 2);
  atomicMax(ints + 1, thread + static_cast<int>(blockIdx.x));
  atomicMin(ints + 2, -thread);
  atomicAdd(sum, 0.5f);
  atomicCAS(bits, 0u, threadIdx.x + 1);
  atomicOr(bits + 1, 1u << (threadIdx.x % 32));
  atomicMax(wide, static_cast<unsigned long long>(thread) << 40);
}

/// The last block to arrive adds what all have left.
__global__ void sum_in_last_block(float* partial, unsigned* tickets, float* total) {
  WEFT_SHARED(bool, last);
  if (threadIdx.x == 0) {
    partial[blockIdx.x] = static_cast<float>(blockIdx.x);
    __threadfence();
    last = atomicAdd(tickets, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!last || threadIdx.x != 0) return;
  __threadfence();
  float sum = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) sum += partial[block];
  *total = sum;
}

__global__ void reduce_block(const float* in, float* sums, float* largest) {
  using namespace weft::kernels::cuda;
  WEFT_SHARED(float, partial, [kWarp]);
  const float x = in[threadIdx.x];
  sums[threadIdx.x] = block_reduce(x, Sum{}, partial);
  largest[threadIdx.x] = block_reduce(x, Largest{}, partial);
}

template <class T> __global__ void round_trip(const float* in, float* out, std::uint16_t* bits) {
  using namespace weft::kernels::cuda;
  const T small = from_float<T>(in[threadIdx.x]);
  out[threadIdx.x] = to_float(small);
  bits[threadIdx.x] = std::bit_cast<std::uint16_t>(small);
}

__global__ void use_integers(unsigned long long* out) {
  out[0] = __umul64hi(~0ull, 3);
  out[1] = static_cast<unsigned long long>(__clz(1) * 100 + __popc(0xf0f0u) * 10 + __ffs(8));
}

/// sums [16, 8] = a [16, 16] b [16, 8], all by rows.
template <class T> __global__ void multiply_once(const T* a, const T* b, float* sums) {
  using namespace weft::kernels::cuda;
  WEFT_SHARED(T, tile, [512]);
  const int lane = static_cast<int>(threadIdx.x), g = lane / 4, t = lane % 4;
  begin_copy(tile + lane * 8, a + lane * 8, true);
  begin_copy(tile + 256 + lane * 8, b + lane * 8, lane < 16);
  end_copies();
  __syncwarp();
  std::uint32_t a_tile[4], b_tile[4];
  load_tiles<false>(a_tile, tile + lane % 16 * 16 + lane / 16 * 8);
  load_tiles<true>(b_tile, tile + 256 + lane * 8);
  float sum[4] = {1, 1, 1, 1};
  multiply_tiles<T>(sum, a_tile, b_tile[0], b_tile[1]);
  for (int i = 0; i < 4; ++i) sums[(g + i / 2 * 8) * 8 + t * 2 + i % 2] = sum[i];
}

template <class T> void check_product() {
  const std::vector<float> a = normal(256, 1), b = normal(128, 2);
  const std::vector<T> small_a(a.begin(), a.end()), small_b(b.begin(), b.end());
  const Device<T> device_a(small_a), device_b(small_b);
  const Device<float> sums(128);
  REQUIRE(run(multiply_once<T>, 1, 32, 0, device_a.data, device_b.data, sums.data) == cudaSuccess);
  const std::vector<float> got = sums.fetch();
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      float sum = 1;
      for (std::size_t k = 0; k < 16; ++k) sum += float(small_a[i * 16 + k]) * float(small_b[k * 8 + j]);
      CHECK(got[i * 8 + j] == Approx(sum).margin(1e-5));
    }
}

__global__ void read_before_the_wait(const float* from, float* to) {
  using namespace weft::kernels::cuda;
  WEFT_SHARED(float, words, [4]);
  if (threadIdx.x != 0) return;
  begin_copy(words, from, true);
  to[0] = words[0];
  end_copies();
  to[1] = words[0];
}

__global__ void load_from_one_bank(float* to) {
  using namespace weft::kernels::cuda;
  WEFT_SHARED(float, words, [1024]);
  for (int i = static_cast<int>(threadIdx.x); i < 1024; i += 32) words[i] = 0;
  __syncwarp();
  std::uint32_t tiles[4];
  load_tiles<false>(tiles, words + threadIdx.x * 32);
  to[threadIdx.x] = static_cast<float>(tiles[0]);
}

}  // namespace

TEST_CASE("threads and blocks have their indices, in every order") {
  const Restore restore;
  cusim::config().order = GENERATE(Order::forward, Order::reverse, Order::random);
  const Device<int> out(2 * 3 * 2 * 4 * 5 * 2);
  REQUIRE(run(write_indices, dim3(2, 3, 2), dim3(4, 5, 2), 0, out.data) == cudaSuccess);
  const std::vector<int> got = out.fetch();
  for (int i = 0; i < static_cast<int>(got.size()); ++i)
    CHECK(got[static_cast<std::size_t>(i)] == i / 40 * 1000 + i % 40);
}

TEST_CASE("lanes of a warp exchange values and votes, in every order") {
  const Restore restore;
  cusim::config().order = GENERATE(Order::forward, Order::reverse, Order::random);
  const Device<int> out(64 * kWarpResults);
  REQUIRE(run(use_warp, 1, 64, 0, out.data) == cudaSuccess);
  const std::vector<int> got = out.fetch();
  for (int t = 0; t < 64; ++t) {
    const int warp = t & ~31, lane = t & 31, eight = t & ~7, half_sum = 16 * warp + 15 * 16 / 2;
    const std::vector<int> expected{warp + 5,
                                    lane < 3 ? t : t - 3,
                                    lane > 28 ? t : t + 3,
                                    t ^ 1,
                                    eight + 1,
                                    t == eight ? t : t - 1,
                                    t == eight + 7 ? t : t + 1,
                                    0x49249249,
                                    2,
                                    lane < 16 ? half_sum : warp + 31,
                                    warp + 2,
                                    32 * 4 + 2};
    const auto first = got.begin() + t * kWarpResults;
    CHECK(std::vector<int>(first, first + kWarpResults) == expected);
  }
}

TEST_CASE("a block reduces and gives the result to every thread, in every order") {
  const Restore restore;
  cusim::config().order = GENERATE(Order::forward, Order::reverse, Order::random);
  cusim::config().seed = 7;
  std::vector<float> in(256);
  for (std::size_t i = 0; i < 256; ++i) in[i] = static_cast<float>((i * 37) % 256);
  const Device<float> from(in), sums(256), largest(256);
  REQUIRE(run(reduce_block, 1, 256, 0, from.data, sums.data, largest.data) == cudaSuccess);
  CHECK(sums.fetch() == std::vector<float>(256, 255 * 128));
  CHECK(largest.fetch() == std::vector<float>(256, 255));
}

TEST_CASE("atomics of all threads add up, and fences order what blocks leave for the last one") {
  const Device<int> ints(std::vector<int>{0, -5, 9});
  const Device<float> sum(std::vector<float>{0});
  const Device<unsigned> bits(std::vector<unsigned>{0, 0});
  const Device<unsigned long long> wide(std::vector<unsigned long long>{0});
  REQUIRE(run(use_atomics, 10, 96, 0, ints.data, sum.data, bits.data, wide.data) == cudaSuccess);
  CHECK(ints.fetch() == std::vector<int>{1920, 104, -95});
  CHECK(sum.fetch()[0] == 480);
  CHECK(bits.fetch()[0] >= 1);
  CHECK(bits.fetch()[1] == ~0u);
  CHECK(wide.fetch()[0] == 95ull << 40);

  const Device<float> partial(20), total(1);
  const Device<unsigned> tickets(std::vector<unsigned>{0});
  REQUIRE(run(sum_in_last_block, 20, 64, 0, partial.data, tickets.data, total.data) == cudaSuccess);
  CHECK(total.fetch()[0] == 190);
}

TEST_CASE("16-bit floats round to nearest even, as the project's own do") {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> in = normal(1024, 4);
  std::mt19937 generator(5);
  for (std::size_t i = 512; i < 1024; ++i) in[i] = std::bit_cast<float>(static_cast<std::uint32_t>(generator()));
  const std::vector<float> special{0.0f,           -0.0f,          1.0f,          65504,         65519.996f,
                                   65520,          -65520,         1e30f,         infinity,      -infinity,
                                   5.9604645e-8f,  2.9802322e-8f,  2.9802326e-8f, 6.0975552e-5f, 6.1e-5f,
                                   1.00048828125f, 1.00146484375f, 1.00390625f,   1e-40f};
  std::copy(special.begin(), special.end(), in.begin());
  const Device<float> from(in), out(1024);
  const Device<std::uint16_t> bits(1024);
  const auto check = [&](auto kernel, auto reference) {
    REQUIRE(run(kernel, 1, 1024, 0, from.data, out.data, bits.data) == cudaSuccess);
    const std::vector<float> got = out.fetch();
    const std::vector<std::uint16_t> got_bits = bits.fetch();
    for (std::size_t i = 0; i < 1024; ++i) {
      const auto expected = reference(in[i]);
      CAPTURE(in[i]);
      if (std::isnan(in[i])) {
        CHECK(std::isnan(got[i]));
        CHECK(got_bits[i] == 0x7fff);
      } else {
        CHECK(got_bits[i] == expected.bits);
        CHECK(got[i] == static_cast<float>(expected));
      }
    }
  };
  check(round_trip<__half>, [](float x) { return f16(x); });
  check(round_trip<__nv_bfloat16>, [](float x) { return bf16(x); });
}

TEST_CASE("integer built-ins") {
  const Device<unsigned long long> out(2);
  REQUIRE(run(use_integers, 1, 1, 0, out.data) == cudaSuccess);
  CHECK(out.fetch() == std::vector<unsigned long long>{2, 31 * 100 + 8 * 10 + 4});
}

TEST_CASE("tiles of half and bfloat16 are copied, loaded and multiplied, in every order") {
  const Restore restore;
  cusim::config().order = GENERATE(Order::forward, Order::reverse, Order::random);
  check_product<__half>();
  check_product<__nv_bfloat16>();
}

TEST_CASE("a copy into shared memory arrives when it is waited for, and no sooner") {
  const Restore restore;
  cusim::config().order = GENERATE(Order::forward, Order::reverse, Order::random);
  const Device<float> from(std::vector<float>(4, 5.0f)), to(2);
  REQUIRE(run(read_before_the_wait, 1, 32, 0, from.data, to.data) == cudaSuccess);
  CHECK(to.fetch()[0] != 5);
  CHECK(to.fetch()[1] == 5);
}

TEST_CASE("rows of tiles that meet in a bank are counted") {
  const Device<float> to(32);
  const auto before = cusim::stats().bank_conflicts;
  REQUIRE(run(load_from_one_bank, 1, 32, 0, to.data) == cudaSuccess);
  CHECK(cusim::stats().bank_conflicts - before == 4 * 7);
}

TEST_CASE("launches are checked as the device does") {
  const Device<int> out(2048);
  CHECK(run(write_indices, 1, 2000, 0, out.data) == cudaErrorInvalidConfiguration);
  CHECK(run(write_indices, dim3(1, 70000), 1, 0, out.data) == cudaErrorInvalidConfiguration);
  CHECK(run(write_indices, 1, 1, 60000, out.data) == cudaErrorInvalidValue);
  CHECK(cudaFuncSetAttribute(write_indices, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000) == cudaSuccess);
  CHECK(run(write_indices, 1, 1, 60000, out.data) == cudaSuccess);
  CHECK(cudaFuncSetAttribute(write_indices, cudaFuncAttributeMaxDynamicSharedMemorySize, 200000) ==
        cudaErrorInvalidValue);
  CHECK(cudaPeekAtLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaErrorInvalidValue);
  CHECK(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("what is alive is counted, and nothing runs on the default stream") {
  const cusim::Stats before = cusim::stats();
  {
    const Device<int> device(5);
    const Pinned<char> pinned(100);
    const Stream stream;
    const Event event;
    const cusim::Stats now = cusim::stats();
    CHECK(now.device_live == before.device_live + 256);
    CHECK(now.pinned_live == before.pinned_live + 100);
    CHECK(now.streams_live == before.streams_live + 1);
    CHECK(now.events_live == before.events_live + 1);
    CHECK(cudaEventQuery(event.handle) == cudaSuccess);  // never recorded
    CHECK(cudaEventSynchronize(event.handle) == cudaSuccess);
    CHECK(cudaMemsetAsync(device.data, 1, 20, stream.handle) == cudaSuccess);
    CHECK(cudaMemsetAsync(device.data, 1, 21, stream.handle) == cudaErrorInvalidValue);
    CHECK(stream.synchronize() == cudaSuccess);
    CHECK(device.fetch()[4] == 0x01010101);
    CHECK(cudaMemsetAsync(device.data, 1, 20, nullptr) == cudaErrorInvalidResourceHandle);
    CHECK(findings() != "");
  }
  const cusim::Stats after = cusim::stats();
  CHECK(after.device_live == before.device_live);
  CHECK(after.pinned_live == before.pinned_live);
  CHECK(after.streams_live == before.streams_live);
  CHECK(after.events_live == before.events_live);
  cudaStream_t gone = nullptr;
  CHECK(cudaStreamCreateWithFlags(&gone, cudaStreamNonBlocking) == cudaSuccess);
  CHECK(cudaStreamDestroy(gone) == cudaSuccess);
  CHECK(cudaStreamSynchronize(gone) == cudaErrorInvalidResourceHandle);
  int devices = 0;
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceCount(&devices) == cudaSuccess);
  CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(properties.totalGlobalMem == cusim::config().device_capacity);
  CHECK(cudaSetDevice(1) == cudaErrorInvalidDevice);
  cusim::reset();
}
