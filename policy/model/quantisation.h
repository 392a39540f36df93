// policy/model/quantisation.h: what a config.json says of weights that are quantised already, by Weft or by others.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft::policy {

struct Quantisation {
  /// In what files the levels lie. weft: units, as weft convert writes them. The others are tensors of a layout each
  /// (runtime/checkpoint/quantised_matrix.h); gptq_v2 differs from gptq in that it stores zero points as they are.
  enum class Packing : std::uint8_t { none, weft, compressed_tensors, gptq, gptq_v2, awq };

  Packing packing = Packing::none;
  DType dtype = DType::f32;  ///< i8 or i4, unless there is no packing
  int group = 0;             ///< how many numbers of a row share a scale, as Weft holds them
  bool whole_rows = false;   ///< in the file all numbers of a row share one; then `group` is 128
  bool reordered = false;    ///< says that columns may be in groups of an order of their own (desc_act, actorder)
  bool zero_points = false;  ///< of compressed_tensors: they are stored; else they may be
  /// Of gptq: zero points were lessened by one in whole words of 8, so that a 0 has borrowed from its neighbour.
  bool whole_words = false;
  bool uniform = false;  ///< all that is quantised is of `dtype`; else what int4 makes of it, which leaves some in int8
  /// Of weft: matrices of layers that are not quantised, by TensorSpec::name, sorted.
  std::vector<std::string> plain = {};

  explicit operator bool() const { return packing != Packing::none; }
  bool foreign() const { return packing != Packing::none && packing != Packing::weft; }
};
/// "GPTQ"
const char* name_of(Quantisation::Packing packing);

/// What a quantization_config says. Throws DataError for all that is not read, with its name and what to do.
Quantisation quantisation_from_config(const nlohmann::json& json, const std::string& where);

/// The quantization_config of a copy that weft convert writes.
nlohmann::ordered_json to_config(const Quantisation& quantisation);

}  // namespace weft::policy
