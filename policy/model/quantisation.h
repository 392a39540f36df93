// policy/model/quantisation.h: the quantisation of a checkpoint's weights, by Weft or by others, as its config.json
// describes it.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft::policy {

struct Quantisation {
  /// The layout of the levels in files. weft: units, as weft convert writes them. Each of the others has its own layout
  /// of tensors (a file each in runtime/checkpoint), or of blocks (gguf). Unlike gptq, gptq_v2 stores zero points
  /// unchanged.
  enum class Packing : std::uint8_t {
    none,
    weft,
    compressed_tensors,
    gptq,
    gptq_v2,
    awq,
    gguf,
    mxfp4,
    nvfp4,
    bitsandbytes,
    fp8
  };

  Packing packing = Packing::none;
  DType dtype = DType::f32;  ///< i8, i4 or f8; f32: levels that Weft's own cannot hold, or no packing
  int group = 0;             ///< numbers of a row that share a scale in Weft's memory, if they keep their levels
  int repeats = 1;           ///< in the file so many of these groups share one scale
  bool whole_rows = false;   ///< in the file all numbers of a row share one scale; then `group` is 128
  bool reordered = false;    ///< the groups may take the columns in another order (desc_act, actorder)
  bool zero_points = false;  ///< compressed_tensors: zero points must be stored; false: they may be
  /// gptq: the writer subtracted 1 from all eight packed zero points as one integer, so a zero point of 0 borrowed from
  /// the next one.
  bool whole_words = false;
  bool uniform = false;  ///< all quantised matrices have `dtype`; else int4 leaves some of them in int8
  /// weft: the matrices of layers that are not quantised, by TensorSpec::name, sorted.
  std::vector<std::string> plain = {};
  std::vector<std::string> int8 = {};  ///< weft: the same for those that are int8 although `dtype` is int4
  /// weft: what levels of int4 stand for, but in the matrices that are listed with another table.
  LevelTable table = LevelTable::even;
  std::map<std::string, LevelTable> other_tables = {};
  std::map<std::string, int> other_groups = {};  ///< weft: the matrices whose groups have another size than `group`

  /// The type of the head's levels, if the head keeps those of the checkpoint. All other heads are floats.
  std::optional<DType> head = {};

  LevelTable table_of(const std::string& matrix) const {
    const auto other = other_tables.find(matrix);
    return other == other_tables.end() ? table : other->second;
  }

  int group_of(const std::string& matrix) const {
    const auto other = other_groups.find(matrix);
    return other == other_groups.end() ? group : other->second;
  }

  explicit operator bool() const { return packing != Packing::none; }
  bool foreign() const { return packing != Packing::none && packing != Packing::weft; }
  bool keeps_levels() const { return is_quantised(dtype); }  ///< else its numbers are computed with as floats
};
/// "GPTQ"
const char* name_of(Quantisation::Packing packing);

/// Reads a quantization_config. Throws a DataError for everything unsupported, which names it and a way out.
Quantisation quantisation_from_config(const nlohmann::json& json, const std::string& where);

/// Reads what ModelOpt writes to hf_quant_config.json. Throws a DataError as above.
Quantisation quantisation_from_modelopt(const nlohmann::json& json, const std::string& where);

/// The quantization_config of a copy that weft convert writes.
nlohmann::ordered_json to_config(const Quantisation& quantisation);

}  // namespace weft::policy
