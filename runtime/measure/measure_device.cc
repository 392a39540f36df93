#include "runtime/measure/measure_device.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "policy/base/json.h"
#include "runtime/measure/measure_ops.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using nlohmann::ordered_json;

constexpr std::size_t kPieceCopied = std::size_t{16}
                                     << 20;  // bytes of a copy on the device; the backend paces larger ones

/// The median under `name`, then the least and the most.
ordered_json figure(const char* name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return {{name, values[values.size() / 2]}, {"min", values.front()}, {"max", values.back()}};
}

class DeviceMeasurement {
 public:
  DeviceMeasurement(kernels::Backend& backend, const DeviceSizes& sizes)
      : backend_(backend), sizes_(sizes), timing_{sizes.seconds, sizes.repetitions}, bench_(backend, Side::device),
        bytes_(sizes.bytes / 4096 * 4096) {}

  void links(ordered_json& report) {
    const auto device = backend_.allocate_device(bytes_), host = backend_.allocate_host(bytes_),
               second = backend_.allocate_host(bytes_);
    std::fill_n(host->data(), bytes_, std::byte{1});
    const auto in = [&](Stream& stream) { backend_.copy(device->data(), host->data(), bytes_, stream); };
    const auto out = [&](Stream& stream) { backend_.copy(second->data(), device->data(), bytes_, stream); };
    report["host_to_device"] = figure("bytes_per_second", rates(double(bytes_), in));
    report["device_to_host"] = figure("bytes_per_second", rates(double(bytes_), out));
    report["both_directions"] = both_directions(*device, *host, *second);
  }

  /// Returns the median rate of reading.
  double memory(ordered_json& report) {
    const auto from = bench_.random(bytes_ / sizeof(float), DType::f32), to = backend_.allocate_device(bytes_);
    const auto copy = [&](Stream& stream) {
      for (std::size_t at = 0; at < bytes_; at += kPieceCopied)
        backend_.copy(to->data() + at, from->data() + at, std::min(kPieceCopied, bytes_ - at), stream);
    };
    const auto read = [&](Stream& stream) { backend_.read(from->data(), bytes_, stream); };
    report["copy"] = figure("bytes_per_second", rates(2.0 * double(bytes_), copy));
    report["read"] = figure("bytes_per_second", rates(double(bytes_), read));
    return report.at("read").at("bytes_per_second");
  }

  ordered_json linear(DType type) {
    ordered_json report = ordered_json::object();
    for (const auto& [rows, in, out] : sizes_.products) {
      const std::size_t numbers = static_cast<std::size_t>(in) * static_cast<std::size_t>(out);
      const std::size_t matrix = std::max<std::size_t>(1, bytes_of(type, static_cast<std::int64_t>(numbers)));
      const std::size_t matrices = std::max<std::size_t>(1, bytes_ / matrix);
      const auto weights = bench_.random(numbers * matrices, type);
      LinearWork work(bench_, type, rows, in, out, {weights->data(), weights->bytes()}, false);
      report[std::to_string(rows) + " x " + std::to_string(in) + " x " + std::to_string(out)] =
          figure("flop_per_second", rates(work.flops(), [&](Stream& stream) { work.queue(stream); }));
    }
    return report;
  }

  ordered_json decode_attention(const DeviceSizes::Cache& cache, double read) {
    DecodeWork work(bench_, sizes_.heads, cache.slots, cache.head_dim, DType::f16, sizes_.bytes);
    ordered_json report = figure("bytes_per_second", rates(work.bytes(), [&](Stream& stream) { work.queue(stream); }));
    report["of_read"] = report["bytes_per_second"].get<double>() / read;
    return report;
  }

  ordered_json prefill_attention(int prompt) {
    constexpr int head_dim = 128;
    PrefillWork work(bench_, sizes_.heads, head_dim, prompt, std::max(1, sizes_.prefill_tokens / prompt));
    ordered_json report =
        figure("flop_per_second", rates(2 * work.flops(), [&](Stream& stream) { work.attend(stream); }));
    report["with_column_sums"] = figure("flop_per_second", rates(3 * work.flops(), [&](Stream& stream) {
                                          work.attend(stream);
                                          work.column_sums(stream);
                                        }));
    return report;
  }

  ordered_json sample(const kernels::SampleParams& how) {
    const auto rows = static_cast<std::size_t>(sizes_.sampled_rows);
    const auto logits = bench_.random(rows * static_cast<std::size_t>(sizes_.vocab), DType::f32);
    const auto tokens = backend_.allocate_host(rows * sizeof(std::int32_t));
    const std::vector<kernels::SampleParams> params(rows, how);
    const kernels::Sample op{.logits = View(logits->data(), DType::f32, sizes_.sampled_rows, sizes_.vocab),
                             .params = params,
                             .token = {reinterpret_cast<std::int32_t*>(tokens->data()), rows}};
    return figure("seconds", rates(0, [&](Stream& stream) { backend_.ops().run(op, stream); }));
  }

 private:
  std::vector<double> rates(double work, const Timer::Queue& queue) {
    return bench_.timer().rates(work, timing_, queue);
  }

  /// Uses two threads, because a copy blocks the thread that starts it. They copy eighths, so that hardly any time is
  /// spent in one direction alone.
  ordered_json both_directions(const Memory& device, const Memory& host, const Memory& second) {
    const std::size_t piece = std::max<std::size_t>(bytes_ / 8192 * 1024, 4096), half = bytes_ / 2;
    Timer there(backend_, Side::device), back(backend_, Side::device);
    const auto copies = [&](void* to, const void* from, Timer& timer) -> Load {
      return {[&timer, this, to, from, piece] {
        timer.run([&](Stream& stream) { backend_.copy(to, from, piece, stream); }, 1);
        return double(piece);
      }};
    };
    std::vector<double> in, out;
    for (int i = 0; i < sizes_.repetitions; ++i) {
      const auto [to_device, to_host] = rates_of(copies(device.data() + half, host.data(), there),
                                                 copies(second.data(), device.data(), back), 4 * sizes_.seconds);
      in.push_back(to_device);
      out.push_back(to_host);
    }
    return {{"host_to_device", figure("bytes_per_second", in)}, {"device_to_host", figure("bytes_per_second", out)}};
  }

  kernels::Backend& backend_;
  const DeviceSizes& sizes_;
  Timing timing_;
  Workbench bench_;
  std::size_t bytes_;  // of a copy, in whole pages
};

}  // namespace

ordered_json measure_device(kernels::Backend& backend, const DeviceSizes& sizes) {
  DeviceMeasurement measure(backend, sizes);
  ordered_json report{{"name", backend.description()}};
  measure.links(report);
  const double read = measure.memory(report);
  for (const DType type : {DType::f16, DType::bf16})
    policy::object_at(report, "linear")[name_of(type)] = measure.linear(type);
  for (const DeviceSizes::Cache& cache : sizes.caches)
    policy::object_at(report,
                      "decode_attention")[std::to_string(cache.slots) + " slots of " + std::to_string(cache.head_dim)] =
        measure.decode_attention(cache, read);
  for (const int prompt : sizes.prompts)
    policy::object_at(report, "prefill_attention")[std::to_string(prompt) + " tokens"] =
        measure.prefill_attention(prompt);
  report["sample"] = {{"greedy", measure.sample({})},
                      {"top_k_top_p", measure.sample({.temperature = 0.7f, .top_p = 0.9f, .top_k = 50, .key = 1})}};
  return report;
}

}  // namespace weft::runtime
