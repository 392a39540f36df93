#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <initializer_list>
#include <map>
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
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kPieceRead = std::size_t{64} << 20;

/// The amount of data and the time that each of the host's ceilings takes.
struct LaneSizes {
  std::size_t bytes = std::size_t{5} << 28;  // 1.25 GiB, so that it does not fit in a cache
  double seconds = 1;
  double product_seconds = 0.3;  // there are many of them
};
constexpr LaneSizes kQuick{.bytes = 32 << 20, .seconds = 0.05, .product_seconds = 0.05};

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

/// Rows and columns of matrices: those of a large model, and of SmolLM2-135M.
constexpr int kWide = 4096, kNarrow = 576;

/// Weights of one format.
struct Format {
  const char* name;
  DType type;
  int group = 64;
  LevelTable table = LevelTable::even;
};

/// Rates of products with some numbers of rows and weights of each format, beside the bound that reading the weights
/// from DRAM sets.
void measure_products(kernels::ThreadPool& pool, int width, std::initializer_list<int> all_rows, double dram,
                      const LaneSizes& sizes, ordered_json& report) {
  std::map<int, double> halves;  // flop per second with float16, by rows
  for (const Format& format :
       {Format{"f16", DType::f16}, Format{"bfloat16", DType::bf16}, Format{"float8", DType::f8},
        Format{"int8", DType::i8}, Format{"int4", DType::i4}, Format{"int4_mxfp4", DType::i4, 32, LevelTable::e2m1},
        Format{"int4_nvfp4", DType::i4, 16, LevelTable::e2m1}, Format{"int4_nf4", DType::i4, 64, LevelTable::nf4},
        Format{"int4_iq4_nl", DType::i4, 32, LevelTable::iq4_nl}}) {
    const bool pairs = format.type == DType::bf16, levels = format.type == DType::i8 || format.type == DType::i4;
    if (pairs && !kernels::multiplies_bf16()) continue;
    log_info("measuring products with weights of {}, {} wide", format.name, width);
    const kernels::MeasuredWeights weights{format.type, width, format.group, format.table};
    const kernels::MeasuredProducts products(pool, weights, sizes.bytes);
    const auto flops = [&](int rows, Arithmetic arithmetic) {
      return products.flops(rows, sizes.product_seconds, arithmetic);
    };
    for (const int rows : all_rows) {
      const double found = flops(rows, levels ? Arithmetic::int8 : pairs ? Arithmetic::bfloat16 : Arithmetic::exact);
      ordered_json& cell = policy::object_at(
          report, "linear_" + std::string(format.name) + "_" + std::to_string(width))[std::to_string(rows)];
      cell = {{"flop_per_second", found},
              {"of_dram_bound", found / (2.0 * rows * width * width) * double(weights.bytes()) / dram}};
      if (format.type == DType::f16) {
        halves[rows] = found;
        continue;
      }
      cell["of_f16"] = found / halves[rows];
      if (!levels) continue;
      const double exact = flops(rows, Arithmetic::exact);
      cell["exact_flop_per_second"] = exact, cell["exact_of_f16"] = exact / halves[rows];
      if (!kernels::multiplies_bf16()) continue;
      const double rounded = flops(rows, Arithmetic::bfloat16);
      cell["bfloat16_flop_per_second"] = rounded, cell["bfloat16_of_f16"] = rounded / halves[rows];
    }
  }
}

ordered_json measure_host(const MachineOptions& machine, const LaneSizes& sizes) {
  const int threads = machine.threads > 0 ? machine.threads : static_cast<int>(std::thread::hardware_concurrency());
  kernels::ThreadPool pool(threads);
  ordered_json report{{"machine", kernels::make_cpu_backend({.threads = threads})->description()},
                      {"threads", threads}};
  log_info("measuring the disk at {} and memory", machine.disk_directory);
  report["disk"] = measure_disk(machine, sizes.bytes);
  const double dram = kernels::measure_dram_read(pool, sizes.bytes, sizes.seconds);
  report["dram_read_bytes_per_second"] = dram;
  measure_products(pool, kWide, {1, 8, 32, 256, 512}, dram, sizes, report);
  measure_products(pool, kNarrow, {1, 8, 32}, dram, sizes, report);
  for (const DType type : {DType::i8, DType::i4})
    policy::object_at(report, "quantised_weights_per_second")[name_of(type)] =
        kernels::measure_quantise(pool, type, sizes.seconds);
  for (const auto& [slots, head_dim] : {std::pair{204, 128}, {204, 64}, {1024, 128}, {1024, 64}}) {
    log_info("measuring attention over {} slots, heads of {}", slots, head_dim);
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
  log_info("measuring what a second thread gains");
  report["two_threads"] = measure_scaling(scaling);
  if (backend->device_is_host_memory()) return report;
  log_info("measuring the device");
  DeviceSizes sizes;
  if (quick) sizes.bytes = 64 << 20, sizes.seconds = 0.002, sizes.repetitions = 3;
  report["device"] = measure_device(*backend, sizes);
  return report;
}

}  // namespace weft::runtime
