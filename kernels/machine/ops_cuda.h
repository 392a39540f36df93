// kernels/machine/ops_cuda.h: the CUDA twins of the ops, and the stream that they are queued on.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/machine/copy_pace.h"
#include "kernels/machine/cuda.h"
#include "kernels/machine/product_cuda.h"

namespace weft::kernels {

/// One stream, and the resources that ops need in addition to their operands. One thread at a time uses it.
///
/// Work that repeats unchanged, such as the decode steps of a resident model, can run as a CUDA graph: ops then only
/// copy their spans to where the graph's kernels read them, and one launch does the rest.
class CudaStream final : public Stream {
 public:
  /// Some kernels adapt to the device: its number of multiprocessors, and the bytes of shared memory that a thread
  /// block may have. `batch_invariant`: see cuda::ProductLibrary.
  CudaStream(int multiprocessors, std::size_t shared_bytes, bool batch_invariant);

  cudaStream_t get() const { return stream_.get(); }
  int multiprocessors() const { return multiprocessors_; }
  /// Whether so many thread blocks keep the device busy, so that their work need not be split further. That would
  /// depend on the batch, so in a batch-invariant stream the answer is always yes.
  bool fill(std::int64_t thread_blocks, int of_multiprocessor) const {
    return batch_invariant_ || thread_blocks >= std::int64_t{of_multiprocessor} * multiprocessors_;
  }
  bool batch_invariant() const { return batch_invariant_; }
  /// Whether a multiprocessor has room for two thread blocks of so much shared memory. It has 1 KiB more than one may
  /// have, and takes 1 KiB for each.
  bool holds_two(std::size_t shared_bytes) const { return 2 * shared_bytes + 1024 <= shared_bytes_; }

  // The following serves ops; the first call allocates kOpsBytes of device memory and a cuBLASLt handle.

  /// Queues a product, unless the stream's record does; see cuda::ProductLibrary::run().
  bool multiply(const cuda::Product& product);
  /// A copy of `values` on the device. It stays valid for ops queued before later calls have uploaded kRing / 2 bytes.
  /// Waits for the device only when half the ring is used again. A kernel that reads mapped memory does the copy,
  /// because a memcpy would queue behind the bulk copies of other streams. Values that the ring still holds are not
  /// copied again.
  template <class T> const T* upload(std::span<const T> values) {
    return static_cast<const T*>(upload(values.data(), values.size_bytes()));
  }
  /// Device memory for one op, 256-byte aligned; the next op may overwrite it. Throws CapacityError beyond kWorkspace.
  std::byte* workspace(std::size_t bytes);

  /// Runs `work`, which queues ops on this stream. The first kDirect times that `signature` comes it runs directly;
  /// then it is recorded, and later calls replay the record. The kGraphs records used last are kept. See
  /// Backend::repeat().
  void repeat(std::uint64_t signature, const std::function<void()>& work);
  /// Whether ops should only carry over their spans and queue nothing.
  bool repeats() const { return mode_ == Mode::repeats; }

  static constexpr std::size_t kWorkspace = 64 << 20, kRing = 4 << 20, kStep = 2 << 20, kBlas = 32 << 20;
  static constexpr std::size_t kOpsBytes = kWorkspace + kRing + kStep + kBlas;  ///< kStep: spans of one recorded step

  /// Making a record takes as long as it saves in a few steps, so a signature must have come that often before. All
  /// records together take at most kGraphBytes of device memory, or one record more; the size of each is measured when
  /// it is made. When that is taken, a record that none of the last kUnused steps used is dropped for a new one.
  static constexpr int kDirect = 4, kGraphs = 8;
  static constexpr std::uint64_t kUnused = 2 * kGraphs;
  static constexpr std::size_t kGraphBytes = 128 << 20, kSignatures = 256;

  // For bulk copies: see CudaBackend::copy().
  CopyPace& pace() { return pace_; }
  std::array<cuda::EventHandle, 2>& group_done() { return group_done_; }
  /// One of two pieces of pinned memory, for host memory that is not pinned. piece_done(): the ends of their copies.
  std::byte* pinned(std::size_t piece, std::size_t bytes);
  std::array<cuda::EventHandle, 2>& piece_done() { return piece_done_; }

 private:
  struct Upload {
    std::size_t offset, bytes;
  };
  enum class Mode : std::uint8_t { direct, records, repeats };
  struct Record {
    int seen = 0;
    std::uint64_t used = 0;   // the step that used it last
    cuda::GraphHandle graph;  // null: not made yet, or its spans are too many
    std::size_t bytes = 0;    // bytes of its spans
  };
  const void* upload(const void* data, std::size_t bytes);
  const void* upload_for_step(const void* data, std::size_t bytes);
  void carry_over(std::size_t offset, std::size_t bytes);
  void record(Record& record, const std::function<void()>& work);
  void instantiate(Record& record, cudaGraph_t graph);
  Record& record_of(std::uint64_t signature);
  void forget(bool graphs);
  bool has_room_for_graph();
  void allocate();

  cuda::StreamHandle stream_;
  const int multiprocessors_;
  const std::size_t shared_bytes_;
  CopyPace pace_;
  std::array<cuda::EventHandle, 2> group_done_, piece_done_;
  std::array<cuda::HostMemory, 2> pinned_;
  cuda::DeviceMemory device_;  // workspace, ring, cuBLASLt's workspace
  cuda::HostMemory ring_;      // mapped: kRing, then kStep
  const bool batch_invariant_;
  std::unique_ptr<cuda::ProductLibrary> products_;
  std::array<cuda::EventHandle, 2> half_done_;
  std::vector<Upload> uploads_;  // in the present half of the ring
  std::size_t half_ = 0, used_ = 0;
  Mode mode_ = Mode::direct;
  std::size_t step_used_ = 0;
  std::map<std::uint64_t, Record> records_;  // those of the last kSignatures signatures
  std::uint64_t steps_ = 0;
  std::size_t graphs_ = 0, graph_bytes_ = 0;  // records that have a graph; bytes that the driver holds for graphs
  bool replaces_ = true;                      // a graph that goes makes room for another
};

namespace cuda {

/// Queues a kernel of an op. Does nothing while the stream repeats a record, which already has the kernel.
template <class... P, class... A>
void launch(void (*kernel)(P...), dim3 grid, unsigned threads, std::size_t shared_bytes, CudaStream& stream,
            A&&... args) {
  if (!stream.repeats()) launch(kernel, grid, threads, shared_bytes, stream.get(), std::forward<A>(args)...);
}

}  // namespace cuda

/// Queues a kernel that reads `bytes`, whole 16-byte words, and does nothing with them.
void read_words(const void* from, std::size_t bytes, CudaStream& stream);

/// When run() returns, the op is queued on its stream, a CudaStream. Views and slots are device memory or memory of
/// allocate_host(). Spans that are read may be any memory and are copied at once; spans that are written must be memory
/// of allocate_host() and are written when the stream gets there. cuBLASLt picks its algorithms by shape,
/// so there is no batch invariance, unless the stream asks for it.
class CudaOps final : public Ops {
 public:
  WEFT_KERNEL_OPS(WEFT_DECLARE_TWIN)
};

}  // namespace weft::kernels
