// tests/cuda_sim/cuda_sim_test.cc: faults that programs for a GPU may have, planted here, and how the simulator shows
// each.
#include <cstdio>

#include "tests/cuda_sim/support.h"

using namespace weft::test;
using Catch::Matchers::Contains;
using cusim::Order;
using cusim::What;

namespace {

constexpr std::array<Order, 3> kOrders{Order::forward, Order::reverse, Order::random};
constexpr std::array<const char*, 3> kOrderNames{"forward", "reverse", "random"};

template <bool kBarrier> __global__ void broadcast(const int* in, int* out) {
  WEFT_SHARED(int, first);
  if (threadIdx.x == 0) first = in[blockIdx.x];
  if (kBarrier) __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = first;
}
template <bool kBarrier> __global__ void reverse_block(const int* in, int* out) {
  WEFT_DYNAMIC_SHARED(int, values);
  values[threadIdx.x] = in[threadIdx.x];
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}
__global__ void write_static(int at) {
  WEFT_SHARED(int, values, [4]);
  volatile int* const p = values;  // keeps the compiler from seeing it
  p[at] = 1;
}
__global__ void write_dynamic(int at) {
  WEFT_DYNAMIC_SHARED(char, bytes);
  bytes[at] = 1;
}
__global__ void read_shared_before_writing(float* out) {
  WEFT_SHARED(float, values, [32]);
  WEFT_DYNAMIC_SHARED(float, dynamic);
  out[0] = values[3];
  out[1] = dynamic[3];
}
__global__ void fill(int* out, int value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; }
__global__ void copy_ints(const int* in, int* out) { out[threadIdx.x] = in[threadIdx.x]; }
__global__ void leave_before_barrier(int stay, int* out) {
  if (static_cast<int>(threadIdx.x) >= stay) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void two_barriers(int* out) {
  if (threadIdx.x < 32) __syncthreads();
  else __syncthreads();
  out[threadIdx.x] = 1;
}
__global__ void shuffle_without_lane_3(int* out) {
  if (threadIdx.x != 3) out[threadIdx.x] = __shfl_sync(~0u, 1, 0);
}
__global__ void use_stack(int* out) {
  volatile char big[300000];
  for (int i = 0; i < 300000; i += 1000) big[i] = 1;
  out[0] = big[1000];
}
struct Arguments {
  int rows, cols;
  int* out;
};
__global__ void fill_by_struct(Arguments a) { a.out[threadIdx.x] = a.rows; }

std::vector<int> iota(int n) {
  std::vector<int> values(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i) values[static_cast<std::size_t>(i)] = i;
  return values;
}

/// "forward right, reverse wrong, ..." on stderr, for the outcome of alone().
template <class Kernel>
void try_orders(Kernel kernel, int threads, const std::vector<int>& in, const std::vector<int>& expected) {
  for (std::size_t i = 0; i < kOrders.size(); ++i) {
    cusim::config().order = kOrders[i];
    const Device<int> from(in), to(expected.size());
    REQUIRE(run(kernel, 1, static_cast<unsigned>(threads), in.size() * sizeof(int), from.data, to.data) == cudaSuccess);
    std::fprintf(stderr, "%s %s\n", kOrderNames[i], to.fetch() == expected ? "right" : "wrong");
  }
}

/// Fails, is a finding that says `what`, breaks the device until reset().
void require_broken(cudaError_t error, const std::string& what) {
  CHECK(error != cudaSuccess);
  CHECK(cudaDeviceSynchronize() == error);
  CHECK(cudaGetLastError() == error);
  CHECK(cudaGetLastError() == error);  // sticky
  CHECK_THAT(findings(), Contains(what));
  cusim::reset();
  CHECK(cudaDeviceSynchronize() == cudaSuccess);
}

}  // namespace

TEST_CASE("a missing __syncthreads gives wrong results in some order of threads, a correct kernel in none") {
  const Restore restore;
  const std::vector<int> in = iota(128), backwards(in.rbegin(), in.rend());
  SECTION("correct") {
    for (const Order order : kOrders) {
      cusim::config().order = order;
      const Device<int> from(in), to(128), single(128);
      REQUIRE(run(reverse_block<true>, 1, 128, 512, from.data, to.data) == cudaSuccess);
      CHECK(to.fetch() == backwards);
      REQUIRE(run(broadcast<true>, 4, 32, 0, from.data, single.data) == cudaSuccess);
      CHECK(single.fetch()[127] == 3);
    }
    CHECK(findings().empty());
  }
  SECTION("every thread reads what a later one writes") {
    const Outcome outcome = alone("reverse_block", [&] { try_orders(reverse_block<false>, 128, in, backwards); });
    CHECK_THAT(outcome.report, Contains("forward wrong") && Contains("reverse wrong") && Contains("random wrong"));
    if (kThreadSanitizer) CHECK_THAT(outcome.report, Contains("data race"));
  }
  SECTION("one thread writes, and happens to run first") {
    const Outcome outcome =
        alone("broadcast", [&] { try_orders(broadcast<false>, 128, {7}, std::vector<int>(128, 7)); });
    CHECK_THAT(outcome.report, Contains("forward right") && Contains("reverse wrong"));
    if (kThreadSanitizer) CHECK_THAT(outcome.report, Contains("data race"));
  }
}

TEST_CASE("a write outside of shared memory is found") {
  const auto found = [](const std::string& name, auto kernel, std::size_t bytes, int at, const char* what) {
    CAPTURE(name);
    const Outcome outcome = alone(name, [&] {
      const cudaError_t error = run(kernel, 1, 1, bytes, at);
      cusim::reset();
      if (error != cudaErrorIllegalAddress || cudaDeviceSynchronize() != cudaSuccess) std::exit(3);
    });
    CHECK(outcome.ended_well == !kAddressSanitizer);
    CHECK_THAT(outcome.report, Contains(kAddressSanitizer ? "AddressSanitizer" : what));
  };
  found("static before", write_static, 0, -1, "shared memory overrun: a static shared variable");
  found("static behind", write_static, 0, 4, "shared memory overrun: a static shared variable");
  found("dynamic before", write_dynamic, 33, -1, "shared memory overrun: dynamic shared memory");
  found("dynamic behind", write_dynamic, 33, 33, "shared memory overrun: dynamic shared memory");
  if (!kThreadSanitizer) found("on the next page", write_dynamic, 32, 32, "touched the page behind its shared memory");
}

TEST_CASE("shared memory that nobody wrote is NaN") {
  const Device<float> out(2);
  REQUIRE(run(read_shared_before_writing, 1, 1, 64, out.data) == cudaSuccess);
  CHECK(std::isnan(out.fetch()[0]));
  CHECK(std::isnan(out.fetch()[1]));
}

TEST_CASE("a missing wait between streams gives wrong results when the first stream is lazy") {
  const auto attempt = [](bool wait) {
    cusim::config().lazy = "10";
    cusim::config().lazy_milliseconds = 2000;
    const Device<int> data(32), result(32);
    const Stream first, second;
    const Event ready;
    CHECK(launch(fill, 1, 32, 0, first, data.data, 5) == cudaSuccess);
    CHECK(cudaEventRecord(ready.handle, first.handle) == cudaSuccess);
    if (wait) CHECK(cudaStreamWaitEvent(second.handle, ready.handle) == cudaSuccess);
    CHECK(launch(copy_ints, 1, 32, 0, second, data.data, result.data) == cudaSuccess);
    CHECK(second.synchronize() == cudaSuccess);
    cusim::config().lazy.clear();
    CHECK(first.synchronize() == cudaSuccess);
    return result.fetch();
  };
  const Restore restore;
  CHECK(attempt(true) == std::vector<int>(32, 5));
  const Outcome outcome = alone("no wait", [&] { std::fprintf(stderr, "result %d\n", attempt(false)[0]); });
  CHECK_THAT(outcome.report, Contains("result -1"));  // poison
  if (kThreadSanitizer) CHECK_THAT(outcome.report, Contains("data race"));
}

TEST_CASE("the host does not get at device memory") {
  const Outcome read = alone("read", [] {
    const Device<int> data(32);
    CHECK(run(fill, 1, 32, 0, data.data, 5) == cudaSuccess);
    std::fprintf(stderr, "read %d\n", *static_cast<volatile int*>(data.data));
  });
  CHECK_FALSE(read.ended_well);
  CHECK_THAT(read.report, Contains("cusim: host access") && Contains("offset 0 of a device allocation of 128 bytes"));
  CHECK_THAT(read.report, !Contains("read 5"));
  const Outcome written = alone("write behind its end", [] {
    const Device<char> data(4096);
    *static_cast<volatile char*>(data.data + 4096) = 1;
  });
  CHECK_FALSE(written.ended_well);
  CHECK_THAT(written.report, Contains("offset 4096 of a device allocation of 4096 bytes"));
}

TEST_CASE("a host that reads a result before it waits finds poison, and device memory closed") {
  const Restore restore;
  const auto read_early = [](bool wait) {
    cusim::config().lazy = "1";
    cusim::config().lazy_milliseconds = 2000;
    const Device<int> data(32);
    const Pinned<int> result(32);
    const Stream stream;
    CHECK(launch(fill, 1, 32, 0, stream, data.data, 5) == cudaSuccess);
    CHECK(cudaMemcpyAsync(result.data, data.data, 128, cudaMemcpyDeviceToHost, stream.handle) == cudaSuccess);
    if (wait) CHECK(stream.synchronize() == cudaSuccess);
    return *static_cast<volatile int*>(result.data);
  };
  CHECK(read_early(true) == 5);
  const Outcome outcome = alone("copy", [&] { std::fprintf(stderr, "result %d\n", read_early(false)); });
  CHECK_THAT(outcome.report, Contains("result -1"));
  const Outcome mapped = alone("device", [] {
    cusim::config().lazy = "1";
    cusim::config().lazy_milliseconds = 2000;
    const Device<int> data(32);
    const Stream stream;
    CHECK(launch(fill, 1, 32, 0, stream, data.data, 5) == cudaSuccess);
    std::fprintf(stderr, "read %d\n", *static_cast<volatile int*>(data.data));
  });
  CHECK_FALSE(mapped.ended_well);
  CHECK_THAT(mapped.report, Contains("cusim: host access"));
}

TEST_CASE("a device has only its memory, and says so") {
  const Restore restore;
  const cusim::Stats before = cusim::stats();
  cusim::config().device_capacity = before.device_live + 4096;
  void *held = nullptr, *refused = nullptr;
  std::size_t free = 0, total = 0;
  REQUIRE(cudaMalloc(&held, 4000) == cudaSuccess);
  CHECK(cudaMemGetInfo(&free, &total) == cudaSuccess);
  CHECK(free == 0);  // 256 bytes at a time
  CHECK(cudaMalloc(&refused, 1) == cudaErrorMemoryAllocation);
  CHECK(refused == nullptr);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);  // the device still works
  CHECK(cudaFree(held) == cudaSuccess);
  CHECK(cudaMalloc(&held, 1) == cudaSuccess);
  CHECK(cudaFree(held) == cudaSuccess);
  CHECK(cudaFree(held) == cudaErrorInvalidValue);
  CHECK(cusim::stats().device_live == before.device_live);

  cusim::config().pinned_capacity = cusim::stats().pinned_live + 100;
  CHECK(cudaHostAlloc(&held, 101, 0) == cudaErrorMemoryAllocation);
  CHECK(std::string(cudaGetErrorString(cudaErrorMemoryAllocation)) == "out of memory");
  cusim::fail_nth(What::alloc, 2, cudaErrorMemoryAllocation);
  CHECK(cudaMalloc(&held, 8) == cudaSuccess);
  CHECK(cudaMalloc(&refused, 8) == cudaErrorMemoryAllocation);
  CHECK(cudaFree(held) == cudaSuccess);
  cusim::reset();
}

TEST_CASE("a copy can fail at the call, or later and break the device") {
  const Device<int> data(std::vector<int>{1, 2, 3});
  const Pinned<int> host(3);
  const Stream stream;
  const auto copy = [&] { return cudaMemcpyAsync(host.data, data.data, 12, cudaMemcpyDeviceToHost, stream.handle); };
  cusim::fail_nth(What::copy, 2, cudaErrorUnknown);
  CHECK(copy() == cudaSuccess);
  CHECK(copy() == cudaErrorUnknown);
  CHECK(cudaGetLastError() == cudaErrorUnknown);
  CHECK(copy() == cudaSuccess);
  CHECK(stream.synchronize() == cudaSuccess);
  CHECK(host.data[2] == 3);

  host.data[2] = 0;
  const Event event;
  cusim::fail_nth(What::copy, 1, cudaErrorECCUncorrectable, /*asynchronous=*/true);
  CHECK(copy() == cudaSuccess);
  CHECK(stream.synchronize() == cudaErrorECCUncorrectable);
  CHECK(host.data[2] == 0);
  void* refused = nullptr;
  CHECK(cudaMalloc(&refused, 1) == cudaErrorECCUncorrectable);
  CHECK(launch(fill, 1, 1, 0, stream, data.data, 1) == cudaErrorECCUncorrectable);
  CHECK(cudaEventQuery(event.handle) == cudaErrorECCUncorrectable);
  CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);
  CHECK(cudaGetLastError() == cudaErrorECCUncorrectable);  // sticky
  cusim::reset();
  CHECK(copy() == cudaSuccess);
  CHECK(stream.synchronize() == cudaSuccess);
  CHECK(host.data[2] == 3);
}

TEST_CASE("threads that part at a barrier or in a warp are found") {
  const Restore restore;
  const Device<int> out(64);
  require_broken(run(leave_before_barrier, 1, 64, 0, 40, out.data), "barrier divergence: 24 threads have exited");
  cusim::config().strict_exit = false;
  CHECK(run(leave_before_barrier, 1, 64, 0, 40, out.data) == cudaSuccess);
  CHECK(out.fetch()[39] == 1);
  cusim::config().strict_exit = true;
  require_broken(run(two_barriers, 1, 64, 0, out.data), "two_barriers(int*)");
  require_broken(run(shuffle_without_lane_3, 1, 32, 0, out.data), "warp mask");
  require_broken(run(shuffle_without_lane_3, 1, 20, 0, out.data), "never existed");
}

TEST_CASE("a kernel that leaves its memory is found") {
  const auto found = [](const std::string& name, auto fault, const char* what) {
    CAPTURE(name);
    const Outcome outcome = alone(name, fault);
    if (!kAddressSanitizer && !kThreadSanitizer) CHECK(outcome.ended_well);
    if (!kAddressSanitizer) CHECK_THAT(outcome.report, Contains(what));
    else CHECK_THAT(outcome.report, Contains("AddressSanitizer"));
  };
  const auto expect = [](cudaError_t error, cudaError_t wanted) {
    if (error != wanted) std::exit(3);
  };
  found(
      "far",
      [&] {
        const Device<int> data(64);
        expect(run(fill, 100, 64, 0, data.data, 1), cudaErrorIllegalAddress);
        cusim::reset();
      },
      "a device allocation of 256 bytes");
  found(
      "near",
      [&] {
        const Device<int> data(10);
        expect(run(fill, 1, 11, 0, data.data, 1), cudaSuccess);
      },
      "device memory overrun: bytes next to an allocation of 40");
  found(
      "stack",
      [&] {
        const Device<int> data(1);
        expect(run(use_stack, 1, 1, 0, data.data), cudaErrorIllegalAddress);
        cusim::reset();
      },
      kThreadSanitizer ? "cusim: host access" : "illegal address");
}

TEST_CASE("a pointer to pageable or freed memory does not reach a kernel or a copy unseen") {
  std::vector<int> pageable(64);
  const Device<int> data(64);
  require_broken(run(fill, 1, 32, 0, pageable.data(), 1), "a kernel's argument");
  require_broken(run(fill_by_struct, 1, 32, 0, Arguments{7, 1 << 20, pageable.data()}), "a kernel's argument");
  int* freed = nullptr;
  REQUIRE(cudaMalloc(&freed, 256) == cudaSuccess);
  REQUIRE(cudaFree(freed) == cudaSuccess);
  require_broken(run(fill, 1, 32, 0, freed, 1), "a kernel's argument");
  CHECK(run(fill_by_struct, 1, 64, 0, Arguments{7, 1 << 20, data.data}) == cudaSuccess);
  CHECK(data.fetch()[63] == 7);
  cusim::reset();
}

TEST_CASE("pageable memory is not copied in the background") {
  const Restore restore;
  std::vector<int> pageable(64);
  const Device<int> data(64);
  const Stream stream;
  const auto copy = [&](std::size_t bytes, cudaMemcpyKind kind) {
    return cudaMemcpyAsync(pageable.data(), data.data, bytes, kind, stream.handle);
  };
  CHECK(run(fill, 1, 64, 0, data.data, 3) == cudaSuccess);
  CHECK(copy(256, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK_THAT(findings(), Contains("pageable copy"));
  cusim::config().pageable_copies = true;
  CHECK(copy(256, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(pageable[63] == 3);
  REQUIRE(cudaHostRegister(pageable.data(), 256, 0) == cudaSuccess);
  cusim::config().pageable_copies = false;
  CHECK(cudaHostRegister(&pageable[8], 4, 0) == cudaErrorHostMemoryAlreadyRegistered);
  CHECK(copy(256, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);  // another direction
  CHECK(copy(257, cudaMemcpyDeviceToHost) == cudaErrorInvalidValue);
  CHECK(copy(256, cudaMemcpyDeviceToHost) == cudaSuccess);
  CHECK(launch(fill, 1, 32, 0, stream, pageable.data(), 4) == cudaSuccess);  // mapped
  CHECK(stream.synchronize() == cudaSuccess);
  CHECK(pageable[31] == 4);
  CHECK(pageable[32] == 3);
  CHECK(cudaHostUnregister(pageable.data()) == cudaSuccess);
  CHECK(cudaHostUnregister(pageable.data()) == cudaErrorHostMemoryNotRegistered);
  CHECK(findings().empty());
  cusim::reset();
}
