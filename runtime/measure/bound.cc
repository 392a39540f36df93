#include "runtime/measure/bound.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;
using offload::Lane;

/// The number at `path` ("disk/read_bytes_per_second").
double number_at(const nlohmann::json& report, const std::string& path, const std::string& where) {
  const auto pointer = nlohmann::json::json_pointer("/" + path);
  if (!report.contains(pointer) || !report.at(pointer).is_number() || !(report.at(pointer).get<double>() > 0))
    throw UsageError(where + ": wanted a positive number at '" + path +
                     "', found none; write the file with weft bench --lanes --report on this machine and backend");
  return report.at(pointer).get<double>();
}

/// The largest flop_per_second of an object of figures; 0 if there is none.
double best_rate(const nlohmann::json& figures) {
  double best = 0;
  for (const auto& figure : figures)
    if (figure.is_object() && figure.contains("flop_per_second") && figure["flop_per_second"].is_number())
      best = std::max(best, figure["flop_per_second"].get<double>());
  return best;
}

double weight_bytes(const Session& session) {
  double bytes = 0;
  for (std::size_t unit = 0; unit < session.source().units.size(); ++unit)
    if (session.source().units[unit].streamed) bytes += double(session.source().weights->unit_bytes()[unit]);
  return bytes;
}

/// Share of the KV that the host attends in decode.
double host_share(const policy::ScheduleShape& shape) {
  int on_host = 0;
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int batch = 0; batch < shape.batches; ++batch) on_host += shape.attended_on_host(layer, batch, false);
  return double(on_host) / (double(shape.layers) * shape.batches);
}

}  // namespace

Ceilings ceilings_from_report(const nlohmann::json& report, bool own_device, const std::string& where) {
  const auto of = [&](const std::string& path) { return number_at(report, path, where); };
  Ceilings ceilings;
  ceilings.host_read = of("dram_read_bytes_per_second");
  ceilings.device_read = own_device ? of("device/read/bytes_per_second") : ceilings.host_read;
  auto& lanes = ceilings.bytes_per_second;
  lanes[index(Lane::disk_read)] = of("disk/read_bytes_per_second");
  lanes[index(Lane::disk_write)] = of("disk/write_bytes_per_second");
  for (const Lane lane : {Lane::host_to_device, Lane::device_to_host})
    lanes[index(lane)] =
        own_device ? of("device/" + std::string(name_of(lane)) + "/bytes_per_second") : ceilings.host_read;
  const auto figures = nlohmann::json::json_pointer(own_device ? "/device/linear/float16" : "/linear_f16_4096");
  ceilings.flop_per_second = report.contains(figures) ? best_rate(report.at(figures)) : 0;
  if (!(ceilings.flop_per_second > 0))
    throw UsageError(where + ": no rate of matrix products; write the file with weft bench --lanes --report on this " +
                     "machine and backend");
  return ceilings;
}

Work operator+(const Work& a, const Work& b) {
  Work sum{.seconds = a.seconds + b.seconds,
           .lane_bytes = a.lane_bytes,
           .flops = a.flops + b.flops,
           .weight_bytes = a.weight_bytes + b.weight_bytes,
           .device_kv_bytes = a.device_kv_bytes + b.device_kv_bytes,
           .host_kv_bytes = a.host_kv_bytes + b.host_kv_bytes};
  for (std::size_t lane = 0; lane < sum.lane_bytes.size(); ++lane) sum.lane_bytes[lane] += b.lane_bytes[lane];
  return sum;
}

Work operator*(double factor, const Work& work) {
  Work product{.seconds = factor * work.seconds,
               .lane_bytes = work.lane_bytes,
               .flops = factor * work.flops,
               .weight_bytes = factor * work.weight_bytes,
               .device_kv_bytes = factor * work.device_kv_bytes,
               .host_kv_bytes = factor * work.host_kv_bytes};
  for (double& bytes : product.lane_bytes) bytes *= factor;
  return product;
}

Work prefill_work(const Session& session, const Totals& totals, std::int64_t prompt, std::int64_t blocks) {
  const policy::ModelSpec& spec = session.source().spec;
  const policy::Retention& retention = session.policy().retention;
  const auto tokens = double(totals.prompt_tokens), prompts = double(totals.first_tokens);
  const double seen = 0.5 * double(prompt + 1);  // keys that a row sees on average
  Work work{.seconds = totals.prefill_seconds, .weight_bytes = double(blocks) * weight_bytes(session)};
  work.flops = tokens * policy::flops_per_token(spec, seen, false) +
               prompts * (policy::flops_per_token(spec, 0, true) - policy::flops_per_token(spec, 0, false));
  if (retention.scored() &&
      retention.observation == 0)  // column sums compute the products of queries and keys once more
    for (int layer = 0; layer < spec.layers; ++layer)
      work.flops += tokens * 2 * seen * spec.heads * spec.head_dim_of(layer);
  for (std::size_t lane = 0; lane < work.lane_bytes.size(); ++lane)
    work.lane_bytes[lane] = double(totals.prefill_lane_bytes[lane]);
  return 1 / tokens * work;
}

Work decode_work(const Session& session, const Totals& totals, const LayerKeeps& keep, std::int64_t context,
                 std::int64_t sweeps, std::int64_t blocks) {
  const policy::ModelSpec& spec = session.source().spec;
  const auto tokens = double(totals.decode_tokens);
  double read = 0;  // bytes that one sequence reads in all sweeps and layers
  for (std::size_t layer = 0; layer < keep.size(); ++layer)
    for (std::size_t run = 0; run < keep[layer].size(); ++run) {
      std::int64_t attended = 0, cold = 0, whole = 0;
      const kernels::Keep& own = keep[layer][run];
      for (std::int64_t sweep = 1; sweep <= sweeps; ++sweep) {
        const std::int64_t fine =
            std::min<std::int64_t>({own.budget() + 1, std::min<std::int64_t>(own.of_prompt(), context) + sweep,
                                    own.window > 0 ? own.window : INT32_MAX});
        attended += fine;
        whole += own.read > 0 ? std::min<std::int64_t>(own.read, fine) : fine;
        cold += std::clamp<std::int64_t>(context + sweep - fine, 0, own.cold);
      }
      const offload::KvShape& shape = session.footprint().kv_shapes[layer][run];
      const double bytes = double(attended) * double(shape.bytes_per_step()) +
                           double(whole) * double(shape.low_bytes_per_step()) +
                           (shape.cold > 0 ? double(cold) * double(shape.cold_bytes_per_step()) : 0);
      read += bytes * shape.kv_heads;
    }
  if (keep.size() == 1) read *= spec.layers;
  const double kv_bytes = read / double(sweeps) * tokens;
  const double on_host = host_share(session.footprint().shape);
  Work work{.seconds = totals.decode_seconds,
            .flops = tokens * policy::flops_per_token(spec, 0, true),
            .weight_bytes = double(blocks * sweeps) * weight_bytes(session),
            .device_kv_bytes = (1 - on_host) * kv_bytes,
            .host_kv_bytes = on_host * kv_bytes};
  for (std::size_t lane = 0; lane < work.lane_bytes.size(); ++lane)
    work.lane_bytes[lane] = double(totals.lane_bytes[lane] - totals.prefill_lane_bytes[lane]);
  return 1 / tokens * work;
}

std::array<double, offload::kLanes.size()> least_seconds(const Work& work, const Ceilings& ceilings) {
  std::array<double, offload::kLanes.size()> seconds{};
  for (const Lane lane : {Lane::disk_read, Lane::disk_write, Lane::host_to_device, Lane::device_to_host})
    seconds[index(lane)] = work.lane_bytes[index(lane)] / ceilings.bytes_per_second[index(lane)];
  seconds[index(Lane::device_compute)] =
      std::max(work.flops / ceilings.flop_per_second, work.weight_bytes / ceilings.device_read) +
      work.device_kv_bytes / ceilings.device_read;
  seconds[index(Lane::host_compute)] = work.host_kv_bytes / ceilings.host_read;
  return seconds;
}

ordered_json bound_report(const Work& per_token, const Ceilings& ceilings) {
  const auto seconds = least_seconds(per_token, ceilings);
  const auto longest = std::max_element(seconds.begin(), seconds.end());
  ordered_json report{{"tokens_per_second", 1 / *longest},
                      {"longest_lane", name_of(static_cast<Lane>(longest - seconds.begin()))},
                      {"achieved", *longest / per_token.seconds}};
  for (const Lane lane : offload::kLanes)
    policy::object_at(report, "seconds_per_token")[name_of(lane)] = seconds[index(lane)];
  return report;
}

}  // namespace weft::runtime
