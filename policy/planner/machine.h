// policy/planner/machine.h: a machine's capacities and rates, measured or from datasheets: a file of configs/machines.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "offload/tier.h"

namespace weft::policy {

/// A rate that depends on two sizes, given at the points of a grid. Between the points it is interpolated over the
/// logarithms of sizes and rate; beyond them it is the edge's.
struct RateTable {
  struct Point {
    double size = 0, width = 0, rate = 0;
  };
  std::vector<Point> points;                   ///< every size with every width, ascending by size, then by width
  double at(double size, double width) const;  ///< the table must not be empty
  bool empty() const { return points.empty(); }
};

/// An engine that computes: the device, or the host for its attention.
struct Engine {
  /// flop/s by DType of the weights, over rows x width of a square matrix. Quantised weights are in groups of 64, in
  /// integer arithmetic if the engine has it. bf16 on a CPU is in Arithmetic::bfloat16 if the CPU has it.
  std::array<RateTable, kDTypes> linear;
  RateTable prefill_attention;  ///< flop/s over the causal half (4 x pairs x head_dim), over prompt x head_dim
  RateTable column_sums;        ///< flop/s of the second pass (2 x pairs x head_dim), over the same
  RateTable prefill_bfloat16, column_sums_bfloat16;  ///< the same by AMX, in Arithmetic::bfloat16; may be empty
  RateTable decode_attention;          ///< bytes/s: keys, values, 12 bytes a slot if scored, over slots x head_dim
  RateTable decode_int8, decode_int4;  ///< the same over slots of these types; may be empty
  double pointwise = 0;                ///< bytes/s read and written by norms, activations and other pointwise ops
  double launch = 0;                   ///< the least seconds that a kernel takes

  /// The rate over slots of `type`; if it was not measured, float16's rate in bytes a second.
  const RateTable& decode(DType type) const;
};

struct Machine {
  std::string name, source;  ///< source: the origin of the figures, in a sentence
  bool measured = false;     ///< whether weft bench --lanes measured it
  bool device_is_host_memory = false;
  bool unpacks_weights = false;                                   ///< Backend::unpacks_weights()
  std::int64_t packed_rows = 0;                                   ///< Backend::packed_rows()
  std::array<std::uint64_t, 3> bytes{};                           ///< [offload::Tier]: the bytes that a run may use
  std::uint64_t device_overhead = 0;                              ///< the part of them that the backend itself takes
  std::int64_t rows_that_fill = 512;                              ///< prompt tokens that it works on at once
  std::array<double, offload::kLanes.size()> bytes_per_second{};  ///< lanes that move bytes, each alone
  double spilled_read = 0;          ///< bytes/s of disk_read for buffers from the spill file, checksums included
  double disk_rows_per_second = 0;  ///< rows of a table, scattered over a file
  static constexpr double kLeastTogether = 0.01;  ///< less is measured only while the whole machine stands still
  /// The share of a lane's speed (first) that remains while another lane (second) is busy, from kLeastTogether to 1.
  std::array<std::array<double, offload::kLanes.size()>, offload::kLanes.size()> together{};
  Engine device, host;  ///< host: only decode attention and launch are used

  std::uint64_t operator[](offload::Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
  /// flop/s of products with weights of `dtype`. A type that was not measured has float16's rate, float32 half of that.
  /// from_json() refuses a machine without float16's table.
  double linear(DType dtype, double rows, double width) const;
  /// The same of quantised weights of `bits` bits a number that are multiplied as they lie: a product takes as long as
  /// float16's with as many bytes of weights, and at least as long as its flops at float16's best.
  double linear_packed(double bits, double rows, double width) const;

  /// Throws a UsageError that names `where`, the key, the wanted and the found value.
  static Machine from_json(const nlohmann::json& json, const std::string& where);
  /// The JSON from which from_json() reads the same value, bit for bit.
  nlohmann::ordered_json to_json() const;
};

}  // namespace weft::policy
