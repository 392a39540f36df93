#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/backend/attention_ceiling.h"
#include "kernels/backend/ceilings.h"
#include "kernels/error.h"
#include "kernels/linear/linear_cpu.h"
#include "policy/base/json.h"
#include "runtime/engine/session.h"
#include "runtime/measure/measure_device.h"
#include "runtime/measure/measure_lanes.h"
#include "runtime/measure/measure_scaling.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kPieceRead = std::size_t{64} << 20;

/// The amount of data and the time that each of the host's ceilings takes.
struct LaneSizes {
  std::size_t bytes = std::size_t{5} << 28;  // 1.25 GiB, so that it does not fit in a cache
  double seconds = 3;
};
constexpr LaneSizes kQuick{.bytes = 32 << 20, .seconds = 0.05};

/// Writes a file of random bytes without a name, and reads it with O_DIRECT by the store's own engine.
ordered_json measure_disk(const MachineOptions& machine, std::size_t bytes) {
  const auto disk = make_disk(machine);
  const auto backend = kernels::make_cpu_backend({});
  const auto memory = backend->allocate_host(kPieceRead);
  std::mt19937_64 random(1);
  for (std::size_t i = 0; i < kPieceRead; i += 8) *reinterpret_cast<std::uint64_t*>(memory->data() + i) = random();
  const offload::FileId file = disk->create_spill(machine.disk_directory, bytes);
  const auto time = [&](const auto& transfer) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t offset = 0; offset < bytes; offset += kPieceRead)
      transfer(offload::Extent{file, offset, std::min(kPieceRead, bytes - offset)});
    return double(bytes) / std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double written = time([&](const offload::Extent& extent) { disk->write(extent, memory->data()); });
  std::vector<double> rates;
  for (int repetition = 0; repetition < 5; ++repetition)
    rates.push_back(time([&](const offload::Extent& extent) { disk->read(extent, memory->data()); }));
  std::sort(rates.begin(), rates.end());
  return {{"engine", disk->engine_line()},
          {"write_bytes_per_second", written},
          {"read_bytes_per_second", rates[2]},
          {"read_min", rates.front()},
          {"read_max", rates.back()}};
}

ordered_json measure_host(const MachineOptions& machine, const LaneSizes& sizes) {
  const int threads = machine.threads > 0 ? machine.threads : static_cast<int>(std::thread::hardware_concurrency());
  kernels::ThreadPool pool(threads);
  ordered_json report{{"machine", kernels::make_cpu_backend({.threads = threads})->description()},
                      {"threads", threads}};
  report["disk"] = measure_disk(machine, sizes.bytes);
  const double dram = kernels::measure_dram_read(pool, sizes.bytes, sizes.seconds);
  report["dram_read_bytes_per_second"] = dram;
  for (const int rows : {1, 8, 32, 256, 512}) {
    const double flops = kernels::measure_linear(pool, rows, DType::f16, sizes.bytes, sizes.seconds);
    ordered_json& cell = policy::object_at(report, "linear_f16_4096")[std::to_string(rows)];
    cell = {{"flop_per_second", flops}, {"of_dram_bound", flops / (dram * rows)}};  // 2 flop per row for 2 bytes
    if (kernels::multiplies_bf16()) {
      const double pairs = kernels::measure_linear(pool, rows, DType::bf16, sizes.bytes, sizes.seconds,
                                                   kernels::LinearPath::automatic, Arithmetic::bfloat16);
      policy::object_at(report, "linear_bfloat16_4096")[std::to_string(rows)] = {
          {"flop_per_second", pairs}, {"of_dram_bound", pairs / (dram * rows)}, {"of_f16", pairs / flops}};
    }
    const double float8 = kernels::measure_linear(pool, rows, DType::f8, sizes.bytes, sizes.seconds);
    policy::object_at(report, "linear_float8_4096")[std::to_string(rows)] = {
        {"flop_per_second", float8},
        {"of_dram_bound", float8 / (dram * rows) / 2 * double(kernels::measured_matrix_bytes(DType::f8)) /
                              (double(kernels::kMeasuredWidth) * double(kernels::kMeasuredWidth))},
        {"of_f16", float8 / flops}};
    for (const auto& [type, table] :
         {std::pair{DType::i8, LevelTable::even}, std::pair{DType::i4, LevelTable::even},
          std::pair{DType::i4, LevelTable::e2m1}, std::pair{DType::i4, LevelTable::iq4_nl}}) {
      const auto measure = [&](Arithmetic arithmetic) {
        return kernels::measure_linear(pool, rows, type, sizes.bytes, sizes.seconds, kernels::LinearPath::automatic,
                                       arithmetic, table);
      };
      const double integer = measure(Arithmetic::int8), exact = measure(Arithmetic::exact);
      const double width = double(kernels::kMeasuredWidth), bytes = double(kernels::measured_matrix_bytes(type));
      const std::string by_table = table == LevelTable::even ? "" : std::string("_") + name_of(table);
      const std::string name = std::string("linear_") + name_of(type) + by_table + "_4096";
      policy::object_at(report, name)[std::to_string(rows)] = {
          {"flop_per_second", integer},
          {"of_dram_bound", integer / (dram * rows) * bytes / (2 * width * width)},
          {"of_f16", integer / flops},
          {"exact_flop_per_second", exact},
          {"exact_of_f16", exact / flops}};
    }
  }
  for (const DType type : {DType::i8, DType::i4})
    policy::object_at(report, "quantised_weights_per_second")[name_of(type)] =
        kernels::measure_quantise(pool, type, sizes.seconds);
  for (const auto& [slots, head_dim] : {std::pair{204, 128}, {204, 64}, {1024, 128}, {1024, 64}}) {
    double of_float16 = 0;
    for (const DType dtype : {DType::f16, DType::i8, DType::i4}) {
      const auto rate = kernels::measure_decode_attention(pool, sizes.bytes, slots, head_dim, dtype, sizes.seconds);
      std::string name = std::to_string(slots) + " slots of " + std::to_string(head_dim);
      if (dtype != DType::f16) name += std::string(", ") + name_of(dtype);
      auto& cell = policy::object_at(report, "host_attention")[name];
      cell = {{"bytes_per_second", rate.bytes_per_second}, {"of_dram_read", rate.bytes_per_second / dram}};
      if (dtype == DType::f16) of_float16 = rate.heads_per_second;
      else cell["times_float16"] = rate.heads_per_second / of_float16;
      if (dtype != DType::i8) continue;
      const auto read =
          kernels::measure_decode_attention(pool, sizes.bytes, slots, head_dim, dtype, sizes.seconds, slots / 10);
      policy::object_at(report, "host_attention")[name + ", a tenth read in full"] = {
          {"times_int8", read.heads_per_second / rate.heads_per_second}};
    }
  }
  return report;
}

}  // namespace

ordered_json measure_lanes(const MachineOptions& machine, bool quick) {
  const auto backend = make_backend(machine);  // first, so that a missing GPU is reported at once
  ordered_json report{{"measured", true}, {"quick", quick}};
  report.update(measure_host(machine, quick ? kQuick : LaneSizes{}));
  ScalingSizes scaling;
  if (quick) {
    scaling.rows = 32, scaling.width = 512, scaling.prompt = 128, scaling.slots = 64, scaling.kv = 4 << 20;
    scaling.seconds = 1e-4, scaling.repetitions = 3;
  }
  report["two_threads"] = measure_scaling(scaling);
  if (backend->device_is_host_memory()) return report;
  DeviceSizes sizes;
  if (quick) sizes.bytes = 64 << 20, sizes.seconds = 0.002, sizes.repetitions = 3;
  report["device"] = measure_device(*backend, sizes);
  return report;
}

}  // namespace weft::runtime
