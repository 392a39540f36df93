// kernels/ops_cuda.h: the CUDA twins of the ops, and the stream that they are queued on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda.h"

namespace weft::kernels {

/// One stream with what ops need beside their operands. Used by one thread at a time.
class CudaStream final : public Stream {
 public:
  /// `multiprocessors`: of the device, for kernels that adapt their grid to it.
  explicit CudaStream(int multiprocessors);

  cudaStream_t get() const { return stream_.get(); }
  int multiprocessors() const { return multiprocessors_; }

  // What follows serves ops; the first call allocates kOpsBytes of device memory and a cuBLAS handle.

  cublasHandle_t blas();
  /// A copy of `values` on the device, good for ops queued before later calls have carried kRing / 2 bytes. Waits for
  /// the device only when half the ring comes round again. Goes by a kernel that reads mapped memory, for a copy would
  /// queue behind the bulk copies of other streams; what the ring still holds is not carried again.
  template <class T> const T* upload(std::span<const T> values) {
    return static_cast<const T*>(upload(values.data(), values.size_bytes()));
  }
  /// Device memory for one op, 256-byte aligned; the next op may overwrite it. Throws CapacityError beyond kWorkspace.
  std::byte* workspace(std::size_t bytes);

  static constexpr std::size_t kWorkspace = 64 << 20, kRing = 4 << 20, kBlas = 32 << 20;  ///< bytes
  static constexpr std::size_t kOpsBytes = kWorkspace + kRing + kBlas;

  // For bulk copies: see CudaBackend::copy().
  std::array<cuda::EventHandle, 2>& chunk_done() { return chunk_done_; }
  /// One of two pieces of pinned memory, for host memory that is not.
  std::byte* pinned(std::size_t piece, std::size_t bytes);

 private:
  struct Upload {
    std::size_t offset, bytes;
  };
  const void* upload(const void* data, std::size_t bytes);
  void allocate();

  cuda::StreamHandle stream_;
  int multiprocessors_;
  std::array<cuda::EventHandle, 2> chunk_done_;
  std::array<cuda::HostMemory, 2> pinned_;
  cuda::DeviceMemory device_;  // workspace, ring, cuBLAS's workspace
  cuda::HostMemory ring_;      // mapped
  cuda::BlasHandle blas_;
  std::array<cuda::EventHandle, 2> half_done_;
  std::vector<Upload> uploads_;  // in the present half of the ring
  std::size_t half_ = 0, used_ = 0;
};

/// Queues a kernel that reads `bytes`, whole 16-byte words, and does nothing with them.
void read_words(const void* from, std::size_t bytes, CudaStream& stream);

/// Every op is queued on its stream, a CudaStream, when run() returns. Views and slots are device memory or memory of
/// allocate_host(); spans that are read may be any memory and are copied at once; spans that are written must be memory
/// of allocate_host() and are written when the stream gets there. cuBLAS picks its algorithms by shape: there is no
/// batch invariance.
class CudaOps final : public Ops {
 public:
  void run(const Convert&, Stream&) const override;
  void run(const Add&, Stream&) const override;
  void run(const Gather&, Stream&) const override;
  void run(const LayerNorm&, Stream&) const override;
  void run(const Linear&, Stream&) const override;
  void run(const PrefillAttention&, Stream&) const override;
  void run(const ColumnSums&, Stream&) const override;
  void run(const KeepPrompt&, Stream&) const override;
  void run(const DecodeAttention&, Stream&) const override;
  void run(const Sample&, Stream&) const override;
  void run(const LogProbs&, Stream&) const override;
};

}  // namespace weft::kernels
