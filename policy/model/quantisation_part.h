// policy/model/quantisation_part.h: a quantization_config while it is read. Internal to quantisation.cc and
// quantisation_floats.cc.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/base/json.h"
#include "policy/model/quantisation.h"

namespace weft::policy {

/// The way out, for messages on what is not read.
inline constexpr const char* kInstead = "use the unquantized model, with --weight-dtype int4 if it is to be small";
inline constexpr int kWholeRowGroup = 128;

/// A quantization_config, or an object in it.
struct QuantisationPart : Fields {
  QuantisationPart(const nlohmann::json& object, const std::string& name)
      : Fields(object, name, Blame::data), where(name) {}
  std::string where;

  bool absent(const std::string& key) { return !has(key) || is_null(key); }
  bool flag(const std::string& key, bool fallback) { return absent(key) ? fallback : boolean(key); }
  /// The text in small letters.
  std::string word(const std::string& key, const std::string& fallback);
  /// Calls `body` with each of compressed-tensors' config_groups, of which there must be one, and its place.
  void for_each_group(const std::function<void(QuantisationPart& group)>& body);
  /// Throws an error that names the supported value and a way out.
  [[noreturn]] void unread(const std::string& key, const std::string& wanted);
};

std::string in_small_letters(std::string text);

// What follows describes weights that are floats of 4 or 8 bits (quantisation_floats.cc).
Quantisation read_fp8(QuantisationPart& fields);              ///< quant_method fp8 and fbgemm_fp8
Quantisation read_float_quantized(QuantisationPart& fields);  ///< compressed-tensors of 8 bits
Quantisation read_fp4(QuantisationPart& fields);              ///< compressed-tensors nvfp4- and mxfp4-pack-quantized
Quantisation mxfp4();                                         ///< E2M1 with scales of E8M0, in groups of 32
Quantisation read_modelopt(QuantisationPart& fields);
Quantisation read_bitsandbytes(QuantisationPart& fields);

}  // namespace weft::policy
