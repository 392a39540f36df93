#include "runtime/measure_device.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "offload/kv_store.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kTable = std::size_t{1} << 20;   // random numbers, of which all operands are made
constexpr std::size_t kPiece = std::size_t{16} << 20;  // of a copy on the device; the backend paces larger ones

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

/// `name`: median, beside the least and the most.
ordered_json figure(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{name, values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
}

/// A queue of work on the device, and the clock around it.
class Timer {
 public:
  Timer(kernels::Backend& backend, const DeviceSizes& sizes)
      : backend_(backend), sizes_(sizes), stream_(backend.make_stream()), event_(backend.make_event()) {}

  Stream& stream() { return *stream_; }
  void wait() {
    backend_.record(*event_, *stream_);
    backend_.synchronize(*event_);
  }
  double run(const std::function<void(Stream&)>& queue, int count) {
    const auto begin = Clock::now();
    for (int i = 0; i < count; ++i) queue(*stream_);
    wait();
    return since(begin);
  }
  /// As many calls of `queue` as take `seconds`; these warm up too.
  int calls(const std::function<void(Stream&)>& queue, double seconds) {
    run(queue, 1);
    int count = 1;
    while (run(queue, count) < seconds && count < 1 << 16) count *= 2;
    return count;
  }
  /// `work` per second of one call of `queue`; its seconds where `work` is 0.
  std::vector<double> rates(double work, const std::function<void(Stream&)>& queue) {
    const int count = calls(queue, sizes_.seconds);
    std::vector<double> all;
    for (int i = 0; i < sizes_.repetitions; ++i) {
      const double seconds = run(queue, count) / count;
      all.push_back(work > 0 ? work / seconds : seconds);
    }
    return all;
  }

 private:
  kernels::Backend& backend_;
  const DeviceSizes& sizes_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<kernels::Event> event_;
};

class Measurement {
 public:
  Measurement(kernels::Backend& backend, const DeviceSizes& sizes)
      : backend_(backend), sizes_(sizes), timer_(backend, sizes), bytes_(sizes.bytes / 4096 * 4096),
        host_(backend.allocate_host(std::max(bytes_, kTable * sizeof(float)))),
        table_(backend.allocate_device(kTable * sizeof(float))) {
    std::mt19937 random(1);
    std::uniform_real_distribution<float> number(-1, 1);
    auto* const numbers = reinterpret_cast<float*>(host_->data());
    for (std::size_t i = 0; i < host_->bytes() / sizeof(float); ++i)
      numbers[i] = i < kTable ? number(random) : numbers[i % kTable];
    backend.copy(table_->data(), numbers, kTable * sizeof(float), timer_.stream());
    timer_.wait();
  }

  void links(ordered_json& report) {
    const auto device = backend_.allocate_device(bytes_), second = backend_.allocate_host(bytes_);
    const auto in = [&](Stream& stream) { backend_.copy(device->data(), host_->data(), bytes_, stream); };
    const auto out = [&](Stream& stream) { backend_.copy(second->data(), device->data(), bytes_, stream); };
    report["host_to_device"] = figure("bytes_per_second", timer_.rates(double(bytes_), in));
    report["device_to_host"] = figure("bytes_per_second", timer_.rates(double(bytes_), out));
    report["both_directions"] = both_directions(*device, *second);
  }

  /// Returns the median rate of reading.
  double memory(ordered_json& report) {
    const auto from = random(bytes_ / sizeof(float), DType::f32), to = backend_.allocate_device(bytes_);
    const auto copy = [&](Stream& stream) {
      for (std::size_t at = 0; at < bytes_; at += kPiece)
        backend_.copy(to->data() + at, from->data() + at, std::min(kPiece, bytes_ - at), stream);
    };
    const auto read = [&](Stream& stream) { backend_.read(from->data(), bytes_, stream); };
    report["copy"] = figure("bytes_per_second", timer_.rates(2.0 * double(bytes_), copy));
    report["read"] = figure("bytes_per_second", timer_.rates(double(bytes_), read));
    return report["read"]["bytes_per_second"];
  }

  ordered_json linear(DType type) {
    ordered_json report;
    for (const auto& [rows, in, out] : sizes_.products) {
      const std::size_t numbers = static_cast<std::size_t>(in) * static_cast<std::size_t>(out);
      const std::size_t matrices = std::max<std::size_t>(1, bytes_ / (numbers * size_of(type)));
      const auto weights = random(numbers * matrices, type);
      const auto x = random(static_cast<std::size_t>(rows) * static_cast<std::size_t>(in), DType::f32),
                 y = random(static_cast<std::size_t>(rows) * static_cast<std::size_t>(out), DType::f32);
      std::size_t next = 0;
      const auto multiply = [&](Stream& stream) {
        const std::byte* const matrix = weights->data() + next++ % matrices * numbers * size_of(type);
        backend_.ops().run(kernels::Linear{.x = ConstView(x->data(), DType::f32, rows, in),
                                           .weight = ConstView(matrix, type, out, in),
                                           .bias = {},
                                           .out = View(y->data(), DType::f32, rows, out)},
                           stream);
      };
      const double flops = 2.0 * rows * double(numbers);
      report[std::to_string(rows) + " x " + std::to_string(in) + " x " + std::to_string(out)] =
          figure("flop_per_second", timer_.rates(flops, multiply));
    }
    return report;
  }

  ordered_json decode_attention(const DeviceSizes::Cache& cache, double read) {
    const int heads = sizes_.heads, slots = cache.slots;
    const std::size_t row = std::size_t{4} * static_cast<std::size_t>(heads * cache.head_dim);  // key and value, fp16
    const int sequences = static_cast<int>(sizes_.bytes / (row * static_cast<std::size_t>(slots))) + 1;
    const offload::KvShape shape{sequences, heads, slots, cache.head_dim, DType::f16, true};
    const auto block = full_cache(shape);
    const auto rows = static_cast<std::size_t>(sequences);
    const std::int64_t cols = std::int64_t{heads} * cache.head_dim;
    const auto q = random(rows * static_cast<std::size_t>(cols), DType::f32),
               out = backend_.allocate_device(rows * static_cast<std::size_t>(cols) * sizeof(float));
    std::vector<std::int32_t> sequence(rows), position(rows, slots - 1);
    for (std::size_t i = 0; i < rows; ++i) sequence[i] = static_cast<std::int32_t>(i);
    const int heavy = (slots - 1) / 2;
    const std::vector<kernels::Keep> keep(rows, kernels::Keep{heavy, slots - 1 - heavy, 0, 0});
    const ConstView token(q->data(), DType::f32, sequences, cols);
    const auto step = [&](Stream& stream) {
      backend_.ops().run(kernels::DecodeAttention{.q = token,
                                                  .k = token,
                                                  .v = token,
                                                  .sequence = sequence,
                                                  .position = position,
                                                  .keep = keep,
                                                  .heads = heads,
                                                  .scale = 1 / std::sqrt(float(cache.head_dim)),
                                                  .scoring = kernels::Scoring::attention,
                                                  .slots = shape.view(block->data()),
                                                  .home = {},
                                                  .out = View(out->data(), DType::f32, sequences, cols),
                                                  .probabilities = {},
                                                  .evicted = {}},
                         stream);
      for (std::int32_t& at : position) ++at;
    };
    const double places = double(sequences) * heads * slots;
    const double bytes = places * (2.0 * double(shape.row_bytes()) + sizeof(std::int32_t) + 2 * sizeof(float));
    ordered_json report = figure("bytes_per_second", timer_.rates(bytes, step));
    report["of_read"] = report["bytes_per_second"].get<double>() / read;
    return report;
  }

  ordered_json prefill_attention(int prompt) {
    constexpr int head_dim = 128;
    const int heads = sizes_.heads, prompts = std::max(1, sizes_.prefill_tokens / prompt), tokens = prompts * prompt;
    const std::int64_t cols = std::int64_t{heads} * head_dim;
    const auto numbers = static_cast<std::size_t>(tokens * cols), rows = static_cast<std::size_t>(heads * tokens);
    const auto q = random(numbers, DType::f32), k = random(numbers, DType::f16), v = random(numbers, DType::f16),
               out = backend_.allocate_device(numbers * sizeof(float)),
               lse = backend_.allocate_device(rows * sizeof(float)),
               score = backend_.allocate_device(rows * sizeof(float));
    std::vector<std::int32_t> offsets;
    for (int i = 0; i <= prompts; ++i) offsets.push_back(i * prompt);
    kernels::PrefillAttention attend{.q = ConstView(q->data(), DType::f32, tokens, cols),
                                     .k = ConstView(k->data(), DType::f16, tokens, cols),
                                     .v = ConstView(v->data(), DType::f16, tokens, cols),
                                     .offsets = offsets,
                                     .heads = heads,
                                     .kv_heads = heads,
                                     .head_dim = head_dim,
                                     .scale = 1 / std::sqrt(float(head_dim)),
                                     .out = View(out->data(), DType::f32, tokens, cols),
                                     .lse = {}};
    const double pairs = 0.5 * prompt * (prompt + 1.0) * prompts * heads, product = 2.0 * head_dim * pairs;
    ordered_json report = figure(
        "flop_per_second", timer_.rates(2 * product, [&](Stream& stream) { backend_.ops().run(attend, stream); }));
    attend.lse = View(lse->data(), DType::f32, heads, tokens);
    const kernels::ColumnSums sums{.q = attend.q,
                                   .k = attend.k,
                                   .lse = attend.lse,
                                   .offsets = offsets,
                                   .heads = heads,
                                   .kv_heads = heads,
                                   .head_dim = head_dim,
                                   .scale = attend.scale,
                                   .score = View(score->data(), DType::f32, heads, tokens)};
    report["with_column_sums"] = figure("flop_per_second", timer_.rates(3 * product, [&](Stream& stream) {
      backend_.ops().run(attend, stream);
      backend_.ops().run(sums, stream);
    }));
    return report;
  }

  ordered_json sample(const kernels::SampleParams& how) {
    const auto rows = static_cast<std::size_t>(sizes_.sampled_rows);
    const auto logits = random(rows * static_cast<std::size_t>(sizes_.vocab), DType::f32);
    const auto tokens = backend_.allocate_host(rows * sizeof(std::int32_t));
    const std::vector<kernels::SampleParams> params(rows, how);
    const kernels::Sample op{.logits = ConstView(logits->data(), DType::f32, sizes_.sampled_rows, sizes_.vocab),
                             .params = params,
                             .token = {reinterpret_cast<std::int32_t*>(tokens->data()), rows}};
    return figure("seconds", timer_.rates(0, [&](Stream& stream) { backend_.ops().run(op, stream); }));
  }

 private:
  /// Device memory of random numbers in [-1, 1), repeating every kTable.
  std::unique_ptr<Memory> random(std::size_t numbers, DType type) {
    auto memory = backend_.allocate_device(numbers * size_of(type));
    fill(memory->data(), numbers, type);
    return memory;
  }
  void fill(std::byte* to, std::size_t numbers, DType type) {
    for (std::size_t at = 0; at < numbers; at += kTable) {
      const auto count = static_cast<std::int64_t>(std::min(kTable, numbers - at));
      backend_.ops().run(kernels::Convert{ConstView(table_->data(), DType::f32, 1, count),
                                          View(to + at * size_of(type), type, 1, count)},
                         timer_.stream());
    }
    timer_.wait();
  }

  /// A block in the steady state: every slot but the last holds a token, so that every step evicts one.
  std::unique_ptr<Memory> full_cache(const offload::KvShape& shape) {
    auto block = backend_.allocate_device(shape.bytes());
    const offload::KvShape::Offsets at = shape.offsets();
    fill(block->data(), at.score / size_of(DType::f16), DType::f16);
    const auto rest = backend_.allocate_host(at.end - at.score);
    std::fill_n(rest->data(), rest->bytes(), std::byte{});
    auto* const position = reinterpret_cast<std::int32_t*>(rest->data() + (at.position - at.score));
    auto* const free_slot = reinterpret_cast<std::int32_t*>(rest->data() + (at.free_slot - at.score));
    const int heads = shape.sequences * shape.kv_heads;
    for (int head = 0; head < heads; ++head) {
      std::int32_t* const of_head = position + std::size_t(head) * std::size_t(shape.slots);
      for (int slot = 0; slot < shape.slots; ++slot) of_head[slot] = slot + 1 < shape.slots ? slot : -1;
      free_slot[head] = shape.slots - 1;
    }
    backend_.copy(block->data() + at.score, rest->data(), rest->bytes(), timer_.stream());
    timer_.wait();
    return block;
  }

  /// Two threads, for a copy keeps the thread that asks for it. They copy eighths, so that hardly any of the time is
  /// spent in one direction alone.
  ordered_json both_directions(const Memory& device, const Memory& second) {
    const std::size_t piece = std::max<std::size_t>(bytes_ / 8192 * 1024, 4096), half = bytes_ / 2;
    const double seconds = 4 * sizes_.seconds;
    const auto copies = [&](void* to, const void* from, Timer& timer) {
      const auto begin = Clock::now();
      double copied = 0;
      do {
        timer.run([&](Stream& stream) { backend_.copy(to, from, piece, stream); }, 1);
        copied += double(piece);
      } while (since(begin) < seconds);
      return copied / since(begin);
    };
    Timer back(backend_, sizes_);
    std::vector<double> in, out;
    for (int i = 0; i < sizes_.repetitions; ++i) {
      auto other = std::async(std::launch::async, [&] { return copies(second.data(), device.data(), back); });
      in.push_back(copies(device.data() + half, host_->data(), timer_));
      out.push_back(other.get());
    }
    return {{"host_to_device", figure("bytes_per_second", in)}, {"device_to_host", figure("bytes_per_second", out)}};
  }

  kernels::Backend& backend_;
  const DeviceSizes& sizes_;
  Timer timer_;
  std::size_t bytes_;  // of a copy: whole pages
  std::unique_ptr<Memory> host_, table_;
};

}  // namespace

ordered_json measure_device(kernels::Backend& backend, const DeviceSizes& sizes) {
  Measurement measure(backend, sizes);
  ordered_json report{{"name", backend.description()}};
  measure.links(report);
  const double read = measure.memory(report);
  for (const DType type : {DType::f16, DType::bf16}) report["linear"][name_of(type)] = measure.linear(type);
  for (const DeviceSizes::Cache& cache : sizes.caches)
    report["decode_attention"][std::to_string(cache.slots) + " slots of " + std::to_string(cache.head_dim)] =
        measure.decode_attention(cache, read);
  for (const int prompt : sizes.prompts)
    report["prefill_attention"][std::to_string(prompt) + " tokens"] = measure.prefill_attention(prompt);
  report["sample"] = {{"greedy", measure.sample({})},
                      {"top_k_top_p", measure.sample({.temperature = 0.7f, .top_p = 0.9f, .top_k = 50, .key = 1})}};
  return report;
}

}  // namespace weft::runtime
