// kernels/machine/cpu_ops.h: the CPU twins of the ops, for backend_cpu.cc and tests.
#pragma once

#include <initializer_list>
#include <utility>

#include "kernels/machine/thread_pool.h"
#include "kernels/ops.h"

namespace weft::kernels {

struct VectorKernels;  // kernels/attention/cpu/kernels.h

/// Every op is done when run() returns; the stream is ignored. May be called from several threads, which take turns.
/// Spans, views and KV slots are all host memory.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(ThreadPool& pool);  ///< uses the fastest vectors that this processor has
  CpuOps(ThreadPool& pool, const VectorKernels& vectors) : pool_(pool), vectors_(vectors) {}

  WEFT_KERNEL_OPS(WEFT_DECLARE_TWIN)

 private:
  ThreadPool& pool_;
  const VectorKernels& vectors_;
};

/// Throws UsageError, as check() of an op does, unless these activations are f32. A GPU takes others too.
void require_f32(const char* op, std::initializer_list<std::pair<const char*, ConstView>> activations);

}  // namespace weft::kernels
