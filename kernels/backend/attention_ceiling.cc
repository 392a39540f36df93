#include "kernels/backend/attention_ceiling.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/backend/random_rows.h"
#include "kernels/error.h"
#include "kernels/machine/cpu_ops.h"
#include "kernels/random.h"

namespace weft::kernels {
namespace {

constexpr int kHeads = 16;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<void, Free>;

Buffer huge_buffer(std::size_t bytes) {
  const std::size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  Buffer buffer(std::aligned_alloc(kHugePage, rounded));
  if (!buffer)
    throw CapacityError("attention ceiling: " + std::to_string(rounded) +
                        " bytes wanted, the system has none; measure over less");
  madvise(buffer.get(), rounded, MADV_HUGEPAGE);
  return buffer;
}

/// Small numbers of both signs, so that the softmax is neither flat nor a single peak; no two keys are alike.
void fill(ThreadPool& pool, f16* to, std::int64_t count) {
  constexpr std::int64_t block = 1 << 18;
  f16 table[1024];
  for (std::uint64_t i = 0; i < 1024; ++i) table[i] = f16(unit_float(random_bits(0, i)) - 0.5f);
  pool.run((count + block - 1) / block, [&](std::int64_t tile, int) {
    const std::int64_t end = std::min(count, (tile + 1) * block);
    for (std::int64_t i = tile * block; i < end; i += 4) {
      std::uint64_t bits = mix_bits(static_cast<std::uint64_t>(i));
      for (std::int64_t j = i; j < std::min(end, i + 4); ++j, bits >>= 16) to[j] = table[bits & 1023];
    }
  });
}

void fill_quantised(ThreadPool& pool, DType dtype, int head_dim, std::byte* to, std::int64_t rows) {
  constexpr std::int64_t block = 1 << 12;
  pool.run((rows + block - 1) / block, [&](std::int64_t tile, int) {
    const std::int64_t first = tile * block;
    random_rows(dtype, head_dim, first, std::min(block, rows - first),
                to + static_cast<std::size_t>(first) * kv_row_bytes(dtype, head_dim));
  });
}

constexpr CoarseBits kBits{.keys = 4, .values = 2};

/// The same with each row in pieces.
void fill_split(ThreadPool& pool, int bits, int head_dim, void* high, void* low, void* scales, std::int64_t rows) {
  constexpr std::int64_t block = 1 << 12;
  pool.run((rows + block - 1) / block, [&](std::int64_t tile, int) {
    std::vector<std::byte> fine(kv_row_bytes(DType::i8, head_dim));
    for (std::int64_t row = tile * block; row < std::min(rows, (tile + 1) * block); ++row) {
      random_rows(DType::i8, head_dim, row, 1, fine.data());
      const auto at = [row](void* all, std::size_t bytes) {
        return static_cast<std::byte*>(all) + static_cast<std::size_t>(row) * bytes;
      };
      split_row(fine.data(), head_dim, bits, at(high, high_row_bytes(bits, head_dim)),
                at(low, low_row_bytes(bits, head_dim)), at(scales, scales_bytes(head_dim)));
    }
  });
}

/// A block of sequences in the steady state: every slot but one holds a token.
class Workload {
 public:
  Workload(ThreadPool& pool, std::size_t kv_bytes, int slots, int head_dim, DType dtype, int read)
      : row_bytes_(kv_row_bytes(dtype, head_dim)),
        sequences_(static_cast<int>(kv_bytes / (2 * row_bytes_ * kHeads * static_cast<std::size_t>(slots))) + 1),
        rows_(std::int64_t{sequences_} * kHeads * slots), k_(huge_buffer(static_cast<std::size_t>(rows_) * row_bytes_)),
        v_(huge_buffer(static_cast<std::size_t>(rows_) * row_bytes_)), score_(static_cast<std::size_t>(rows_)),
        position_(score_.size()), free_slot_(static_cast<std::size_t>(sequences_) * kHeads, slots - 1),
        row_(static_cast<std::size_t>(sequences_) * kHeads * head_dim), out_(row_.size()),
        sequence_(static_cast<std::size_t>(sequences_)), token_(sequence_.size(), slots - 1),
        keep_(sequence_.size(), Keep{(slots - 1) / 2, slots - 1 - (slots - 1) / 2, 0, 0}) {
    const auto buffer = [&](std::size_t bytes) { return huge_buffer(static_cast<std::size_t>(rows_) * bytes); };
    if (read > 0) {
      low_k_ = buffer(low_row_bytes(kBits.keys, head_dim)), low_v_ = buffer(low_row_bytes(kBits.values, head_dim));
      scale_k_ = buffer(scales_bytes(head_dim)), scale_v_ = buffer(scales_bytes(head_dim));
      fill_split(pool, kBits.keys, head_dim, k_.get(), low_k_.get(), scale_k_.get(), rows_);
      fill_split(pool, kBits.values, head_dim, v_.get(), low_v_.get(), scale_v_.get(), rows_);
    } else {
      for (const Buffer* rows : {&k_, &v_}) {
        if (is_quantised(dtype)) fill_quantised(pool, dtype, head_dim, static_cast<std::byte*>(rows->get()), rows_);
        else fill(pool, static_cast<f16*>(rows->get()), rows_ * head_dim);
      }
    }
    for (std::size_t i = 0; i < position_.size(); ++i) {
      const int slot = static_cast<int>(i % static_cast<std::size_t>(slots));
      position_[i] = slot + 1 < slots ? slot : -1;
    }
    for (std::size_t i = 0; i < row_.size(); ++i) row_[i] = 4 * unit_float(random_bits(1, i)) - 2;
    for (std::size_t i = 0; i < sequence_.size(); ++i) sequence_[i] = static_cast<std::int32_t>(i);
    op_.slots = {k_.get(),   v_.get(), score_.data(), position_.data(), free_slot_.data(), dtype,
                 sequences_, kHeads,   slots,         head_dim};
    if (read > 0) {
      op_.slots.split = true, op_.slots.coarse = kBits;
      op_.slots.low_k = low_k_.get(), op_.slots.low_v = low_v_.get();
      op_.slots.scale_k = scale_k_.get(), op_.slots.scale_v = scale_v_.get();
      for (Keep& keep : keep_) keep.read = read;
    }
    const std::int64_t rows = sequences_, cols = std::int64_t{kHeads} * head_dim;
    op_.q = op_.k = op_.v = ConstView(row_.data(), DType::f32, rows, cols);
    op_.out = View(out_.data(), DType::f32, rows, cols);
    op_.sequence = sequence_, op_.position = token_, op_.keep = keep_;
    op_.heads = kHeads, op_.scale = 0.125f, op_.scoring = Scoring::attention;
  }

  /// Bytes that a step moves: keys and values, and per slot the position (read) and the score (read and written).
  double bytes() const {
    return static_cast<double>(rows_) * 2 * static_cast<double>(row_bytes_) +
           static_cast<double>(score_.size()) * (sizeof(std::int32_t) + 2 * sizeof(float));
  }
  /// The number of sequences; each gets one token in a step.
  double tokens() const { return static_cast<double>(sequences_); }
  void step(const Ops& ops, Stream& stream) {
    ops.run(op_, stream);
    for (std::int32_t& t : token_) ++t;
  }

 private:
  std::size_t row_bytes_;
  int sequences_;
  std::int64_t rows_;
  Buffer k_, v_, low_k_, low_v_, scale_k_, scale_v_;
  std::vector<float> score_;
  std::vector<std::int32_t> position_, free_slot_;
  std::vector<float> row_, out_;
  std::vector<std::int32_t> sequence_, token_;
  std::vector<Keep> keep_;
  DecodeAttention op_;
};

}  // namespace

DecodeRate measure_decode_attention(ThreadPool& pool, std::size_t kv_bytes, int slots, int head_dim, DType dtype,
                                    double seconds, int read) {
  using Clock = std::chrono::steady_clock;
  if (slots < 3 || head_dim < 1)
    throw UsageError("attention ceiling: " + std::to_string(slots) + " slots of " + std::to_string(head_dim) +
                     "; wanted at least 3 of at least 1");
  if (dtype != DType::f16 && !is_quantised(dtype))
    throw UsageError(std::string("attention ceiling: ") + name_of(dtype) + "; wanted float16, int8 or int4");
  if (read > 0 && dtype != DType::i8)
    throw UsageError(std::string("attention ceiling: ") + name_of(dtype) + " read in part; wanted int8");
  const CpuOps ops(pool);
  Stream stream;
  Workload work(pool, kv_bytes, slots, head_dim, dtype, read);
  work.step(ops, stream);  // sets up scratch memory and clocks
  std::vector<double> steps;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  do {
    const auto begin = Clock::now();
    work.step(ops, stream);
    steps.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  } while (Clock::now() < end || steps.size() < 3);
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
  const double step = steps[steps.size() / 2];
  return {work.bytes() / step, work.tokens() * kHeads / step};
}

}  // namespace weft::kernels
