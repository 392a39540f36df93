// runtime/measure/measure_ops.h: a run's ops over made-up operands, and the clock around them.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "offload/kv_layout.h"

namespace weft::runtime {

/// Who computes, and in whose memory the operands are.
enum class Side : std::uint8_t { device, host };

/// How long a figure is taken: repetitions of at least about `seconds` each, so that launches do not count.
struct Timing {
  double seconds = 0.05;
  int repetitions = 7;
};

double median(std::vector<double> values);

/// A queue of work on one side, and the clock around it.
class Timer {
 public:
  using Queue = std::function<void(kernels::Stream&)>;

  Timer(kernels::Backend& backend, Side side);
  kernels::Stream& stream() { return stream_ ? *stream_ : backend_.host_stream(); }
  void wait();  ///< until all that was queued is done; throws DeviceError if it failed
  /// Seconds that `count` calls of `queue` take, one after another.
  double run(const Queue& queue, int count);
  /// `work` per second of one call of `queue`, once for each repetition, after a warm-up; its seconds where `work` is
  /// 0.
  std::vector<double> rates(double work, const Timing& timing, const Queue& queue);

 private:
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;  // null: the host's
  std::unique_ptr<kernels::Event> event_;
};

/// Something that a lane or an engine does piece by piece: does one, waits for it, and returns how much work it was.
using Load = std::function<double()>;
/// Work per second of a load by itself; of two at once, each on a thread of its own. Takes `seconds`.
double rate_of(const Load& load, double seconds);
std::pair<double, double> rates_of(const Load& first, const Load& second, double seconds);

/// Makes operands in one side's memory. Throws CapacityError.
class Workbench {
 public:
  Workbench(kernels::Backend& backend, Side side);

  kernels::Backend& backend() const { return backend_; }
  const kernels::Ops& ops() const { return side_ == Side::host ? backend_.host_ops() : backend_.ops(); }
  Timer& timer() { return timer_; }

  std::unique_ptr<kernels::Memory> allocate(std::size_t bytes) const;
  /// Random numbers in [-1, 1), repeating every 2^20.
  std::unique_ptr<kernels::Memory> random(std::size_t numbers, DType type);
  void fill(std::byte* to, std::size_t numbers, DType type);
  /// With groups of quantised weights, as many as fit, for matrices whose sides are multiples of 16 and 64.
  void fill_groups(std::span<std::byte> to, DType type);
  /// A block in the steady state: every slot but the last holds a token, so that every step of H2O evicts one.
  std::unique_ptr<kernels::Memory> full_cache(const offload::KvShape& shape);

 private:
  /// Quantised rows of random levels.
  void fill_levels(std::byte* to, std::size_t rows, const offload::KvShape& shape);
  void bring(std::byte* to, const std::byte* from, std::size_t bytes);

  kernels::Backend& backend_;
  Side side_;
  Timer timer_;
  std::unique_ptr<kernels::Memory> table_;
};

/// Products with a different matrix each time, as many as `weights` has room for; of quantised ones in groups of
/// 64, in integer arithmetic where there is any. [rows, in] x [out, in]
class LinearWork {
 public:
  /// `in_layers`: with a bias, and every second product added to what is there, as layers do it; else bare. `weights`
  /// holds numbers of `type`, is borrowed, and has room for one matrix at least.
  LinearWork(Workbench& bench, DType type, int rows, int in, int out, std::span<std::byte> weights, bool in_layers);
  void queue(kernels::Stream& stream);
  double flops() const { return 2.0 * double(op_.x.rows) * double(numbers_); }

 private:
  const kernels::Ops& ops_;
  DType type_;
  std::size_t numbers_, bytes_;  // of one matrix
  std::span<std::byte> weights_;
  bool in_layers_;
  std::unique_ptr<kernels::Memory> x_, y_, bias_;
  kernels::Linear op_;
  std::size_t next_ = 0;
};

/// Decode steps of H2O that evict, over full caches of slots of `type` that fill `bytes` or a little more.
class DecodeWork {
 public:
  DecodeWork(Workbench& bench, int heads, int slots, int head_dim, DType type, std::size_t bytes);
  void queue(kernels::Stream& stream);
  /// What a step moves: keys and values, and of each slot the position read and the score read and written.
  double bytes() const;

 private:
  const kernels::Ops& ops_;
  offload::KvShape shape_;
  std::unique_ptr<kernels::Memory> cache_, q_, out_;
  std::vector<std::int32_t> sequence_, position_;
  std::vector<kernels::Keep> keep_;
  kernels::DecodeAttention op_;
};

/// Attention of `prompts` whole prompts over keys and values of fp16, and the scores of their tokens.
class PrefillWork {
 public:
  PrefillWork(Workbench& bench, int heads, int head_dim, int prompt, int prompts);
  void attend(kernels::Stream& stream);  ///< leaves the row sums that column_sums() reads
  void column_sums(kernels::Stream& stream);
  /// Of one product over the causal half: attend() does two of them, column_sums() one.
  double flops() const { return flops_; }

 private:
  const kernels::Ops& ops_;
  double flops_;
  std::unique_ptr<kernels::Memory> q_, k_, v_, out_, lse_, score_;
  std::vector<std::int32_t> offsets_;
  kernels::PrefillAttention attend_;
  kernels::ColumnSums sums_;
};

}  // namespace weft::runtime
