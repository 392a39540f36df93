// kernels/stream_cuda.cu: a stream and what its ops need beside their operands.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/device_cuda.h"
#include "kernels/error.h"
#include "kernels/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

/// Carries words from mapped host memory to the device.
__global__ void carry(const uint4* from, uint4* to, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
}

}  // namespace

CudaStream::CudaStream(int multiprocessors) : multiprocessors_(multiprocessors) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = StreamHandle(stream);
  for (cuda::EventHandle& event : chunk_done_) event = make_event();
}

void CudaStream::allocate() {
  if (device_.get()) return;
  void *device = nullptr, *ring = nullptr;
  check(cudaMalloc(&device, kOpsBytes), "cudaMalloc");
  device_ = DeviceMemory(device);
  check(cudaHostAlloc(&ring, kRing, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
  ring_ = HostMemory(ring);
  for (cuda::EventHandle& event : half_done_) event = make_event();
  cublasHandle_t blas = nullptr;
  check(cublasCreate(&blas), "cublasCreate");
  blas_ = BlasHandle(blas);
  check(cublasSetStream(blas, get()), "cublasSetStream");  // before the workspace, which it would reset
  check(cublasSetWorkspace(blas, static_cast<std::byte*>(device) + kWorkspace + kRing, kBlas), "cublasSetWorkspace");
}

cublasHandle_t CudaStream::blas() {
  allocate();
  return blas_.get();
}

std::byte* CudaStream::workspace(std::size_t bytes) {
  allocate();
  if (bytes > kWorkspace)
    throw CapacityError("an op wants " + mebibytes(bytes) + " of workspace on the GPU, there are " +
                        mebibytes(kWorkspace) + "; use smaller batches");
  return static_cast<std::byte*>(device_.get());
}

std::byte* CudaStream::pinned(std::size_t piece, std::size_t bytes) {
  if (!pinned_[piece].get()) {
    void* memory = nullptr;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable), "cudaHostAlloc");
    pinned_[piece] = HostMemory(memory);
  }
  return static_cast<std::byte*>(pinned_[piece].get());
}

const void* CudaStream::upload(const void* data, std::size_t bytes) {
  if (bytes == 0) return nullptr;
  allocate();
  auto* const host = static_cast<std::byte*>(ring_.get());
  auto* const device = static_cast<std::byte*>(device_.get()) + kWorkspace;
  for (const Upload& earlier : uploads_)
    if (earlier.bytes == bytes && std::memcmp(host + earlier.offset, data, bytes) == 0) return device + earlier.offset;
  constexpr std::size_t half = kRing / 2;
  const std::size_t size = (bytes + sizeof(uint4) - 1) / sizeof(uint4) * sizeof(uint4);
  if (size > half)
    throw CapacityError("an op wants to tell the GPU " + std::to_string(bytes) + " bytes at once, at most " +
                        std::to_string(half) + " go; use smaller batches");
  if (used_ + size > half) {
    check(cudaEventRecord(half_done_[half_].get(), get()), "cudaEventRecord");
    half_ ^= 1, used_ = 0;
    uploads_.clear();
    check(cudaEventSynchronize(half_done_[half_].get()), "cudaEventSynchronize");
  }
  const std::size_t offset = half_ * half + used_;
  used_ += size;
  std::memcpy(host + offset, data, bytes);
  const int words = static_cast<int>(size / sizeof(uint4));
  launch(carry, dim3(std::min(blocks_for(words, 256), 32u)), 256, 0, get(),
         reinterpret_cast<const uint4*>(host + offset), reinterpret_cast<uint4*>(device + offset), words);
  constexpr std::size_t remembered = 16;
  if (uploads_.size() == remembered) uploads_.erase(uploads_.begin());
  uploads_.push_back({offset, bytes});
  return device + offset;
}

}  // namespace weft::kernels
