#include "runtime/measure/measure_ops.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <future>
#include <random>

#include "kernels/backend/random_rows.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/quantised.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kTable = std::size_t{1} << 20;  // random numbers from which all operands are made

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

std::size_t numbers(std::int64_t rows, std::int64_t cols) { return static_cast<std::size_t>(rows * cols); }

constexpr int kMeasuredGroup = 64;  // numbers in a group of quantised weights

std::size_t matrix_bytes(DType type, std::int64_t rows, std::int64_t cols) {
  if (!is_quantised(type)) return numbers(rows, cols) * size_of(type);
  return static_cast<std::size_t>(QuantisedLayout{type, kMeasuredGroup, rows, cols}.bytes());
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Timer::Timer(kernels::Backend& backend, Side side)
    : backend_(backend), stream_(side == Side::host ? nullptr : backend.make_stream()), event_(backend.make_event()) {
  for (auto& event : fed_) event = backend.make_event();
}

void Timer::wait() {
  if (!stream_) return;  // the host's work is done when it is queued
  backend_.record(*event_, *stream_);
  backend_.synchronize(*event_);
}

double Timer::run(const Queue& queue, int count) {
  const auto begin = Clock::now();
  for (int i = 0; i < count; ++i) queue(stream());
  wait();
  return since(begin);
}

void Timer::feed(const Queue& queue, int count) {
  const kernels::Event& before = *fed_[next_fed_];
  if (stream_) backend_.synchronize(before);
  for (int i = 0; i < count; ++i) queue(stream());
  if (stream_) backend_.record(*fed_[next_fed_], *stream_);
  next_fed_ = (next_fed_ + 1) % fed_.size();
}

std::vector<double> Timer::rates(double work, const Timing& timing, const Queue& queue) {
  constexpr int most = 1 << 16;
  run(queue, 1);
  int count = 1;
  // One call may be nearly all launch, so the time of many calls decides how many fill `seconds`.
  for (double taken = run(queue, 1); taken < timing.seconds / 2 && count < most; taken = run(queue, count))
    count = static_cast<int>(std::min(most * 1.0, std::ceil(count * std::clamp(timing.seconds / taken, 2.0, 16.0))));
  std::vector<double> all;
  for (int i = 0; i < timing.repetitions; ++i) {
    const double seconds = run(queue, count) / count;
    all.push_back(work > 0 ? work / seconds : seconds);
  }
  return all;
}

double rate_of(const Load& load, double seconds) {
  const auto begin = Clock::now();
  double work = 0;
  do work += load.piece();
  while (since(begin) < seconds);
  load.wait();
  return work / since(begin);
}

std::pair<double, double> rates_of(const Load& first, const Load& second, double seconds) {
  auto other = std::async(std::launch::async, [&] { return rate_of(second, seconds); });
  const double rate = rate_of(first, seconds);
  return {rate, other.get()};
}

Workbench::Workbench(kernels::Backend& backend, Side side)
    : backend_(backend), side_(side), timer_(backend, side), table_(allocate(kTable * sizeof(float))) {
  const auto numbers_made = backend.allocate_host(kTable * sizeof(float));
  std::mt19937 random(1);
  std::uniform_real_distribution<float> number(-1, 1);
  std::generate_n(reinterpret_cast<float*>(numbers_made->data()), kTable, [&] { return number(random); });
  bring(table_->data(), numbers_made->data(), numbers_made->bytes());
}

std::unique_ptr<Memory> Workbench::allocate(std::size_t bytes) const {
  return side_ == Side::host ? backend_.allocate_host(bytes) : backend_.allocate_device(bytes);
}

void Workbench::bring(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (side_ == Side::host) {
    std::memcpy(to, from, bytes);
    return;
  }
  backend_.copy(to, from, bytes, timer_.stream());
  timer_.wait();
}

std::unique_ptr<Memory> Workbench::random(std::size_t count, DType type) {
  auto memory = allocate(count * size_of(type));
  fill(memory->data(), count, type);
  return memory;
}

void Workbench::fill(std::byte* to, std::size_t count, DType type) {
  for (std::size_t at = 0; at < count; at += kTable) {
    const auto part = static_cast<std::int64_t>(std::min(kTable, count - at));
    ops().run(
        kernels::Convert{ConstView(table_->data(), DType::f32, 1, part), View(to + at * size_of(type), type, 1, part)},
        timer_.stream());
  }
  timer_.wait();
}

std::unique_ptr<Memory> Workbench::full_cache(const offload::KvShape& shape) {
  auto block = allocate(shape.bytes());
  const offload::KvShape::Offsets at = shape.offsets();
  const std::size_t rows = numbers(std::int64_t{shape.sequences} * shape.kv_heads, shape.slots);
  if (!is_quantised(shape.dtype)) fill(block->data(), at.score / size_of(shape.dtype), shape.dtype);
  else
    for (const std::size_t part : {at.k, at.v}) fill_levels(block->data() + part, rows, shape);
  const auto rest = backend_.allocate_host(at.end - at.score);
  std::fill_n(rest->data(), rest->bytes(), std::byte{});
  auto* const position = reinterpret_cast<std::int32_t*>(rest->data() + (at.position - at.score));
  auto* const free_slot = reinterpret_cast<std::int32_t*>(rest->data() + (at.free_slot - at.score));
  const int heads = shape.sequences * shape.kv_heads;
  for (int head = 0; head < heads; ++head) {
    std::int32_t* const of_head = position + numbers(head, shape.slots);
    for (int slot = 0; slot < shape.slots; ++slot) of_head[slot] = slot + 1 < shape.slots ? slot : -1;
    free_slot[head] = shape.slots - 1;
  }
  bring(block->data() + at.score, rest->data(), rest->bytes());
  return block;
}

void Workbench::fill_levels(std::byte* to, std::size_t rows, const offload::KvShape& shape) {
  constexpr std::size_t piece = std::size_t{1} << 15;
  const std::size_t row = shape.value_bytes();  // keys have the same type
  const auto some = backend_.allocate_host(std::min(piece, rows) * row);
  kernels::random_rows(shape.dtype, shape.head_dim, 0, static_cast<std::int64_t>(std::min(piece, rows)), some->data());
  for (std::size_t first = 0; first < rows; first += piece)
    bring(to + first * row, some->data(), std::min(piece, rows - first) * row);
}

void Workbench::fill_groups(std::span<std::byte> to, DType type) {
  const QuantisedLayout layout{type, kMeasuredGroup, QuantisedLayout::kTileRows,
                               kMeasuredGroup};  // one group of a tile
  const auto bytes = static_cast<std::size_t>(layout.bytes()), kinds = std::min<std::size_t>(1024, to.size() / bytes);
  const std::size_t piece = kinds * bytes;
  if (piece == 0) return;
  const auto some = backend_.allocate_host(piece);
  std::mt19937 random(1);
  std::generate_n(reinterpret_cast<std::uint32_t*>(some->data()), piece / sizeof(std::uint32_t), [&] {
    const auto bits = static_cast<std::uint32_t>(random());
    // Of 8-bit floats neither NaN nor a number below 2^-6, which checkpoints hardly have and which takes longer.
    return type == DType::f8 ? (bits & 0xFEFEFEFEu) | 0x08080808u : bits;
  });
  const auto top = static_cast<float>(levels_of(type));
  for (std::size_t group = 0; group < kinds; ++group) {
    if (type == DType::f8) {
      std::fill_n(reinterpret_cast<float*>(some->data() + group * bytes), QuantisedLayout::kTileRows, 0x1p-8f);
      continue;
    }
    auto* const scales = reinterpret_cast<f16*>(some->data() + group * bytes);
    std::fill_n(scales, QuantisedLayout::kTileRows, f16(1 / top));
    std::fill_n(scales + QuantisedLayout::kTileRows, QuantisedLayout::kTileRows, f16(-0.5f));
  }
  for (std::size_t at = 0; at < to.size(); at += piece)
    bring(to.data() + at, some->data(), std::min(piece, to.size() - at));
}

LinearWork::LinearWork(Workbench& bench, DType type, int rows, int in, int out, std::span<std::byte> weights,
                       bool in_layers)
    : ops_(bench.ops()), type_(type), numbers_(numbers(out, in)), bytes_(matrix_bytes(type, out, in)),
      weights_(weights), in_layers_(in_layers), made_(bench.product_type(type)),
      x_(bench.random(numbers(rows, in), made_)), y_(bench.random(numbers(rows, out), DType::f32)),
      bias_(bench.random(numbers(1, out), is_quantised(type) ? DType::f16 : type)) {
  op_.x = ConstView(x_->data(), made_, rows, in);
  op_.out = View(y_->data(), DType::f32, rows, out);
  if (in_layers) op_.bias = ConstView(bias_->data(), is_quantised(type) ? DType::f16 : type, 1, out);
  op_.arithmetic = type == DType::bf16 && kernels::multiplies_bf16() ? Arithmetic::bfloat16 : Arithmetic::int8;
}

void LinearWork::queue(Stream& stream) {
  const std::size_t matrix = next_++ % (weights_.size() / bytes_);
  op_.weight = ConstView(weights_.data() + matrix * bytes_, type_, op_.out.cols, op_.x.cols);
  op_.weight.group = is_quantised(type_) ? kMeasuredGroup : 0;
  op_.accumulate = in_layers_ && next_ % 2 == 0;
  op_.out.dtype = op_.accumulate || !in_layers_ ? DType::f32 : made_;
  ops_.run(op_, stream);
}

DecodeWork::DecodeWork(Workbench& bench, int heads, int slots, int head_dim, DType type, std::size_t bytes)
    : ops_(bench.ops()), shape_{static_cast<int>(bytes /
                                                 (2 * kernels::kv_row_bytes(type, head_dim) * numbers(heads, slots))) +
                                    1,
                                heads,
                                slots,
                                head_dim,
                                type,
                                true},
      cache_(bench.full_cache(shape_)) {
  const int sequences = shape_.sequences, heavy = (slots - 1) / 2;
  const std::int64_t cols = std::int64_t{heads} * head_dim;
  q_ = bench.random(numbers(sequences, cols), DType::f32);
  out_ = bench.allocate(numbers(sequences, cols) * sizeof(float));
  for (int i = 0; i < sequences; ++i) sequence_.push_back(i);
  position_.assign(sequence_.size(), slots - 1);
  keep_.assign(sequence_.size(), kernels::Keep{heavy, slots - 1 - heavy, 0, 0});
  op_.q = op_.k = op_.v = ConstView(q_->data(), DType::f32, sequences, cols);
  op_.sequence = sequence_, op_.position = position_, op_.keep = keep_;
  op_.heads = heads, op_.scale = 1 / std::sqrt(float(head_dim)), op_.scoring = kernels::Scoring::attention;
  op_.slots = shape_.view(cache_->data());
  op_.out = View(out_->data(), DType::f32, sequences, cols);
}

void DecodeWork::queue(Stream& stream) {
  ops_.run(op_, stream);
  for (std::int32_t& at : position_) ++at;
}

double DecodeWork::bytes() const {
  return double(shape_.sequences) * shape_.kv_heads * shape_.slots *
         (double(shape_.key_bytes() + shape_.value_bytes()) + sizeof(std::int32_t) + 2 * sizeof(float));
}

PrefillWork::PrefillWork(Workbench& bench, int heads, int head_dim, int prompt, int prompts)
    : ops_(bench.ops()), flops_(2.0 * head_dim * 0.5 * prompt * (prompt + 1.0) * prompts * heads) {
  const std::int64_t tokens = std::int64_t{prompts} * prompt, cols = std::int64_t{heads} * head_dim;
  const DType made = bench.product_type(DType::f16);
  q_ = bench.random(numbers(tokens, cols), made);
  k_ = bench.random(numbers(tokens, cols), DType::f16);
  v_ = bench.random(numbers(tokens, cols), DType::f16);
  out_ = bench.allocate(numbers(tokens, cols) * sizeof(float));
  lse_ = bench.allocate(numbers(heads, tokens) * sizeof(float));
  score_ = bench.allocate(numbers(heads, tokens) * sizeof(float));
  for (int i = 0; i <= prompts; ++i) offsets_.push_back(i * prompt);
  attend_ = {.q = ConstView(q_->data(), made, tokens, cols),
             .k = ConstView(k_->data(), DType::f16, tokens, cols),
             .v = ConstView(v_->data(), DType::f16, tokens, cols),
             .offsets = offsets_,
             .heads = heads,
             .kv_heads = heads,
             .head_dim = head_dim,
             .scale = 1 / std::sqrt(float(head_dim)),
             .out = View(out_->data(), made, tokens, cols),
             .lse = View(lse_->data(), DType::f32, heads, tokens)};
  sums_ = {.q = attend_.q,
           .k = attend_.k,
           .lse = attend_.lse,
           .offsets = offsets_,
           .heads = heads,
           .kv_heads = heads,
           .head_dim = head_dim,
           .scale = attend_.scale,
           .score = View(score_->data(), DType::f32, heads, tokens)};
}

void PrefillWork::round() {
  attend_.k.dtype = attend_.v.dtype = sums_.k.dtype = DType::bf16;
  attend_.arithmetic = sums_.arithmetic = Arithmetic::bfloat16;
}
void PrefillWork::attend(Stream& stream) { ops_.run(attend_, stream); }
void PrefillWork::column_sums(Stream& stream) { ops_.run(sums_, stream); }

}  // namespace weft::runtime
