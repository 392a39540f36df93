// tests/cuda_sim/limits_test.cc: the limits of hardware and drivers, which a program for a GPU has to keep.
#include "tests/cuda_sim/support.h"

using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

template <int kOf> __global__ void read_shared(float* out) {
  WEFT_SHARED(float, values, [32]);
  WEFT_DYNAMIC_SHARED(float, dynamic);
  out[0] = values[3];
  out[1] = dynamic[3];
}
__global__ void fill(int* out, int value) { out[blockIdx.x * blockDim.x + threadIdx.x] = value; }

}  // namespace

TEST_CASE("a copy stays within one registration, and a registration within what the driver takes") {
  const Restore restore;
  constexpr std::size_t piece = 1 << 20;
  const Pages host(3 * piece);
  const Device<char> data(3 * piece);
  const Stream stream;
  const auto copy = [&](std::size_t begin, std::size_t bytes) {
    return cudaMemcpyAsync(data.data, host.data + begin, bytes, cudaMemcpyDefault, stream.handle);
  };
  cusim::config().register_most = piece;
  CHECK(cudaHostRegister(host.data, 3 * piece, 0) == cudaErrorInvalidValue);
  cusim::config().register_error = cudaErrorOperatingSystem;
  CHECK(cudaHostRegister(host.data, 3 * piece, 0) == cudaErrorOperatingSystem);
  for (std::size_t begin = 0; begin < 3 * piece; begin += piece)
    CHECK(cudaHostRegister(host.data + begin, piece, 0) == cudaSuccess);
  CHECK(copy(0, piece) == cudaSuccess);
  CHECK(copy(piece, piece) == cudaSuccess);
  CHECK(copy(piece - 4, 8) == cudaErrorInvalidValue);
  CHECK(copy(0, 2 * piece) == cudaErrorInvalidValue);
  CHECK(stream.synchronize() == cudaSuccess);
  for (std::size_t begin = 0; begin < 3 * piece; begin += piece)
    CHECK(cudaHostUnregister(host.data + begin) == cudaSuccess);
  cusim::config().host_register = false;
  CHECK(cudaHostRegister(host.data, 4096, 0) == cudaErrorNotSupported);
  CHECK(std::string(cudaGetErrorName(cudaErrorNotSupported)) == "cudaErrorNotSupported");
  CHECK(findings().empty());
  cusim::reset();
}

TEST_CASE("a block has as much shared memory as its architecture gives") {
  const Restore restore;
  const auto asks = [](int kib) {
    return cudaFuncSetAttribute(read_shared<0>, cudaFuncAttributeMaxDynamicSharedMemorySize, kib << 10);
  };
  const auto most = [&](int architecture, int kib) {
    cusim::config().architecture = architecture;
    return asks(kib) == cudaSuccess && asks(kib + 1) == cudaErrorInvalidValue;
  };
  CHECK(most(75, 64));
  CHECK(most(80, 163));
  CHECK(most(86, 99));
  CHECK(most(89, 99));
  CHECK(most(90, 227));
  CHECK(most(100, 227));
  CHECK(most(120, 99));
  cudaDeviceProp properties;
  CHECK(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(properties.major == 12);
  // What is static counts: 128 bytes of it leave less than 48 KiB to a launch that has not asked for more.
  cudaGetLastError();
  const Device<float> out(2);
  CHECK(run(read_shared<1>, 1, 1, (48 << 10) - 128, out.data) == cudaSuccess);
  CHECK(run(read_shared<1>, 1, 1, 48 << 10, out.data) != cudaSuccess);
  CHECK_THAT(findings(), Contains("shared memory exceeds the limit"));
  cusim::reset();
}

TEST_CASE("a thread that captures a stream may neither allocate nor wait") {
  const Stream stream, other;
  const Event event;
  const Device<int> data(32);
  void* memory = nullptr;
  const auto capture = [&](auto&& call) {
    REQUIRE(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(launch(fill, 1, 32, 0, stream, data.data, 5) == cudaSuccess);
    const cudaError_t error = call();
    cudaGraph_t graph = nullptr;
    const cudaError_t end = cudaStreamEndCapture(stream.handle, &graph);
    CHECK((end == cudaSuccess) == (graph != nullptr));
    if (graph) CHECK(cudaGraphDestroy(graph) == cudaSuccess);
    return std::pair(error, end);
  };
  const std::pair spoilt(cudaErrorStreamCaptureUnsupported, cudaErrorStreamCaptureInvalidated);
  CHECK(capture([] { return cudaSuccess; }) == std::pair(cudaSuccess, cudaSuccess));
  CHECK(capture([&] { return cudaMalloc(&memory, 8); }) == spoilt);
  CHECK(capture([&] { return cudaFree(data.data); }) == spoilt);
  CHECK(capture([&] { return cudaHostAlloc(&memory, 8, 0); }) == spoilt);
  CHECK(capture([&] { return cudaEventSynchronize(event.handle); }) == spoilt);
  CHECK(capture([&] { return cudaEventQuery(event.handle); }) == spoilt);
  CHECK(capture([&] { return cudaStreamSynchronize(other.handle); }) == spoilt);
  CHECK(capture([&] { return cudaStreamSynchronize(stream.handle); }) == spoilt);
  CHECK(capture([] { return cudaDeviceSynchronize(); }) == spoilt);
  CHECK(capture([&] { return launch(fill, 1, 32, 0, other, data.data, 5); }) == std::pair(cudaSuccess, cudaSuccess));
  CHECK(other.synchronize() == cudaSuccess);
  CHECK(findings().empty());
  cusim::reset();
}
