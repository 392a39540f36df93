// kernels/backend_cuda.cc: the GPU as a machine.
#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu_ops.h"
#include "kernels/error.h"
#include "kernels/host_machine.h"
#include "kernels/mapped_memory.h"
#include "kernels/ops_cuda.h"

namespace weft::kernels {
namespace cuda {

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // an error that is not sticky shall not come up again at the next call
  const std::string text = std::string(call) + ": " + cudaGetErrorName(error) + " (" + cudaGetErrorString(error) + ")";
  if (error == cudaErrorMemoryAllocation) throw CapacityError(text);
  throw DeviceError("the GPU failed: " + text + "; answers so far are kept, --resume continues");
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check(cudaPeekAtLastError(), call);
  throw DeviceError("the GPU failed: " + std::string(call) + ": " + cublasGetStatusString(status));
}

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
  return EventHandle(event);
}

}  // namespace cuda

namespace {

using namespace cuda;

constexpr std::size_t kPinnedPiece = std::size_t{4} << 30;  // what one registration takes at most
constexpr std::size_t kMostDirect = 64 << 20;               // of host memory that ops may use without a copy
constexpr std::size_t kTouchedBytes = 64 << 20;             // what is worth a thread
constexpr std::size_t kChunk = 16 << 20;                    // of a bulk copy: 0.3 ms of a fast link
constexpr std::size_t kMostContext = std::size_t{1} << 30;  // more than a context takes belongs to somebody else

std::string mebibytes(std::size_t bytes) { return std::to_string(bytes >> 20) + " MiB"; }

struct CudaEvent final : Event {
  EventHandle handle = make_event();
};

cudaStream_t handle_of(Stream& stream) { return static_cast<CudaStream&>(stream).get(); }

class CudaDeviceMemory final : public Memory {
 public:
  explicit CudaDeviceMemory(std::size_t bytes) {
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, std::max<std::size_t>(bytes, 1));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      std::size_t free = 0, total = 0;
      check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
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

/// Host memory whose pages several threads touch at once and which is then registered in pieces: cudaHostAlloc would
/// take a minute for 100 GB. The device reaches it by the same address. Where the system does not let so much be pinned
/// it stays as it is, and copies go by a ring; what ops use directly is small and must be pinned.
class CudaHostMemory final : public MappedMemory {
 public:
  explicit CudaHostMemory(std::size_t bytes) : MappedMemory(bytes) {
    touch();
    try {
      pin();
    } catch (...) {
      unpin();
      throw;
    }
  }
  ~CudaHostMemory() override { unpin(); }
  bool pinned() const { return pinned_ == bytes_; }

 private:
  void touch() const {
    const std::size_t most = std::min<std::size_t>(std::max(1u, std::thread::hardware_concurrency()), 16);
    const std::size_t count = std::min(most, bytes_ / kTouchedBytes + 1);
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < count; ++t)
      threads.emplace_back([this, t, count] {
        const std::size_t begin = bytes_ * t / count, end = bytes_ * (t + 1) / count;
        for (std::size_t i = begin; i < end; i += 4096) static_cast<volatile std::byte*>(data_)[i] = std::byte{};
      });
  }
  void pin() {
    for (; pinned_ < bytes_; pinned_ += std::min(kPinnedPiece, bytes_ - pinned_)) {
      const cudaError_t error = cudaHostRegister(data_ + pinned_, std::min(kPinnedPiece, bytes_ - pinned_),
                                                 cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (error == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        if (bytes_ > kMostDirect) return unpin();
        throw CapacityError("host memory: " + mebibytes(bytes_) + " were to be pinned, the system refuses; raise the " +
                            "limit (ulimit -l) or lower --host-memory");
      }
      check(error, "cudaHostRegister");
    }
  }
  void unpin() noexcept {
    for (std::size_t begin = 0; begin < pinned_; begin += kPinnedPiece) cudaHostUnregister(data_ + begin);
    pinned_ = 0;
  }

  std::size_t pinned_ = 0;  // bytes from the start on
};

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
      : device_(first_device()), pool_(options.threads > 0 ? options.threads : processors()), host_ops_(pool_) {
    check(cudaMemGetInfo(&free_at_start_, &total_), "cudaMemGetInfo");
  }

  std::string name() const override { return "cuda"; }
  std::string description() const override {
    return std::string(device_.name) + ", compute capability " + std::to_string(device_.major) + "." +
           std::to_string(device_.minor) + ", " + mebibytes(total_);
  }
  bool device_is_host_memory() const override { return false; }
  DType activation_type(DType) const override { return DType::f32; }

  std::size_t device_bytes_free() const override {
    std::size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return free;
  }
  std::size_t host_bytes_free() const override { return memory_available(); }
  std::size_t device_overhead() const override {
    return std::min(total_ - free_at_start_, kMostContext) + CudaStream::kOpsBytes;
  }

  std::unique_ptr<Memory> allocate_device(std::size_t bytes) override {
    return std::make_unique<CudaDeviceMemory>(bytes);
  }
  std::unique_ptr<Memory> allocate_host(std::size_t bytes) override { return std::make_unique<CudaHostMemory>(bytes); }
  std::unique_ptr<Stream> make_stream() override { return std::make_unique<CudaStream>(device_.multiProcessorCount); }
  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(); }

  /// A bulk copy goes in chunks of which two are queued at most: an engine serves what is queued first, so a small copy
  /// of another stream would wait for all of it.
  void copy(void* to, const void* from, std::size_t bytes, Stream& any) override {
    auto& stream = static_cast<CudaStream&>(any);
    for (std::size_t begin = 0, chunk = 0; begin < bytes; begin += kChunk, ++chunk) {
      const cudaEvent_t done = stream.chunk_done()[chunk % 2].get();
      if (chunk >= 2) check(cudaEventSynchronize(done), "cudaEventSynchronize");
      check(cudaMemcpyAsync(static_cast<std::byte*>(to) + begin, static_cast<const std::byte*>(from) + begin,
                            std::min(kChunk, bytes - begin), cudaMemcpyDefault, stream.get()),
            "cudaMemcpyAsync");
      if (bytes > kChunk) check(cudaEventRecord(done, stream.get()), "cudaEventRecord");
    }
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

  const Ops& ops() const override { return ops_; }
  const Ops& host_ops() const override { return host_ops_; }
  Stream& host_stream() override { return host_stream_; }

 private:
  struct HostStream final : Stream {};

  cudaDeviceProp device_;
  std::size_t free_at_start_ = 0, total_ = 0;
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

}  // namespace weft::kernels
