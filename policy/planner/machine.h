// policy/planner/machine.h: what a machine has and how fast it is, measured or from datasheets: a file of
// configs/machines.
#pragma once

#include <array>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/tensor.h"
#include "offload/tier.h"

namespace weft::policy {

/// A rate that depends on two sizes, known at the points of a grid; between them it is interpolated over the logarithms
/// of sizes and rate, beyond them it is that of the edge.
struct RateTable {
  struct Point {
    double size = 0, width = 0, rate = 0;
  };
  std::vector<Point> points;                   ///< every size with every width, ascending by size, then by width
  double at(double size, double width) const;  ///< of a table that is not empty
  bool empty() const { return points.empty(); }
};

/// An engine that computes: the device, or the host where it attends.
struct Engine {
  /// flop/s by DType of the weights, over rows x width of a square matrix; of quantised ones in groups of 64, in
  /// integer arithmetic where the engine has it; of bf16 on a CPU in Arithmetic::bfloat16, if that has it.
  std::array<RateTable, 6> linear;
  RateTable prefill_attention;         ///< flop/s over the causal half (4 x pairs x head_dim), over prompt x head_dim
  RateTable column_sums;               ///< flop/s of the second pass (2 x pairs x head_dim), over the same
  RateTable decode_attention;          ///< bytes/s: keys, values, 12 bytes a slot where scored, over slots x head_dim
  RateTable decode_int8, decode_int4;  ///< the same over slots of these types; may be empty
  double pointwise = 0;                ///< bytes/s read and written by norms, activations and other pointwise ops
  double launch = 0;                   ///< seconds that a kernel takes at least

  /// Over slots of `type`; where it was not measured, of float16, so many bytes a second.
  const RateTable& decode(DType type) const;
};

struct Machine {
  std::string name, source;  ///< source: where the figures come from, in a sentence
  bool measured = false;     ///< by weft bench --lanes on the machine itself
  bool device_is_host_memory = false;
  bool unpacks_weights = false;                                   ///< Backend::unpacks_weights()
  std::array<std::uint64_t, 3> bytes{};                           ///< by offload::Tier: what a run may use
  std::uint64_t device_overhead = 0;                              ///< of these, what the backend takes for itself
  std::int64_t rows_that_fill = 512;                              ///< tokens of prompts that it works on at once
  std::array<double, offload::kLanes.size()> bytes_per_second{};  ///< of the lanes that move bytes, each alone
  double spilled_read = 0;          ///< bytes/s of disk_read of blocks that a run has written, which are checked
  double disk_rows_per_second = 0;  ///< rows of a table, scattered over a file
  /// What is left of a lane's speed (first) while another (second) is busy too, from 0 to 1.
  std::array<std::array<double, offload::kLanes.size()>, offload::kLanes.size()> together{};
  Engine device, host;  ///< of the host only decode_attention and launch are used

  std::uint64_t operator[](offload::Tier tier) const { return bytes[static_cast<std::size_t>(tier)]; }
  /// flop/s of products with weights of `dtype`; where a type was not measured, float16's, of float32 half of that.
  /// A machine has at least float16's table, or from_json() refuses it.
  double linear(DType dtype, double rows, double width) const;

  /// Throws UsageError, which names `where`, the key, what was wanted and what was found.
  static Machine from_json(const nlohmann::json& json, const std::string& where);
  /// from_json() gives the same value back, bit for bit.
  nlohmann::ordered_json to_json() const;
};

}  // namespace weft::policy
