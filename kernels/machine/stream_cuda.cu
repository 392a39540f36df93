// kernels/machine/stream_cuda.cu: a stream, and the resources that ops need in addition to their operands.
#include <algorithm>
#include <cstring>
#include <string>

#include "kernels/error.h"
#include "kernels/machine/device_cuda.h"
#include "kernels/machine/ops_cuda.h"

namespace weft::kernels {
namespace {

using namespace cuda;

std::size_t whole_words(std::size_t bytes) { return (bytes + sizeof(uint4) - 1) / sizeof(uint4) * sizeof(uint4); }

/// Carries words from mapped host memory to the device.
__global__ void carry(const uint4* from, uint4* to, int count) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) to[i] = from[i];
}

}  // namespace

CudaStream::CudaStream(int multiprocessors, std::size_t shared_bytes, bool batch_invariant)
    : multiprocessors_(multiprocessors), shared_bytes_(shared_bytes), batch_invariant_(batch_invariant) {
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  stream_ = StreamHandle(stream);
  for (auto* events : {&group_done_, &piece_done_})
    for (cuda::EventHandle& event : *events) event = make_event();
}

void CudaStream::allocate() {
  if (device_.get()) return;
  void *device = nullptr, *ring = nullptr;
  check(cudaMalloc(&device, kOpsBytes), "cudaMalloc");
  device_ = DeviceMemory(device);
  check(cudaHostAlloc(&ring, kRing + kStep, cudaHostAllocMapped | cudaHostAllocPortable), "cudaHostAlloc");
  ring_ = HostMemory(ring);
  for (cuda::EventHandle& event : half_done_) event = make_event();
  products_ = std::make_unique<cuda::ProductLibrary>(batch_invariant_);
}

bool CudaStream::multiply(const cuda::Product& product) {
  if (repeats()) return true;
  allocate();
  return products_->run(product, static_cast<std::byte*>(device_.get()) + kOpsBytes - kBlas, kBlas, get());
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
  if (mode_ != Mode::direct) return upload_for_step(data, bytes);
  auto* const host = static_cast<std::byte*>(ring_.get());
  auto* const device = static_cast<std::byte*>(device_.get()) + kWorkspace;
  for (const Upload& earlier : uploads_)
    if (earlier.bytes == bytes && std::memcmp(host + earlier.offset, data, bytes) == 0) return device + earlier.offset;
  constexpr std::size_t half = kRing / 2;
  const std::size_t size = whole_words(bytes);
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
  carry_over(offset, size);
  constexpr std::size_t remembered = 16;
  if (uploads_.size() == remembered) uploads_.erase(uploads_.begin());
  uploads_.push_back({offset, bytes});
  return device + offset;
}

/// The place of a span depends on its turn alone, because two spans may be equal in one step and differ in the next.
const void* CudaStream::upload_for_step(const void* data, std::size_t bytes) {
  const std::size_t offset = kRing + step_used_;
  step_used_ += whole_words(bytes);
  if (step_used_ <= kStep) std::memcpy(static_cast<std::byte*>(ring_.get()) + offset, data, bytes);
  return static_cast<std::byte*>(device_.get()) + kWorkspace + offset;
}

/// Copies from the ring's host side to the device's.
void CudaStream::carry_over(std::size_t offset, std::size_t bytes) {
  const int words = static_cast<int>(bytes / sizeof(uint4));
  launch(carry, dim3(std::min(blocks_for(words, 256), 32u)), 256, 0, get(),
         reinterpret_cast<const uint4*>(static_cast<std::byte*>(ring_.get()) + offset),
         reinterpret_cast<uint4*>(static_cast<std::byte*>(device_.get()) + kWorkspace + offset), words);
}

void CudaStream::record(Record& record, const std::function<void()>& work) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  mode_ = Mode::records;
  try {
    work();
  } catch (...) {
    mode_ = Mode::direct;
    static_cast<void>(cudaStreamEndCapture(get(), &graph));
    if (graph) static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  mode_ = Mode::direct;
  check(cudaStreamEndCapture(get(), &graph), "cudaStreamEndCapture");
  record.bytes = step_used_;
  try {
    if (record.bytes <= kStep) instantiate(record, graph);
  } catch (...) {
    static_cast<void>(cudaGraphDestroy(graph));
    throw;
  }
  static_cast<void>(cudaGraphDestroy(graph));
}

/// Leaves the graph null if the device has no memory for it, because steps run without.
void CudaStream::instantiate(Record& record, cudaGraph_t graph) {
  std::size_t before = 0, after = 0, total = 0;
  check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    graph_bytes_ = kGraphBytes;
    return;
  }
  check(error, "cudaGraphInstantiate");
  record.graph = GraphHandle(executable);
  ++graphs_;
  check(cudaGraphUpload(executable, get()), "cudaGraphUpload");  // else its first launch would take the memory
  check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  const std::size_t grown = before - std::min(before, after);
  if (graph_bytes_ >= kGraphBytes && grown > 0) replaces_ = false;
  graph_bytes_ += grown;
}

CudaStream::Record& CudaStream::record_of(std::uint64_t signature) {
  if (records_.size() == kSignatures && !records_.contains(signature)) forget(/*graphs=*/records_.size() == graphs_);
  Record& record = records_[signature];
  record.used = ++steps_;
  return record;
}

/// Drops the record that was used least recently: among those with a graph, or among those without.
void CudaStream::forget(bool graphs) {
  auto oldest = records_.end();
  for (auto it = records_.begin(); it != records_.end(); ++it)
    if ((it->second.graph.get() != nullptr) == graphs &&
        (oldest == records_.end() || it->second.used < oldest->second.used))
      oldest = it;
  if (oldest == records_.end()) return;
  if (!graphs) {
    records_.erase(oldest);
    return;
  }
  std::size_t before = 0, after = 0, total = 0;
  check(cudaStreamSynchronize(get()), "cudaStreamSynchronize");  // it may be under way
  check(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  records_.erase(oldest);
  --graphs_;
  check(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  graph_bytes_ -= std::min(graph_bytes_, after - std::min(before, after));  // nothing, if the driver keeps it
}

/// Whether a new graph may be made. If all memory for graphs is taken, one that steps have stopped using goes. A driver
/// may keep the memory of that one for the next; one that then takes more all the same gets no further graphs.
bool CudaStream::has_room_for_graph() {
  if (graph_bytes_ < kGraphBytes) return true;
  if (!replaces_) return false;
  const bool unused = std::any_of(records_.begin(), records_.end(), [this](const auto& each) {
    return each.second.graph.get() && each.second.used + kUnused < steps_;
  });
  if (unused) forget(/*graphs=*/true);
  return unused;
}

void CudaStream::repeat(std::uint64_t signature, const std::function<void()>& work) {
  Record& its = record_of(signature);
  step_used_ = 0;
  if (!its.graph.get()) {
    // In the first calls libraries and kernels set themselves up, which no record may contain.
    if (its.seen < kDirect || its.bytes > kStep || !has_room_for_graph()) {
      its.seen = std::min(its.seen + 1, kDirect);
      return work();
    }
    if (graphs_ == kGraphs) forget(/*graphs=*/true);
    record(its, work);
    if (!its.graph.get()) return work();
  } else {
    mode_ = Mode::repeats;
    try {
      work();
    } catch (...) {
      mode_ = Mode::direct;
      throw;
    }
    mode_ = Mode::direct;
    if (step_used_ != its.bytes) throw DeviceError("repeat: a step's ops differ from those of its signature");
  }
  carry_over(kRing, step_used_);
  check(cudaGraphLaunch(its.graph.get(), get()), "cudaGraphLaunch");
}

}  // namespace weft::kernels
