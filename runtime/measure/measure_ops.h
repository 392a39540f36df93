// runtime/measure/measure_ops.h: times a run's ops over made-up operands.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "offload/kv_layout.h"

namespace weft::runtime {

/// The side that computes and has the operands in its memory.
enum class Side : std::uint8_t { device, host };

/// The repetitions of a figure. Each takes at least about `seconds`, so that launches do not count.
struct Timing {
  double seconds = 0.05;
  int repetitions = 7;
};

double median(std::vector<double> values);

/// Times a queue of work on one side.
class Timer {
 public:
  using Queue = std::function<void(kernels::Stream&)>;

  Timer(kernels::Backend& backend, Side side);
  kernels::Stream& stream() { return stream_ ? *stream_ : backend_.host_stream(); }
  void wait();  ///< until all queued work is done; throws DeviceError if it failed
  /// Seconds that `count` calls of `queue` take, one after another.
  double run(const Queue& queue, int count);
  /// Queues `count` calls and returns while they run, as the lanes do: it waits only for the calls of the fourth feed()
  /// before this one. So a thread that is woken late leaves no gap in the stream. Ends with wait().
  void feed(const Queue& queue, int count);
  /// `work` per second of one call of `queue`, once for each repetition, after a warm-up. If `work` is 0, the seconds
  /// of one call.
  std::vector<double> rates(double work, const Timing& timing, const Queue& queue);

 private:
  kernels::Backend& backend_;
  std::unique_ptr<kernels::Stream> stream_;  // null: the host's stream
  std::unique_ptr<kernels::Event> event_;
  std::array<std::unique_ptr<kernels::Event>, 4> fed_;
  std::size_t next_fed_ = 0;
};

/// Keeps a lane or an engine busy.
struct Load {
  std::function<double()> piece;       ///< does or queues a piece of work, and returns how much it is
  std::function<void()> wait = [] {};  ///< until all that was queued is done
};
/// Work per second of one load alone, or of two at once, each on its own thread. Takes `seconds`.
double rate_of(const Load& load, double seconds);
std::pair<double, double> rates_of(const Load& first, const Load& second, double seconds);

/// Makes operands in one side's memory. Throws CapacityError.
class Workbench {
 public:
  Workbench(kernels::Backend& backend, Side side);

  kernels::Backend& backend() const { return backend_; }
  /// The type of the rows that a layer gives to products with such weights, and gets from them for further products.
  DType product_type(DType weights) const {
    return side_ == Side::host ? DType::f32 : backend_.product_type(is_quantised(weights) ? DType::f16 : weights);
  }
  const kernels::Ops& ops() const { return side_ == Side::host ? backend_.host_ops() : backend_.ops(); }
  Timer& timer() { return timer_; }

  std::unique_ptr<kernels::Memory> allocate(std::size_t bytes) const;
  /// Random numbers in [-1, 1), repeating every 2^20.
  std::unique_ptr<kernels::Memory> random(std::size_t numbers, DType type);
  void fill(std::byte* to, std::size_t numbers, DType type);
  /// Fills `to` with as many groups of quantised weights as fit, for matrices whose sides are multiples of 16 and 64.
  void fill_groups(std::span<std::byte> to, DType type);
  /// A KV buffer in the steady state: every slot but the last holds a token, so that every decode step of H2O evicts
  /// one.
  std::unique_ptr<kernels::Memory> full_cache(const offload::KvShape& shape);

 private:
  /// Fills quantised rows with random levels.
  void fill_levels(std::byte* to, std::size_t rows, const offload::KvShape& shape);
  void bring(std::byte* to, const std::byte* from, std::size_t bytes);

  kernels::Backend& backend_;
  Side side_;
  Timer timer_;
  std::unique_ptr<kernels::Memory> table_;
};

/// [rows, in] x [out, in]: products with a different matrix each time, as many as `weights` has room for. Quantised
/// matrices have groups of 64 and are multiplied in integer arithmetic if there is any.
class LinearWork {
 public:
  /// `in_layers`: products have a bias, and every second one is added to its output, as in layers. `weights` holds
  /// numbers of `type`, is borrowed, and has room for at least one matrix.
  LinearWork(Workbench& bench, DType type, int rows, int in, int out, std::span<std::byte> weights, bool in_layers);
  void queue(kernels::Stream& stream);
  double flops() const { return 2.0 * double(op_.x.rows) * double(numbers_); }

 private:
  const kernels::Ops& ops_;
  DType type_;
  std::size_t numbers_, bytes_;  // of one matrix
  std::span<std::byte> weights_;
  bool in_layers_;
  DType made_;  // type of the rows that further products read
  std::unique_ptr<kernels::Memory> x_, y_, bias_;
  kernels::Linear op_;
  std::size_t next_ = 0;
};

/// Decode steps of H2O that evict, over full caches whose slots of `type` fill `bytes` or a little more.
class DecodeWork {
 public:
  DecodeWork(Workbench& bench, int heads, int slots, int head_dim, DType type, std::size_t bytes);
  void queue(kernels::Stream& stream);
  /// Bytes that a step moves: keys, values, and for each slot the position read and the score read and written.
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
  /// Makes keys and values count as bf16, in Arithmetic::bfloat16.
  void round();
  void attend(kernels::Stream& stream);  ///< leaves the row sums that column_sums() reads
  void column_sums(kernels::Stream& stream);
  /// Flops of one product over the causal half. attend() does two of them, column_sums() one.
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
