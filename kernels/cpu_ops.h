// kernels/cpu_ops.h: the CPU twins of the ops, for backend_cpu.cc and tests.
#pragma once

#include "kernels/ops.h"
#include "kernels/thread_pool.h"
#include "kernels/vector_kernels.h"

namespace weft::kernels {

/// Every op is done when run() returns; the stream is ignored. May be called from several threads, which take turns.
/// Spans, views and KV slots are all host memory.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(ThreadPool& pool, const VectorKernels& vectors = *vector_kernels().front())
      : pool_(pool), vectors_(vectors) {}

  void run(const Convert&, Stream&) const override;
  void run(const Add&, Stream&) const override;
  void run(const Multiply&, Stream&) const override;
  void run(const Gather&, Stream&) const override;
  void run(const LayerNorm&, Stream&) const override;
  void run(const TakeHeads&, Stream&) const override;
  void run(const Rotary&, Stream&) const override;
  void run(const Hadamard&, Stream&) const override;
  void run(const Linear&, Stream&) const override;
  void run(const UnpackWeights&, Stream&) const override;
  void run(const PrefillAttention&, Stream&) const override;
  void run(const ColumnSums&, Stream&) const override;
  void run(const KeepPrompt&, Stream&) const override;
  void run(const DecodeAttention&, Stream&) const override;
  void run(const Reposition&, Stream&) const override;
  void run(const Sample&, Stream&) const override;
  void run(const Forbid&, Stream&) const override;
  void run(const LogProbs&, Stream&) const override;
  void run(const TopLogProbs&, Stream&) const override;

 private:
  ThreadPool& pool_;
  const VectorKernels& vectors_;
};

}  // namespace weft::kernels
