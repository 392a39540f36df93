#include "runtime/measure/measure_machine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <span>

#include "kernels/linear/linear_cpu.h"
#include "kernels/machine/host_machine.h"
#include "runtime/measure/measure_links.h"
#include "runtime/measure/measure_ops.h"

namespace weft::runtime {
namespace {

using kernels::Stream;
using policy::RateTable;

constexpr std::size_t kMebibyte = std::size_t{1} << 20;

/// What is measured, over how much data and for how long.
struct RateSizes {
  Timing timing{.seconds = 0.008, .repetitions = 3};
  int passes = 3;  // over all figures of the engines, so that a short disturbance spoils few values of each
  LinkSizes links;
  // Bytes that a figure is taken over. host_kv: where the host has an engine of its own.
  std::size_t weights = 512 * kMebibyte, kv = 128 * kMebibyte, host_kv = 128 * kMebibyte;
  std::vector<DType> types{DType::f16, DType::bf16, DType::f32, DType::i8, DType::i4, DType::f8};
  // 17 and 33: a processor's products take longer by a step beyond 16 and 32 rows.
  std::vector<int> rows{1, 2, 4, 8, 16, 17, 32, 33, 64, 128, 256, 512}, widths{256, 768, 2048, 4096};
  std::vector<int> prompts{64, 256, 1024}, slots{32, 128, 512, 2048}, head_dims{64, 128};
  int heads = 16, chunk = 512;  // tokens of one call in prefill, or one prompt
};

RateSizes brief_sizes() {
  RateSizes sizes;
  sizes.timing = {.seconds = 1e-3, .repetitions = 3};
  sizes.passes = 1;
  sizes.links.file = 16 * kMebibyte, sizes.links.piece = 4 * kMebibyte, sizes.links.copy = 2 * kMebibyte;
  sizes.links.host = sizes.links.copy;
  sizes.links.weights = 16 * kMebibyte, sizes.links.kv = 4 * kMebibyte;
  sizes.links.timing = sizes.links.disk = {.seconds = 4e-3, .repetitions = 3};
  sizes.weights = 32 * kMebibyte, sizes.kv = sizes.host_kv = 16 * kMebibyte;
  sizes.types = {DType::f16};
  sizes.rows = {1, 4, 16, 17, 32, 33, 64, 256}, sizes.widths = {256, 768, 2048};
  sizes.prompts = {64, 512}, sizes.slots = {64, 1024}, sizes.head_dims = {64, 128};
  sizes.heads = 4;
  return sizes;
}

/// Brief sizes for a run with little memory.
RateSizes small_sizes() {
  RateSizes sizes = brief_sizes();
  sizes.links.file = 4 * kMebibyte, sizes.links.piece = kMebibyte, sizes.links.copy = kMebibyte / 2;
  sizes.links.host = sizes.links.copy;
  sizes.links.weights = 8 * kMebibyte, sizes.links.kv = kMebibyte;
  sizes.weights = 4 * kMebibyte, sizes.kv = sizes.host_kv = 8 * kMebibyte;
  sizes.widths = {256, 768}, sizes.prompts = {64, 256}, sizes.slots = {64, 512};
  return sizes;
}

/// Still smaller sizes, for a process that may have little more than its own pages. Rates are rough then.
RateSizes tiny_sizes() {
  RateSizes sizes = small_sizes();
  sizes.links.file = kMebibyte, sizes.links.piece = kMebibyte / 4, sizes.links.copy = kMebibyte / 8;
  sizes.links.host = sizes.links.copy;
  sizes.kv = sizes.host_kv = 2 * kMebibyte;
  return sizes;
}

/// The smallest sizes, at few points, once each.
RateSizes rough_sizes() {
  RateSizes sizes = tiny_sizes();
  sizes.timing = {.seconds = 1e-4, .repetitions = 1};
  sizes.links.timing = sizes.links.disk = {.seconds = 5e-4, .repetitions = 1};
  sizes.weights = kMebibyte, sizes.kv = sizes.host_kv = kMebibyte;
  sizes.rows = {1, 64}, sizes.widths = {256}, sizes.prompts = {64}, sizes.slots = {64}, sizes.head_dims = {64};
  return sizes;
}

/// Brief sizes for a run that may use `memory` bytes. They are over as many bytes as the run has, up to what caches
/// cannot hold: what a run streams from memory is measured from there, and a model that fits in caches from these.
/// Weights, KV and what else a measurement holds at a time stay far below what the run may use.
RateSizes brief_sizes_of(const MeasuredFor& run, std::uint64_t memory) {
  constexpr std::uint64_t little = 256 * kMebibyte, least = 96 * kMebibyte, most = 256 * kMebibyte;
  RateSizes sizes = memory < least ? tiny_sizes() : memory < little ? small_sizes() : brief_sizes();
  const std::uint64_t beyond = std::min<std::uint64_t>({2 * kernels::processor_cache_bytes(), most, memory / 6});
  sizes.weights = std::max<std::size_t>(sizes.weights, std::min(run.weights, beyond));
  sizes.kv = sizes.host_kv = std::max<std::size_t>(sizes.kv, std::min(run.kv, beyond));
  return sizes;
}

/// Full sizes. Where the host works beside a device, they are over more memory than its caches hold, as in runs, and
/// the device gets enough sequences to fill it.
RateSizes full_sizes(const kernels::Backend& backend, const policy::Machine& machine) {
  RateSizes sizes;
  if (backend.device_is_host_memory()) return sizes;
  const std::size_t most = 1024 * kMebibyte, host = machine[offload::Tier::host] / 16;
  const std::size_t beyond_caches = std::min({2 * kernels::processor_cache_bytes(), most, host});
  sizes.links.host = std::max(sizes.links.host, beyond_caches);
  sizes.links.kv = std::max(sizes.links.kv, beyond_caches);
  sizes.host_kv = std::max(sizes.host_kv, beyond_caches);
  sizes.kv = std::max(sizes.kv, std::min<std::size_t>(most, machine[offload::Tier::device] / 16));
  return sizes;
}

/// Rounds to four digits. A figure is no more exact, and a file is easier to read.
double rounded(double value) {
  if (!(value > 0)) return value;
  const double scale = std::pow(10.0, std::abs(std::floor(std::log10(value)) - 3));
  return value >= 1e3 ? std::round(value / scale) * scale : std::round(value * scale) / scale;
}

void round_links(policy::Machine& machine) {
  for (double& rate : machine.bytes_per_second) rate = rounded(rate);
  machine.spilled_read = rounded(machine.spilled_read);
  machine.disk_rows_per_second = rounded(machine.disk_rows_per_second);
}

/// Leaves a share of the rates.
void slow_down(policy::Engine& engine, double share) {
  for (RateTable& table : engine.linear)
    for (RateTable::Point& point : table.points) point.rate *= share;
  for (RateTable* table :
       {&engine.prefill_attention, &engine.prefill_bfloat16, &engine.column_sums, &engine.column_sums_bfloat16,
        &engine.decode_attention, &engine.decode_int8, &engine.decode_int4})
    for (RateTable::Point& point : table->points) point.rate *= share;
  engine.pointwise *= share;
  engine.launch /= share;
}

/// The median of each point's rate. All tables have the same points.
RateTable median_of(const std::vector<policy::Engine>& all,
                    const std::function<const RateTable&(const policy::Engine&)>& table) {
  RateTable middle = table(all.front());
  for (std::size_t i = 0; i < middle.points.size(); ++i) {
    std::vector<double> rates;
    for (const policy::Engine& engine : all) rates.push_back(table(engine).points[i].rate);
    middle.points[i].rate = median(rates);
  }
  return middle;
}

policy::Engine median_of(const std::vector<policy::Engine>& all) {
  using policy::Engine;
  Engine middle;
  for (std::size_t type = 0; type < middle.linear.size(); ++type)
    middle.linear[type] = median_of(all, [&](const Engine& engine) -> const RateTable& { return engine.linear[type]; });
  for (RateTable Engine::*const table :
       {&Engine::prefill_attention, &Engine::prefill_bfloat16, &Engine::column_sums, &Engine::column_sums_bfloat16,
        &Engine::decode_attention, &Engine::decode_int8, &Engine::decode_int4})
    middle.*table = median_of(all, [&](const Engine& engine) -> const RateTable& { return engine.*table; });
  for (double Engine::*const figure : {&Engine::pointwise, &Engine::launch}) {
    std::vector<double> values;
    for (const Engine& engine : all) values.push_back(engine.*figure);
    middle.*figure = median(values);
  }
  return middle;
}

class RateMeasurement {
 public:
  RateMeasurement(kernels::Backend& backend, const RateSizes& sizes)
      : backend_(backend), sizes_(sizes), bench_(backend, Side::device) {
    allocate_weights();
    if (!is_fast()) return;
    sizes_.rows.push_back(4 * sizes_.rows.back());
    sizes_.widths.push_back(2 * sizes_.widths.back());
    allocate_weights();
  }

  policy::Engine device() {
    policy::Engine engine;
    for (const DType type : sizes_.types) engine.linear[static_cast<std::size_t>(type)] = linear(type);
    attention_of_prompts(engine);
    decode_attention(bench_, sizes_.kv, engine);
    engine.pointwise = pointwise();
    engine.launch = launch(bench_);
    return engine;
  }

  /// `device`: the device of the same machine, whose ops may be the host's own.
  policy::Engine host(const policy::Engine& device) {
    policy::Engine engine;
    if (&backend_.ops() == &backend_.host_ops()) {
      engine.decode_attention = device.decode_attention;
      engine.decode_int8 = device.decode_int8, engine.decode_int4 = device.decode_int4;
      engine.launch = device.launch;
      return engine;
    }
    Workbench bench(backend_, Side::host);
    decode_attention(bench, sizes_.host_kv, engine);
    engine.launch = launch(bench);
    return engine;
  }

 private:
  double rate(Workbench& bench, double work, const Timer::Queue& queue) {
    return rounded(median(bench.timer().rates(work, sizes_.timing, queue)));
  }

  /// Whether the largest product keeps the device busy too briefly to show what it can do.
  bool is_fast() {
    constexpr double flops_of_fast = 1e13;
    const int rows = sizes_.rows.back(), width = sizes_.widths.back();
    LinearWork work(bench_, DType::f16, rows, width, width, fill_weights(DType::f16), true);
    // The first products set libraries up: every second one adds to its output, which may be another kernel.
    double seconds = std::numeric_limits<double>::infinity();
    for (int i = 0; i < 6; ++i)
      seconds = std::min(seconds, bench_.timer().run([&](Stream& stream) { work.queue(stream); }, 1));
    return work.flops() / seconds > flops_of_fast;
  }

  /// Makes room for at least the widest matrix of the widest type.
  void allocate_weights() {
    const auto widest = static_cast<std::size_t>(sizes_.widths.back());
    weights_ = nullptr;  // frees the old memory first
    weights_ = bench_.allocate(std::max(sizes_.weights, widest * widest * sizeof(float)));
  }
  std::span<std::byte> fill_weights(DType type) {
    if (is_quantised(type)) bench_.fill_groups({weights_->data(), weights_->bytes()}, type);
    else bench_.fill(weights_->data(), weights_->bytes() / size_of(type), type);
    return {weights_->data(), weights_->bytes()};
  }

  RateTable linear(DType type) {
    const std::span<std::byte> weights = fill_weights(type);
    RateTable table;
    for (const int rows : sizes_.rows)
      for (const int width : sizes_.widths) {
        LinearWork work(bench_, type, rows, width, width, weights, true);
        const double flops = rate(bench_, work.flops(), [&](Stream& stream) { work.queue(stream); });
        table.points.push_back({double(rows), double(width), flops});
      }
    return table;
  }

  void attention_of_prompts(policy::Engine& engine) {
    for (const int prompt : sizes_.prompts)
      for (const int head_dim : sizes_.head_dims) {
        PrefillWork work(bench_, sizes_.heads, head_dim, prompt, std::max(1, sizes_.chunk / prompt));
        const auto measure = [&](RateTable& attention, RateTable& column_sums) {
          const double attend = rate(bench_, 2 * work.flops(), [&](Stream&stream) { work.attend(stream); }),
                       sums = rate(bench_, work.flops(), [&](Stream&stream) { work.column_sums(stream); });
          attention.points.push_back({double(prompt), double(head_dim), attend});
          column_sums.points.push_back({double(prompt), double(head_dim), sums});
        };
        measure(engine.prefill_attention, engine.column_sums);
        if (backend_.name() != "cpu" || !kernels::multiplies_by_tiles()) continue;
        work.round();
        measure(engine.prefill_bfloat16, engine.column_sums_bfloat16);
      }
  }

  void decode_attention(Workbench& bench, std::size_t kv, policy::Engine& engine) {
    engine.decode_attention = decode_attention(bench, kv, DType::f16);
    engine.decode_int8 = decode_attention(bench, kv, DType::i8);
    engine.decode_int4 = decode_attention(bench, kv, DType::i4);
  }

  RateTable decode_attention(Workbench& bench, std::size_t kv, DType type) {
    RateTable table;
    for (const int slots : sizes_.slots)
      for (const int head_dim : sizes_.head_dims) {
        DecodeWork work(bench, sizes_.heads, slots, head_dim, type, kv);
        const double bytes = rate(bench, work.bytes(), [&](Stream& stream) { work.queue(stream); });
        table.points.push_back({double(slots), double(head_dim), bytes});
      }
    return table;
  }

  /// Measures a norm of a chunk's hidden states, and the rounding of as many numbers to 16 bits.
  double pointwise() {
    constexpr int cols = 2048;
    const auto rows = static_cast<int>(backend_.rows_that_fill());
    const std::size_t numbers = std::size_t(rows) * cols;
    const auto x = bench_.random(numbers, DType::f32), weight = bench_.random(cols, DType::f32),
               normed = bench_.allocate(numbers * sizeof(float)), half = bench_.allocate(numbers * size_of(DType::f16));
    const ConstView in(x->data(), DType::f32, rows, cols), scale(weight->data(), DType::f32, 1, cols);
    const View out(normed->data(), DType::f32, rows, cols), narrow(half->data(), DType::f16, rows, cols);
    const double bytes = double(numbers) * (3 * sizeof(float) + size_of(DType::f16));
    return rate(bench_, bytes, [&](Stream& stream) {
      bench_.ops().run(kernels::LayerNorm{in, scale, scale, out}, stream);
      bench_.ops().run(kernels::Convert{in, narrow}, stream);
    });
  }

  double launch(Workbench& bench) {
    constexpr int cols = 64;
    const auto x = bench.random(cols, DType::f32);
    const View row(x->data(), DType::f32, 1, cols);
    return rate(bench, 0, [&](Stream& stream) {
      bench.ops().run(kernels::LayerNorm{.x = row, .weight = {}, .bias = {}, .out = row}, stream);
    });
  }

  kernels::Backend& backend_;
  RateSizes sizes_;
  Workbench bench_;
  std::unique_ptr<kernels::Memory> weights_;
};

}  // namespace

policy::Machine measure_machine(kernels::Backend& backend, const MachineOptions& options, Effort effort,
                                const MeasuredFor& run) {
  policy::Machine machine;
  machine.name = backend.description();
  machine.source = effort == Effort::full ? "measured" : "measured before a run, briefly";
  machine.measured = true;
  machine.device_is_host_memory = backend.device_is_host_memory();
  machine.bytes = free_bytes(backend, options.disk_directory).bytes;
  machine.device_overhead = backend.device_overhead();
  machine.unpacks_weights = backend.unpacks_weights();
  machine.packed_rows = backend.packed_rows();
  machine.rows_that_fill = backend.rows_that_fill();
  const std::uint64_t there = std::min({run.memory, machine[offload::Tier::host], machine[offload::Tier::device]});
  RateSizes sizes = effort == Effort::full    ? full_sizes(backend, machine)
                    : effort == Effort::rough ? rough_sizes()
                                              : brief_sizes_of(run, there);
  for (const DType type : run.quantised)
    if (std::find(sizes.types.begin(), sizes.types.end(), type) == sizes.types.end()) sizes.types.push_back(type);
  if (machine.unpacks_weights) std::erase_if(sizes.types, is_quantised);  // their products are those of float16
  sizes.links.weight_files = run.weight_files;
  // Under a quota the threads compute for a part of each period and then stand still. Pieces that are much shorter than
  // that part are measured as if there were none, and the part is taken off their rates.
  const double time = kernels::processor_time();
  const double share = std::min(1.0, time / (options.threads > 0 ? options.threads : kernels::processors()));
  if (share < 1) sizes.timing.seconds = std::min(sizes.timing.seconds, 1e-3);
  measure_links(backend, options, sizes.links, machine);
  round_links(machine);
  for (auto& others : machine.together)
    for (double& left : others) left = rounded(left);
  RateMeasurement measure(backend, sizes);
  std::vector<policy::Engine> device, host;
  for (int pass = 0; pass < sizes.passes; ++pass) {
    device.push_back(measure.device());
    host.push_back(measure.host(device.back()));
  }
  machine.device = median_of(device);
  machine.host = median_of(host);
  if (share < 1) {
    if (machine.device_is_host_memory) slow_down(machine.device, share);
    slow_down(machine.host, share);
  }
  return machine;
}

void measure_disk_longer(kernels::Backend& backend, const MachineOptions& options, double run_seconds,
                         const MeasuredFor& run, policy::Machine& machine) {
  constexpr int rounds = 5;
  LinkSizes sizes = brief_sizes_of(run, run.memory).links;
  sizes.file = 64 * kMebibyte;
  sizes.weight_files = run.weight_files;
  // Eight figures: a hundredth of a long run, and of a short one what shows more than noise.
  sizes.disk = {.seconds = std::clamp(run_seconds / 700, 0.1, 1.0) / rounds, .repetitions = rounds};
  measure_disk_lanes(backend, options, sizes, machine);
  round_links(machine);
}

std::uint64_t weight_bytes_of(const ModelSource& source) {
  const std::vector<std::uint64_t>& units = source.weights->unit_bytes();
  return std::accumulate(units.begin(), units.end(), std::uint64_t{0});
}

std::vector<std::filesystem::path> weight_files_of(const ModelSource& source) {
  bool read = false;
  for (std::size_t unit = 0; unit < source.units.size(); ++unit) read |= source.weights->in_files(unit);
  return source.checkpoint && read ? source.checkpoint->files() : std::vector<std::filesystem::path>{};
}

policy::Machine measure_machine(const MachineOptions& options, Effort effort) {
  return measure_machine(*make_backend(options), options, effort);
}

}  // namespace weft::runtime
