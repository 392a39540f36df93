// kernels/backend/ceilings_cuda.cu: a read of device memory and nothing else.
#include <algorithm>
#include <string>

#include "kernels/error.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

constexpr int kThreads = 256;
constexpr int kUnroll = 4;      // loads that a thread has in flight
constexpr int kBlocksEach = 8;  // per multiprocessor
constexpr std::uint32_t kNever =
    0x9E3779B9;  // a sum that practically never occurs: testing for it keeps the compiler from dropping the reads

__global__ void __launch_bounds__(kThreads) read_all(const uint4* from, std::int64_t count, std::uint32_t* sink) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  std::uint32_t any = 0;
  for (; i + (kUnroll - 1) * step < count; i += kUnroll * step) {
    uint4 words[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) words[u] = from[i + u * step];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) any ^= words[u].x ^ words[u].y ^ words[u].z ^ words[u].w;
  }
  for (; i < count; i += step) any ^= from[i].x ^ from[i].y ^ from[i].z ^ from[i].w;
  if (any == kNever) *sink = any;
}

}  // namespace

void read_words(const void* from, std::size_t bytes, CudaStream& stream) {
  if (bytes % sizeof(uint4) != 0 || reinterpret_cast<std::uintptr_t>(from) % sizeof(uint4) != 0)
    throw UsageError("read: " + std::to_string(bytes) + " bytes; wanted whole words of 16, aligned to them");
  const auto count = static_cast<std::int64_t>(bytes / sizeof(uint4));
  const unsigned most = static_cast<unsigned>(stream.multiprocessors() * kBlocksEach);
  launch(read_all, dim3(std::min(blocks_for(count, std::int64_t{kThreads} * kUnroll), most)), kThreads, 0, stream.get(),
         static_cast<const uint4*>(from), count,
         reinterpret_cast<std::uint32_t*>(stream.workspace(sizeof(std::uint32_t))));
}

}  // namespace weft::kernels
