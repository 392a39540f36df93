// kernels/backend/backend_cuda.cc: the GPU as a machine.
#include <algorithm>
#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/linear/linear_quantised_cuda.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/machine/host_machine.h"
#include "kernels/machine/host_memory_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels {
namespace cuda {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // so that the next call does not return this error again
  const std::string text = std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
  if (error == cudaErrorMemoryAllocation) throw CapacityError(text);
  throw DeviceError("the GPU failed: " + text + "; answers so far are kept, --resume continues");
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check(cudaPeekAtLastError(), call);
  throw DeviceError("the GPU failed: " + std::string(call) + ": " + cublasLtGetStatusString(status));
}

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "cudaEventCreate");
  return EventHandle(event);
}

}  // namespace cuda

namespace {

using namespace cuda;

constexpr std::size_t kChunk = CopyPace::kChunk;  // of copies by the ring
constexpr std::size_t kLibraries = 128 << 20;     // code of cuBLAS and of our kernels once loaded: an estimate
// A context takes less; anything above it belongs to another process.
constexpr std::size_t kMostContext = std::size_t{1} << 30;

struct CudaEvent final : Event {
  EventHandle handle = make_event();
};

cudaStream_t handle_of(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

class CudaDeviceMemory final : public Memory {
 public:
  explicit CudaDeviceMemory(std::size_t bytes) {
    void* data = nullptr;
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    // A size that no card has may be invalid to the driver (cudaErrorInvalidValue).
    const cudaError_t error =
        bytes > total ? cudaErrorMemoryAllocation : cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      throw CapacityError("GPU memory: " + mebibytes(bytes) + " wanted, " + mebibytes(free) + " of " +
                          mebibytes(total) + " are free; lower --device-memory");
    }
    check(error, "cudaMalloc");
    memory_ = DeviceMemory(data);
    data_ = static_cast<std::byte*>(data), bytes_ = bytes;
  }

 private:
  DeviceMemory memory_;
};

HostPinning pinning_for(const cudaDeviceProp& device) {
  char place[32] = "";
  if (cudaDeviceGetPCIBusId(place, sizeof place, 0) != cudaSuccess) cudaGetLastError();
  return {device.hostRegisterSupported && device.canUseHostPointerForRegisteredMem, memory_node(place)};
}

CoreShares shares_for(const HostPinning& pinning, const std::vector<int>& allowed, int asked) {
  return share_cores(processors(), allowed, processors_of_node(pinning.node), asked);
}

cudaDeviceProp first_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    throw DeviceError(
        "no GPU can be used: " + std::string(error == cudaSuccess ? "none is visible" : cudaGetErrorString(error)) +
        "; use --backend cpu");
  }
  check(cudaSetDevice(0), "cudaSetDevice");
  cudaDeviceProp properties;
  check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
  return properties;
}

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(const CudaOptions& options)
      : device_(first_device()), batch_invariant_(options.batch_invariant), pinning_(pinning_for(device_)),
        cores_(shares_for(pinning_, allowed_, options.threads)), pool_(cores_.computing, cores_.others),
        host_ops_(pool_) {
    check(cudaMemGetInfo(&free_at_start_, &total_), "cudaMemGetInfo");
  }

  std::string name() const override { return "cuda"; }
  std::string description() const override {
    return std::string(device_.name) + ", compute capability " + std::to_string(device_.major) + "." +
           std::to_string(device_.minor) + ", " + mebibytes(total_) + (batch_invariant_ ? ", batch-invariant" : "");
  }
  std::string warning() const override { return host_ranges_.trouble(); }
  void settle_thread(Duty duty) const override {
    if (duty == Duty::computes_on_host) return stay_on(cores_.others);
    stay_on(cores_.feeding);
    stay_on(allowed_);  // it begins there, and may go where there is room if another process takes these cores
  }
  std::string core_shares() const override {
    if (cores_.feeding.empty()) return {};
    return std::to_string(cores_.computing) + (cores_.computing == 1 ? " thread computes" : " threads compute") +
           " on the host, " + std::to_string(cores_.feeding.size()) + " of " +
           std::to_string(cores_.feeding.size() + cores_.others.size()) + " cores are left to feed the GPU";
  }
  bool device_is_host_memory() const override { return false; }
  DType product_type(DType weights) const override { return weights; }
  bool unpacks_weights() const override { return true; }
  std::int64_t packed_rows() const override { return batch_invariant_ ? 0 : cuda::kPackedRows; }

  std::size_t device_bytes_free() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }
  std::size_t host_bytes_free() const override { return memory_available(); }
  std::size_t device_overhead() const override {
    return std::min(total_ - free_at_start_, kMostContext) + kLibraries + CudaStream::kOpsBytes +
           CudaStream::kGraphBytes;
  }

  /// In a square product of 4096 columns, in tiles of 128 x 256, these rows give each multiprocessor nearly two tiles.
  std::int64_t rows_that_fill() const override {
    const auto rows = std::bit_ceil(static_cast<unsigned>(15 * std::max(1, device_.multiProcessorCount)));
    return std::clamp<std::int64_t>(rows, 512, 4096);
  }
  bool batch_invariant() const override { return batch_invariant_; }
  std::int64_t prefix_step() const override { return kPrefixStep; }

  std::unique_ptr<Memory> allocate_device(std::size_t bytes) override {
    return std::make_unique<CudaDeviceMemory>(bytes);
  }
  std::unique_ptr<Memory> allocate_host(std::size_t bytes) override {
    return std::make_unique<CudaHostMemory>(bytes, pinning_, host_ranges_);
  }
  bool device_reaches(const void* host, std::size_t bytes) const override {
    return !host_ranges_.pageable(host, bytes);
  }
  std::unique_ptr<Stream> make_stream() override {
    return std::make_unique<CudaStream>(device_.multiProcessorCount, device_.sharedMemPerBlockOptin, batch_invariant_);
  }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

  /// A bulk copy goes in chunks, of which CopyPace lets only so many be queued.
  void copy(void* to, const void* from, std::size_t bytes, Stream& any) override {
    auto& stream = static_cast<CudaStream&>(any);
    for (std::size_t begin = 0, size = 0; begin < bytes; begin += size) {
      auto* const target = static_cast<std::byte*>(to) + begin;
      const auto* const source = static_cast<const std::byte*>(from) + begin;
      const auto [source_bytes, from_pageable] = host_ranges_.part(source, bytes - begin);
      const auto [both_bytes, to_pageable] = host_ranges_.part(target, source_bytes);
      size = both_bytes;
      if (from_pageable) copy_from_pageable(target, source, size, stream);
      else if (to_pageable) copy_to_pageable(target, source, size, stream);
      else copy_pinned(target, source, size, stream);
    }
  }
  void read(const void* from, std::size_t bytes, Stream& stream) override {
    read_words(from, bytes, static_cast<CudaStream&>(stream));
  }
  void record(Event& event, Stream& stream) override {
    check(cudaEventRecord(static_cast<CudaEvent&>(event).handle.get(), handle_of(stream)), "cudaEventRecord");
  }
  void wait(Stream& stream, const Event& event) override {
    check(cudaStreamWaitEvent(handle_of(stream), static_cast<const CudaEvent&>(event).handle.get(), 0),
          "cudaStreamWaitEvent");
  }
  void synchronize(const Event& event) override {
    check(cudaEventSynchronize(static_cast<const CudaEvent&>(event).handle.get()), "cudaEventSynchronize");
  }

  void repeat(Stream& stream, std::uint64_t signature, const std::function<void()>& work) override {
    static_cast<CudaStream&>(stream).repeat(signature, work);
  }

  const Ops& ops() const override { return ops_; }
  const Ops& host_ops() const override { return host_ops_; }
  Stream& host_stream() override { return host_stream_; }

 private:
  struct HostStream final : Stream {};

  static void copy_pinned(std::byte* to, const std::byte* from, std::size_t bytes, CudaStream& stream) {
    const auto event = [&](std::size_t i) { return stream.group_done()[i].get(); };
    stream.pace().copy(
        bytes,
        [&](std::size_t begin, std::size_t size) {
          check(cudaMemcpyAsync(to + begin, from + begin, size, cudaMemcpyDefault, stream.get()), "cudaMemcpyAsync");
        },
        [&](std::size_t i) { check(cudaEventRecord(event(i), stream.get()), "cudaEventRecord"); },
        [&](std::size_t i) { check(cudaEventSynchronize(event(i)), "cudaEventSynchronize"); });
  }
  /// Uses two pinned pieces in turn: while one travels the other is filled.
  static void copy_from_pageable(void* to, const void* from, std::size_t bytes, CudaStream& stream) {
    for (std::size_t begin = 0, chunk = 0; begin < bytes; begin += kChunk, ++chunk) {
      const std::size_t size = std::min(kChunk, bytes - begin);
      const cudaEvent_t done = stream.piece_done()[chunk % 2].get();
      check(cudaEventSynchronize(done), "cudaEventSynchronize");
      std::byte* const piece = stream.pinned(chunk % 2, kChunk);
      std::memcpy(piece, static_cast<const std::byte*>(from) + begin, size);
      check(cudaMemcpyAsync(static_cast<std::byte*>(to) + begin, piece, size, cudaMemcpyHostToDevice, stream.get()),
            "cudaMemcpyAsync");
      check(cudaEventRecord(done, stream.get()), "cudaEventRecord");
    }
  }
  /// Returns when everything has arrived.
  static void copy_to_pageable(void* to, const void* from, std::size_t bytes, CudaStream& stream) {
    const std::size_t chunks = (bytes + kChunk - 1) / kChunk;
    for (std::size_t chunk = 0; chunk <= chunks; ++chunk) {  // each arrives while the next travels
      if (chunk < chunks) {
        const std::size_t begin = chunk * kChunk;
        const cudaEvent_t done = stream.piece_done()[chunk % 2].get();
        check(cudaEventSynchronize(done), "cudaEventSynchronize");
        check(cudaMemcpyAsync(stream.pinned(chunk % 2, kChunk), static_cast<const std::byte*>(from) + begin,
                              std::min(kChunk, bytes - begin), cudaMemcpyDeviceToHost, stream.get()),
              "cudaMemcpyAsync");
        check(cudaEventRecord(done, stream.get()), "cudaEventRecord");
      }
      if (chunk == 0) continue;
      const std::size_t before = chunk - 1, begin = before * kChunk;
      check(cudaEventSynchronize(stream.piece_done()[before % 2].get()), "cudaEventSynchronize");
      std::memcpy(static_cast<std::byte*>(to) + begin, stream.pinned(before % 2, kChunk),
                  std::min(kChunk, bytes - begin));
    }
  }

  cudaDeviceProp device_;
  const bool batch_invariant_;
  HostPinning pinning_;
  const std::vector<int> allowed_ = allowed_processors();
  CoreShares cores_;
  std::size_t free_at_start_ = 0, total_ = 0;
  HostRanges host_ranges_;
  CudaOps ops_;
  ThreadPool pool_;
  CpuOps host_ops_;
  HostStream host_stream_;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  if (options.threads < 0)
    throw UsageError("threads: wanted 1 or more, or 0 for all cores, got " + std::to_string(options.threads));
  return std::make_unique<CudaBackend>(options);
}

// The function that kCudaEntry names and backend_load_cuda.cc calls.
extern "C" [[gnu::visibility("default")]] Backend* weft_make_cuda_backend(const CudaOptions& options) {
  return make_cuda_backend(options).release();
}

}  // namespace weft::kernels
