#include "policy/planner/machine.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"

namespace weft::policy {
namespace {

using nlohmann::ordered_json;
using offload::Lane;

constexpr std::array kMoving{Lane::disk_read, Lane::disk_write, Lane::host_to_device, Lane::device_to_host};
constexpr std::array kTypes{DType::f16, DType::bf16, DType::f32, DType::i8, DType::i4, DType::f8};
constexpr double kLeast = 1e-12, kMost = 1e30;  // bounds of rates and sizes that the linear program can handle

constexpr std::size_t index(DType type) { return static_cast<std::size_t>(type); }

/// A table's name in a file, and the names of its columns.
struct Columns {
  const char *name, *size, *width, *rate;
};
constexpr Columns kLinear{"linear", "rows", "width", "flop_per_second"};
constexpr Columns kPrefill{"prefill_attention", "prompt", "head_dim", "flop_per_second"};
constexpr Columns kPrefillBfloat16{"prefill_attention_bfloat16", "prompt", "head_dim", "flop_per_second"};
constexpr Columns kColumnSums{"column_sums", "prompt", "head_dim", "flop_per_second"};
constexpr Columns kColumnSumsBfloat16{"column_sums_bfloat16", "prompt", "head_dim", "flop_per_second"};
constexpr Columns kDecode{"decode_attention", "slots", "head_dim", "bytes_per_second"};
constexpr Columns kDecodeInt8{"decode_attention_int8", "slots", "head_dim", "bytes_per_second"};
constexpr Columns kDecodeInt4{"decode_attention_int4", "slots", "head_dim", "bytes_per_second"};

double positive(Fields& fields, const std::string& key) {
  const nlohmann::json& value = fields.at(key);
  if (!value.is_number() || !(value.get<double>() >= kLeast && value.get<double>() <= kMost))
    fields.refuse_field(key, "a number above 0");
  return value.get<double>();
}

/// The number of widths: the points at the beginning that have the same size.
std::size_t widths_of(const std::vector<RateTable::Point>& points) {
  std::size_t count = 1;
  while (count < points.size() && points[count].size == points.front().size) ++count;
  return count;
}

void require_grid(const std::vector<RateTable::Point>& points, const Columns& columns, const std::string& where) {
  const std::size_t widths = widths_of(points);
  for (std::size_t i = 0; i < points.size(); ++i) {
    const RateTable::Point& above = points[i / widths * widths];  // the first of its row
    const bool fits =
        points[i].size == above.size && points[i].width == points[i % widths].width &&
        (i % widths == 0 ? i == 0 || points[i - 1].size < points[i].size : points[i - 1].width < points[i].width);
    if (fits && (i + 1 < points.size() || points.size() % widths == 0)) continue;
    throw UsageError(where + ": must have each '" + columns.size + "' with each '" + columns.width +
                     "' once, found no such grid around '" + columns.size + "' " +
                     to_line(nlohmann::json(points[i].size)) + ", '" + columns.width + "' " +
                     to_line(nlohmann::json(points[i].width)));
  }
}

RateTable table_from_json(const nlohmann::json& json, const Columns& columns, const std::string& where) {
  if (!json.is_array() || json.empty())
    throw UsageError(where + ": must be an array of at least one point, got " + describe(json));
  RateTable table;
  for (std::size_t i = 0; i < json.size(); ++i) {
    Fields fields(json[i], where + "[" + std::to_string(i) + "]", Blame::usage);
    table.points.push_back(
        {positive(fields, columns.size), positive(fields, columns.width), positive(fields, columns.rate)});
    fields.refuse_unknown();
  }
  std::sort(table.points.begin(), table.points.end(), [](const RateTable::Point& a, const RateTable::Point& b) {
    return a.size != b.size ? a.size < b.size : a.width < b.width;
  });
  require_grid(table.points, columns, where);
  return table;
}

RateTable read_table(Fields& fields, const Columns& columns, const std::string& where) {
  return table_from_json(fields.at(columns.name), columns, where + "." + columns.name);
}

void read_decode(Fields& fields, Engine& engine, const std::string& where) {
  engine.decode_attention = read_table(fields, kDecode, where);
  if (fields.has(kDecodeInt8.name)) engine.decode_int8 = read_table(fields, kDecodeInt8, where);
  if (fields.has(kDecodeInt4.name)) engine.decode_int4 = read_table(fields, kDecodeInt4, where);
}

Engine device_from_json(const nlohmann::json& json, const std::string& where) {
  Fields fields(json, where, Blame::usage);
  Engine engine;
  const std::string linear_at = where + "." + kLinear.name;
  Fields linear(fields.at(kLinear.name), linear_at, Blame::usage);
  for (const DType type : kTypes)
    if (type == DType::f16 || linear.has(name_of(type)))
      engine.linear[index(type)] = table_from_json(linear.at(name_of(type)), kLinear, linear_at + "." + name_of(type));
  linear.refuse_unknown();
  engine.prefill_attention = read_table(fields, kPrefill, where);
  engine.column_sums = read_table(fields, kColumnSums, where);
  if (fields.has(kPrefillBfloat16.name)) engine.prefill_bfloat16 = read_table(fields, kPrefillBfloat16, where);
  if (fields.has(kColumnSumsBfloat16.name))
    engine.column_sums_bfloat16 = read_table(fields, kColumnSumsBfloat16, where);
  read_decode(fields, engine, where);
  engine.pointwise = positive(fields, "pointwise_bytes_per_second");
  engine.launch = positive(fields, "launch_seconds");
  fields.refuse_unknown();
  return engine;
}

Engine host_from_json(const nlohmann::json& json, const std::string& where) {
  Fields fields(json, where, Blame::usage);
  Engine engine;
  read_decode(fields, engine, where);
  engine.launch = positive(fields, "launch_seconds");
  fields.refuse_unknown();
  return engine;
}

void read_memory(Machine& machine, const nlohmann::json& json, const std::string& where) {
  Fields fields(json, where, Blame::usage);
  const auto bytes = [&](const std::string& key) {
    const nlohmann::json& value = fields.at(key);
    if (value.is_string()) return bytes_from_text(value.get<std::string>(), where + ": '" + key + "'");
    if (!value.is_number_integer() || value < 0) fields.refuse_field(key, "bytes or a size such as \"16GiB\"");
    return value.get<std::uint64_t>();
  };
  for (const offload::Tier tier : offload::kTiers) machine.bytes[static_cast<std::size_t>(tier)] = bytes(name_of(tier));
  if (machine[offload::Tier::device] == 0) fields.refuse_field("device", "more than 0 bytes");
  machine.device_overhead = fields.has("device_overhead") ? bytes("device_overhead") : 0;
  fields.refuse_unknown();
}

void read_together(Machine& machine, const nlohmann::json& json, const std::string& where) {
  Fields lanes(json, where, Blame::usage);
  for (const Lane lane : offload::kLanes) {
    if (!lanes.has(name_of(lane))) continue;
    Fields others(lanes.at(name_of(lane)), where + "." + name_of(lane), Blame::usage);
    for (const Lane other : offload::kLanes)
      if (other != lane)
        machine.together[index(lane)][index(other)] = others.number(name_of(other), Machine::kLeastTogether, 1, 1.0);
    others.refuse_unknown();
  }
  lanes.refuse_unknown();
}

/// Whole numbers have no decimal point.
ordered_json number(double value) {
  constexpr double exact = 1e15;
  if (value == std::floor(value) && std::abs(value) < exact) return static_cast<std::int64_t>(value);
  return value;
}

ordered_json to_json(const RateTable& table, const Columns& columns) {
  ordered_json json = ordered_json::array();
  for (const auto& [size, width, rate] : table.points)
    json.push_back({{columns.size, number(size)}, {columns.width, number(width)}, {columns.rate, number(rate)}});
  return json;
}

void write_decode(const Engine& engine, ordered_json& json) {
  json[kDecode.name] = to_json(engine.decode_attention, kDecode);
  if (!engine.decode_int8.empty()) json[kDecodeInt8.name] = to_json(engine.decode_int8, kDecodeInt8);
  if (!engine.decode_int4.empty()) json[kDecodeInt4.name] = to_json(engine.decode_int4, kDecodeInt4);
}

ordered_json together_to_json(const Machine& machine) {
  ordered_json json = ordered_json::object();
  for (const Lane lane : offload::kLanes)
    for (const Lane other : offload::kLanes)
      if (const double left = machine.together[index(lane)][index(other)]; left != 1)
        object_at(json, name_of(lane))[name_of(other)] = left;
  return json;
}

/// The position of `value` between two neighbours of `count` ascending values: their indices, and the part of the way
/// from the lower to the upper, from 0 to 1 on a logarithmic scale.
struct Place {
  std::size_t lower, upper;
  double part;
};
template <class At> Place place(double value, std::size_t count, const At& at) {
  std::size_t upper = 0;
  while (upper < count && at(upper) < value) ++upper;
  if (upper == count) return {count - 1, count - 1, 0};
  if (upper == 0 || at(upper) == value) return {upper, upper, 0};
  const double low = std::log(at(upper - 1)), high = std::log(at(upper));
  return {upper - 1, upper, (std::log(value) - low) / (high - low)};
}

}  // namespace

double RateTable::at(double size, double width) const {
  assert(!points.empty());
  const std::size_t widths = widths_of(points);
  const Place row = place(size, points.size() / widths, [&](std::size_t i) { return points[i * widths].size; });
  const Place column = place(width, widths, [&](std::size_t i) { return points[i].width; });
  const auto along = [&](std::size_t of_row) {
    const double low = points[of_row * widths + column.lower].rate, high = points[of_row * widths + column.upper].rate;
    return low * std::pow(high / low, column.part);
  };
  const double low = along(row.lower), high = along(row.upper);
  return low * std::pow(high / low, row.part);
}

const RateTable& Engine::decode(DType type) const {
  const RateTable& own = type == DType::i8 ? decode_int8 : type == DType::i4 ? decode_int4 : decode_attention;
  return own.empty() ? decode_attention : own;
}

double Machine::linear(DType dtype, double rows, double width) const {
  const RateTable& own = device.linear[index(dtype)];
  if (!own.empty()) return own.at(rows, width);
  return device.linear[index(DType::f16)].at(rows, width) * (dtype == DType::f32 ? 0.5 : 1.0);
}

double Machine::linear_packed(double bits, double rows, double width) const {
  const RateTable& own = device.linear[index(DType::f16)];
  const double share = bits / 16, best = own.at(own.points.back().size, width);
  return std::min(best, own.at(rows, width * std::sqrt(share)) / share);
}

Machine Machine::from_json(const nlohmann::json& json, const std::string& where) {
  Fields fields(json, where, Blame::usage);
  Machine machine;
  machine.name = fields.text("name");
  machine.source = fields.text("source");
  machine.measured = fields.boolean("measured");
  machine.device_is_host_memory = fields.boolean("device_is_host_memory");
  // Plans are made for computers without a GPU, which do not unpack weights, and for GPUs, which do.
  machine.unpacks_weights =
      fields.has("unpacks_weights") ? fields.boolean("unpacks_weights") : !machine.device_is_host_memory;
  machine.packed_rows = fields.integer("packed_rows", 0, 1 << 20, machine.unpacks_weights ? 64 : 0);
  read_memory(machine, fields.at("memory"), where + ": memory");
  if (fields.has("rows_that_fill")) machine.rows_that_fill = fields.integer("rows_that_fill", 1, 1 << 20);
  Fields lanes(fields.at("lanes"), where + ": lanes", Blame::usage);
  for (const Lane lane : kMoving) machine.bytes_per_second[index(lane)] = positive(lanes, name_of(lane));
  machine.spilled_read =
      lanes.has("spilled_read") ? positive(lanes, "spilled_read") : machine.bytes_per_second[index(Lane::disk_read)];
  lanes.refuse_unknown();
  machine.disk_rows_per_second = positive(fields, "disk_rows_per_second");
  for (auto& others : machine.together) others.fill(1);
  if (fields.has("together")) read_together(machine, fields.at("together"), where + ": together");
  machine.device = device_from_json(fields.at("device"), where + ": device");
  machine.host = host_from_json(fields.at("host"), where + ": host");
  fields.refuse_unknown();
  return machine;
}

ordered_json Machine::to_json() const {
  ordered_json json{{"name", name},
                    {"source", source},
                    {"measured", measured},
                    {"device_is_host_memory", device_is_host_memory},
                    {"unpacks_weights", unpacks_weights},
                    {"packed_rows", packed_rows}};
  for (const offload::Tier tier : offload::kTiers) object_at(json, "memory")[name_of(tier)] = (*this)[tier];
  object_at(json, "memory")["device_overhead"] = device_overhead;
  json["rows_that_fill"] = rows_that_fill;
  for (const Lane lane : kMoving) object_at(json, "lanes")[name_of(lane)] = number(bytes_per_second[index(lane)]);
  object_at(json, "lanes")["spilled_read"] = number(spilled_read);
  json["disk_rows_per_second"] = number(disk_rows_per_second);
  json["together"] = together_to_json(*this);
  ordered_json& on_device = object_at(json, "device");
  for (const DType type : kTypes)
    if (!device.linear[index(type)].empty())
      object_at(on_device, kLinear.name)[name_of(type)] = policy::to_json(device.linear[index(type)], kLinear);
  on_device[kPrefill.name] = policy::to_json(device.prefill_attention, kPrefill);
  on_device[kColumnSums.name] = policy::to_json(device.column_sums, kColumnSums);
  if (!device.prefill_bfloat16.empty())
    on_device[kPrefillBfloat16.name] = policy::to_json(device.prefill_bfloat16, kPrefillBfloat16);
  if (!device.column_sums_bfloat16.empty())
    on_device[kColumnSumsBfloat16.name] = policy::to_json(device.column_sums_bfloat16, kColumnSumsBfloat16);
  write_decode(device, on_device);
  on_device["pointwise_bytes_per_second"] = number(device.pointwise);
  on_device["launch_seconds"] = device.launch;
  ordered_json& on_host = object_at(json, "host");
  write_decode(host, on_host);
  on_host["launch_seconds"] = host.launch;
  return json;
}

}  // namespace weft::policy
