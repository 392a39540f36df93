// tests/gpu_probe.cu: what Weft asks of a GPU's driver, in seconds and before anything else runs: what the context
// takes, how fast host memory is pinned, whether a kernel reaches it by the host's addresses, what the link carries in
// pieces of 16 MiB. Prints JSON. scripts/gpu_check.sh begins with it.
//
//   gpu_probe [MIB]    of host memory to register, 8192 if not given
//
// Exit code 0: the device can be used; 1: it cannot, and the last line says why.
#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kMib = 1 << 20, kHuge = 2 * kMib, kPiece = 16 * kMib, kPage = 4096, kLinkMost = 256 * kMib;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double mib(std::size_t bytes) { return double(bytes) / double(kMib); }

/// The error's name; the next call does not return it again.
const char* named(cudaError_t error) {
  if (error != cudaSuccess) cudaGetLastError();
  return cudaGetErrorName(error);
}

__global__ void poke(int* to) { to[threadIdx.x] = 7 + static_cast<int>(threadIdx.x); }

bool kernel_writes(std::byte* host) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(32);
  if (cudaStreamCreateWithFlags(&config.stream, cudaStreamNonBlocking) != cudaSuccess) return false;
  cudaError_t error = cudaLaunchKernelEx(&config, poke, reinterpret_cast<int*>(host));
  if (error == cudaSuccess) error = cudaStreamSynchronize(config.stream);
  cudaStreamDestroy(config.stream);
  return error == cudaSuccess && reinterpret_cast<volatile int*>(host)[31] == 38;
}

/// Copies `bytes` in pieces, the better of two rounds, and prints bytes a second.
void print_link(const char* name, void* to, const void* from, std::size_t bytes) {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  double best = 1e9;
  for (int round = 0; round < 2 && error == cudaSuccess; ++round) {
    const double begin = now();
    for (std::size_t at = 0; at < bytes && error == cudaSuccess; at += kPiece)
      error = cudaMemcpyAsync(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at,
                              std::min(kPiece, bytes - at), cudaMemcpyDefault, stream);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
    best = std::min(best, now() - begin);
  }
  if (stream) cudaStreamDestroy(stream);
  if (error == cudaSuccess) std::printf("    \"%s_bytes_per_second\": %.4g,\n", name, double(bytes) / best);
  else std::printf("    \"%s_error\": \"%s\",\n", name, named(error));
}

void print_registered(std::size_t bytes, bool by_host_addresses) {
  void* const mapped =
      mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  std::printf("  \"registered_%zu_mib\": {\n", bytes / kMib);
  if (mapped == MAP_FAILED) {
    std::printf("    \"result\": \"no memory\"\n  },\n");
    return;
  }
  auto* const host = reinterpret_cast<std::byte*>((reinterpret_cast<std::size_t>(mapped) + kHuge - 1) & ~(kHuge - 1));
  madvise(host, bytes, MADV_HUGEPAGE);
  const double begin = now();
  const std::size_t count = std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 16);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < count; ++t)
    threads.emplace_back([=] {
      for (std::size_t i = bytes * t / count; i < bytes * (t + 1) / count; i += kPage)
        static_cast<volatile std::byte*>(host)[i] = std::byte{1};
    });
  for (std::thread& thread : threads) thread.join();
  const double touched = now();
  const cudaError_t error = cudaHostRegister(host, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  std::printf("    \"touch_seconds\": %.3f,\n    \"register_seconds\": %.3f,\n", touched - begin, now() - touched);
  if (error == cudaSuccess) {
    // Where the driver says that it does not work, the kernel would break the context.
    if (by_host_addresses) std::printf("    \"kernel_writes\": %s,\n", kernel_writes(host) ? "true" : "false");
    void* device = nullptr;
    const std::size_t size = std::min(bytes, kLinkMost);
    if (cudaMalloc(&device, size) == cudaSuccess) {
      print_link("to_device", device, host, size);
      print_link("to_host", host, device, size);
      cudaFree(device);
    }
    const double before = now();
    cudaHostUnregister(host);
    std::printf("    \"unregister_seconds\": %.3f,\n", now() - before);
  }
  std::printf("    \"result\": \"%s\"\n  },\n", named(error));
  munmap(mapped, bytes + kHuge);
}

void print_allocated(std::size_t bytes, const char* end) {
  void* host = nullptr;
  const double begin = now();
  const cudaError_t error = cudaHostAlloc(&host, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
  std::printf("  \"host_alloc_%zu_mib\": {\n    \"seconds\": %.3f,\n    \"result\": \"%s\"\n  }%s\n", bytes / kMib,
              now() - begin, named(error), end);
  if (host) cudaFreeHost(host);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t most = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 8192) * kMib;
  const double begin = now();
  int count = 0, driver = 0, runtime = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) error = cudaSetDevice(0);
  cudaDeviceProp device = {};
  std::size_t free = 0, total = 0;
  if (error == cudaSuccess) error = cudaGetDeviceProperties(&device, 0);
  if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
  cudaDriverGetVersion(&driver);
  cudaRuntimeGetVersion(&runtime);
  if (error != cudaSuccess) {
    std::printf("no GPU can be used: %s; driver %d, runtime %d\n", cudaGetErrorString(error), driver, runtime);
    return 1;
  }
  std::printf("{\n  \"device\": \"%s\",\n  \"compute_capability\": \"%d.%d\",\n", device.name, device.major,
              device.minor);
  std::printf("  \"driver\": %d,\n  \"runtime\": %d,\n", driver, runtime);
  std::printf("  \"registers_host_memory\": %s,\n  \"by_host_addresses\": %s,\n",
              device.hostRegisterSupported ? "true" : "false",
              device.canUseHostPointerForRegisteredMem ? "true" : "false");
  std::printf("  \"context_mib\": %.0f,\n  \"context_seconds\": %.2f,\n", mib(total - free), now() - begin);
  for (const std::size_t bytes : {kMib, most / 8, most})
    if (bytes >= kMib) print_registered(bytes, device.canUseHostPointerForRegisteredMem);
  print_allocated(kMib, ",");
  print_allocated(std::max(most / 2, kMib), "");
  std::printf("}\n");
  return 0;
}
