#include "runtime/measure/report.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/duration.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;
using offload::Kind;
using offload::Tier;

ordered_json placement_of(const offload::BufferStore& buffers, Kind kind, const policy::Fractions& asked) {
  double total = 0;
  for (const Tier tier : offload::kTiers) total += double(buffers.bytes(tier, kind));
  ordered_json json = ordered_json::object();
  for (const Tier tier : offload::kTiers) {
    const auto bytes = buffers.bytes(tier, kind);
    json[name_of(tier)] = {{"asked", asked.of[static_cast<std::size_t>(tier)]},
                           {"achieved", total > 0 ? double(bytes) / total : 0},
                           {"bytes", bytes}};
  }
  return json;
}

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

std::string busiest_lane(const Totals& totals) {
  const auto most = std::max_element(totals.lane_busy.begin(), totals.lane_busy.end());
  return name_of(static_cast<offload::Lane>(most - totals.lane_busy.begin()));
}

PackingProgress packing_lines() {
  using Clock = std::chrono::steady_clock;
  static constexpr auto kPause = std::chrono::seconds(5);
  return
      [next = Clock::time_point{}](const std::filesystem::path& file, std::uint64_t done, std::uint64_t all) mutable {
        if (done < all && Clock::now() < next) return;
        next = Clock::now() + kPause;
        log_info("{}: {:.0f} % of {} of weights are quantised", file.string(),
                 all > 0 ? 100 * double(done) / double(all) : 100.0, policy::bytes_to_text(all));
      };
}

std::function<void(const std::string&)> warning_lines() {
  return [](const std::string& text) { log_warn("{}", text); };
}

std::function<void(double)> quantising_line(const ModelSource& source) {
  if (!source.checkpoint) return {};
  return [&source](double seconds) {
    log_info(
        "the weights will be quantised for {} longer; weft convert --weight-dtype {} writes a copy that later "
        "runs only read",
        duration_text(seconds), name_of(source.weight_format->dtype));
  };
}

ordered_json make_report(Session& session, const Totals& since) {
  const Totals totals = session.executor().totals() - since;
  const policy::Policy& policy = session.policy();
  const offload::BufferStore& buffers = session.storage().buffers();
  const auto generated = double(totals.first_tokens + totals.decode_tokens);
  ordered_json report = ordered_json::object();
  report["model"] = shown_name(session.source().path);
  report["measured"] = true;
  report["seconds"] = {
      {"load", session.load_seconds()}, {"prefill", totals.prefill_seconds}, {"decode", totals.decode_seconds}};
  report["tokens"] = {{"prompt", totals.prompt_tokens + totals.shared_prompt_tokens},
                      {"shared_prompt", totals.shared_prompt_tokens},
                      {"generated", totals.first_tokens + totals.decode_tokens}};
  report["tokens_per_second"] = {
      {"total", rate(generated, totals.seconds())},
      {"prefill", rate(double(totals.prompt_tokens - totals.late_prompt_tokens), totals.prefill_seconds)},
      {"decode", rate(double(totals.decode_tokens), totals.decode_seconds)}};
  if (totals.decode_places > 0) report["occupancy"] = totals.occupancy();
  report["placement"] = {{"weights", placement_of(buffers, Kind::weights, policy.weights)},
                         {"kv", placement_of(buffers, Kind::kv, policy.kv)},
                         {"activations", placement_of(buffers, Kind::activations, policy.activations)}};
  for (const offload::Lane lane : offload::kLanes) {
    const auto index = static_cast<std::size_t>(lane);
    policy::object_at(report, "lanes")[name_of(lane)] = {
        {"bytes", totals.lane_bytes[index]},
        {"busy_seconds", totals.lane_busy[index]},
        {"utilisation", rate(totals.lane_busy[index], totals.seconds())}};
  }
  report["busiest_lane"] = busiest_lane(totals);
  for (const Tier tier : offload::kTiers)
    policy::object_at(report, "peak_bytes")[name_of(tier)] =
        tier == Tier::disk ? buffers.spill_bytes() + session.copy_bytes() : buffers.bytes(tier);
  const offload::KvShape& kv = session.footprint().kv_shapes.front().front();
  report["kv"] = {
      {"dtype", name_of(kv.dtype)}, {"keys", name_of(kv.key_type())}, {"rotate", policy.kv_format.rotates()}};
  if (kv.cold > 0 || kv.split) report.at("kv")["coarse"] = {{"keys", kv.coarse.keys}, {"values", kv.coarse.values}};
  report["policy"] = policy.to_json();
  report["machine"] = {{"backend", session.backend().name()},
                       {"device", session.backend().description()},
                       {"disk", session.disk().engine_line()}};
  if (const std::string shares = session.backend().core_shares(); !shares.empty())
    report.at("machine")["host"] = shares;
  return report;
}

namespace {

double number_at(const ordered_json& json, const char* group, const char* name) {
  return json.at(group).at(name).get<double>();
}

double seconds_of(const ordered_json& report) {
  return number_at(report, "seconds", "prefill") + number_at(report, "seconds", "decode");
}

/// Adds the numbers of `more` to those of `sum`, name by name.
void add_numbers(ordered_json& sum, const ordered_json& more) {
  for (const auto& [name, value] : more.items()) {
    if (!value.is_number()) continue;
    if (value.is_number_integer()) sum[name] = sum.at(name).get<std::int64_t>() + value.get<std::int64_t>();
    else sum[name] = sum.at(name).get<double>() + value.get<double>();
  }
}

/// Sums seconds. Makes rates those of all work: each is weighed by the seconds that it held for.
void join_rates(ordered_json& sum, const std::vector<ordered_json>& parts) {
  double tokens = 0, seconds = 0, prefill = 0, prefill_seconds = 0, decode = 0, decode_seconds = 0;
  for (const ordered_json& part : parts) {
    const double first = number_at(part, "seconds", "prefill"), rest = number_at(part, "seconds", "decode");
    seconds += first + rest, prefill_seconds += first, decode_seconds += rest;
    tokens += number_at(part, "tokens_per_second", "total") * (first + rest);
    prefill += number_at(part, "tokens_per_second", "prefill") * first;
    decode += number_at(part, "tokens_per_second", "decode") * rest;
  }
  sum["tokens_per_second"] = {{"total", rate(tokens, seconds)},
                              {"prefill", rate(prefill, prefill_seconds)},
                              {"decode", rate(decode, decode_seconds)}};
  sum.at("seconds")["prefill"] = prefill_seconds;
  sum.at("seconds")["decode"] = decode_seconds;
}

}  // namespace

ordered_json joined_report(std::vector<ordered_json> reports) {
  if (reports.size() == 1) return std::move(reports.front());
  ordered_json joined = *std::max_element(reports.begin(), reports.end(),
                                          [](const auto& a, const auto& b) { return seconds_of(a) < seconds_of(b); });
  joined.erase("occupancy");
  joined.erase("requests");
  for (const char* group : {"tokens", "checkpoints"})
    for (auto& [name, value] : joined.at(group).items())
      value = value.is_number_integer() ? ordered_json(0) : ordered_json(0.0);
  for (auto& [lane, cell] : joined.at("lanes").items()) cell["bytes"] = 0, cell["busy_seconds"] = 0.0;
  double load = 0;
  for (const ordered_json& report : reports) {
    load += number_at(report, "seconds", "load");
    for (const char* group : {"tokens", "checkpoints"}) add_numbers(joined.at(group), report.at(group));
    for (auto& [lane, cell] : joined.at("lanes").items()) add_numbers(cell, report.at("lanes").at(lane));
    for (auto& [tier, bytes] : joined.at("peak_bytes").items())
      bytes = std::max(bytes.get<std::uint64_t>(), report.at("peak_bytes").at(tier).get<std::uint64_t>());
  }
  join_rates(joined, reports);
  joined.at("seconds")["load"] = load;
  for (auto& [lane, cell] : joined.at("lanes").items())
    cell["utilisation"] = rate(cell.at("busy_seconds").get<double>(), seconds_of(joined));
  if (joined.contains("predicted")) {
    std::vector<ordered_json> predicted;
    for (const ordered_json& report : reports) predicted.push_back(report.at("predicted"));
    join_rates(joined.at("predicted"), predicted);
  }
  joined["classes"] = std::move(reports);
  return joined;
}

std::string table(const ordered_json& report, bool whole) {
  const auto number = [](const ordered_json& value) { return value.get<double>(); };
  const auto size = [](const ordered_json& value) { return policy::bytes_to_text(value.get<std::uint64_t>()); };
  const auto& speed = report.at("tokens_per_second");
  std::string text = fmt::format("tokens/s: {:.1f} total, {:.1f} prefill (prompt tokens), {:.1f} decode\n",
                                 number(speed.at("total")), number(speed.at("prefill")), number(speed.at("decode")));
  if (report.contains("predicted")) {
    const auto& predicted = report.at("predicted").at("tokens_per_second");
    text += fmt::format("predicted: {:.1f} total, {:.1f} prefill, {:.1f} decode; measured is {:.2f} of the total\n",
                        number(predicted.at("total")), number(predicted.at("prefill")), number(predicted.at("decode")),
                        number(speed.at("total")) / number(predicted.at("total")));
  }
  if (report.contains("classes"))
    for (const ordered_json& one : report.at("classes"))
      text += fmt::format("class of {} requests: {:.1f} tokens/s in {}\n", one.at("requests").get<std::size_t>(),
                          number_at(one, "tokens_per_second", "total"), duration_text(seconds_of(one)));
  if (report.contains("occupancy"))
    text += fmt::format("places taken in decode: {:.1f}%\n", 100 * number(report.at("occupancy")));
  text += fmt::format("{:<12} {:<8} {:>7} {:>9} {:>12}\n", "placement", "tier", "asked", "achieved", "bytes");
  for (const auto& [kind, tiers] : report.at("placement").items())
    for (const auto& [tier, cell] : tiers.items())
      if (whole || number(cell.at("bytes")) > 0 || number(cell.at("asked")) > 0)
        text += fmt::format("{:<12} {:<8} {:>6.1f}% {:>8.1f}% {:>12}\n", kind, tier, 100 * number(cell.at("asked")),
                            100 * number(cell.at("achieved")), size(cell.at("bytes")));
  text += fmt::format("{:<16} {:>12} {:>9} {:>12}\n", "lane", "bytes moved", "busy", "utilisation");
  for (const auto& [lane, cell] : report.at("lanes").items())
    if (whole || number(cell.at("bytes")) > 0 || number(cell.at("busy_seconds")) > 0)
      text += fmt::format("{:<16} {:>12} {:>7.2f} s {:>11.1f}%\n", lane, size(cell.at("bytes")),
                          number(cell.at("busy_seconds")), 100 * number(cell.at("utilisation")));
  text += "busiest lane: " + report.at("busiest_lane").get<std::string>() + "\n";
  return text;
}

namespace {

constexpr std::string_view kBegin = "{\"traceEvents\":[";

}  // namespace

std::vector<std::string> unit_names(const std::vector<policy::Unit>& units) {
  constexpr std::array kinds{"embedding", "positions", "layer_inputs", "input", "attention",
                             "mlp",       "experts",   "output",       "head"};
  static_assert(kinds.size() == static_cast<std::size_t>(policy::Unit::Kind::head) + 1);
  std::vector<std::string> names;
  std::array<std::size_t, kinds.size()> pieces{};
  for (const policy::Unit& unit : units) {
    const auto kind = static_cast<std::size_t>(unit.kind);
    const auto same = [&](const policy::Unit& other) { return other.kind == unit.kind && other.layer < 0; };
    const auto all = std::count_if(units.begin(), units.end(), same);
    std::string name = kinds[kind];
    if (unit.kind == policy::Unit::Kind::experts)
      name =
          fmt::format("layer {} experts {} to {}", unit.layer, unit.first_expert, unit.first_expert + unit.experts - 1);
    else if (unit.layer >= 0) name = fmt::format("layer {} {}", unit.layer, kinds[kind]);
    else if (all > 1) name += fmt::format(", piece {} of {}", ++pieces[kind], all);
    names.push_back(std::move(name));
  }
  return names;
}

TraceFile::TraceFile(const std::filesystem::path& path, const policy::ScheduleShape& shape,
                     const std::vector<policy::Unit>& units)
    : shape_(shape), units_(unit_names(units)), file_(path) {
  std::string text(kBegin);
  text += "\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"args\":{\"name\":\"weft\"}}";
  for (const offload::Lane lane : offload::kLanes)
    text +=
        fmt::format(",\n{{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":1,\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}",
                    1 + static_cast<int>(lane), name_of(lane));
  file_.append(text);
}

TraceFile::~TraceFile() {
  try {
    file_.append("\n]}\n");
    file_.commit();
  } catch (const std::exception& failed) {
    log_warn("the trace is not written: {}", failed.what());
  }
}

void TraceFile::require_own(const std::filesystem::path& path) {
  refuse_pipe("--trace", path);
  require_writable("--trace", path);
  std::string begin(kBegin.size(), '\0');
  std::ifstream(path).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (std::filesystem::exists(path) && std::filesystem::file_size(path) > 0 && begin != kBegin)
    throw UsageError("--trace " + path.string() + ": is another file than this would write; give another name");
}

std::string TraceFile::label(const policy::Op& op) const {
  if (op.kind == policy::Op::Kind::compute) {
    const policy::Sublayer& sub = shape_.sublayers[op.subject];
    const char* part = op.part == policy::Op::Part::in       ? " in"
                       : op.part == policy::Op::Part::core   ? " core"
                       : op.part == policy::Op::Part::out    ? " out"
                       : op.part == policy::Op::Part::unpack ? " unpack"
                                                             : "";
    return (sub.layer >= 0 ? fmt::format("layer {} ", sub.layer) : "") + name_of(sub.kind) + part;
  }
  const char* verb = op.kind == policy::Op::Kind::load ? "load " : "store ";
  if (op.subject < shape_.kv_buffer(0, 0)) return verb + units_[op.subject] + " weights";
  if (op.subject < shape_.activation_buffer(0))
    return fmt::format("{}layer {} KV", verb,
                       (op.subject - shape_.kv_buffer(0, 0)) / static_cast<std::uint32_t>(shape_.batches));
  return verb + std::string(op.subject < shape_.exchange_buffer(0) ? "hidden states"
                            : op.subject < shape_.routed_buffer(0) ? "rows that the host attends"
                                                                   : "rows of experts on the host");
}

void TraceFile::add(const policy::Schedule& schedule, const policy::Trace& trace) {
  std::string text;
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const policy::Op& op = schedule.ops[i];
    const auto& span = trace.spans[i];
    const bool moves = op.kind != policy::Op::Kind::compute && !trace.bytes.empty();
    text += fmt::format(
        ",\n{{\"name\":\"{}\",\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{:.1f},\"dur\":{:.1f},\"args\":{{\"step\":{},"
        "\"batch\":{}{}}}}}",
        label(op), 1 + static_cast<int>(op.lane), span.begin * 1e6, (span.end - span.begin) * 1e6, op.sweep, op.batch,
        moves ? fmt::format(",\"bytes\":{}", trace.bytes[i]) : "");
  }
  file_.append(text);
}

}  // namespace weft::runtime
