// kernels/backend/ceilings.h: measures what this machine can do at best, so that reports can compare a run with it.
// Each function takes about `seconds`, plus the time to fill its memory, and returns the median of several repetitions.
// Nothing else should run on the machine during a measurement.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/linear/linear_cpu.h"

namespace weft::kernels {

/// All threads read `bytes` of memory, each byte once. Software prefetches `prefetch` bytes ahead; with 0 only hardware
/// does.
void read_memory(ThreadPool& pool, const void* from, std::size_t bytes, std::int64_t prefetch);

/// Bytes per second at which all threads together read `bytes` of memory, each byte once. It is the faster of two ways:
/// with the hardware's prefetch alone, and with software prefetch as well. `bytes` should be 1 GiB or more, so that a
/// large cache flatters the result less.
double measure_dram_read(ThreadPool& pool, std::size_t bytes, double seconds);

/// The matrices whose products are measured. Numbers are normally distributed; with a table they have the same bits.
struct MeasuredWeights {
  DType type;
  int width = 4096;                     ///< rows and columns
  int group = 64;                       ///< numbers of a row that share a scale; in f8 it is 128
  LevelTable table = LevelTable::even;  ///< the meaning of i4's levels

  /// The size of one matrix.
  std::size_t bytes() const;
};

/// As many matrices of such weights as fill some bytes, at least 1, each of the same numbers. Filling them takes longer
/// than many a measurement.
class MeasuredProducts {
 public:
  /// The pool must outlive it.
  MeasuredProducts(ThreadPool& pool, const MeasuredWeights& weights, std::size_t bytes);
  /// Flop per second of Linear with m rows. Each repetition takes the next matrix.
  double flops(int m, double seconds, Arithmetic arithmetic = Arithmetic::int8) const;

 private:
  ThreadPool& pool_;
  const MeasuredWeights weights_;
  const std::size_t count_;
  const std::shared_ptr<std::byte> matrices_;
};

/// Weights per second that all threads quantise to `type`, from a matrix of 4096 x 4096 in fp16.
double measure_quantise(ThreadPool& pool, DType type, double seconds);

}  // namespace weft::kernels
