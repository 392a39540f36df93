// policy/model/quantisation_floats.cc: weights that are stored as floats of 4 or 8 bits, or as levels of a table. None
// of these methods says anything of Weft's own activations and KV: they are not quantised, whatever the checkpoint
// allows.
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/model/quantisation_part.h"

namespace weft::policy {
namespace {

using nlohmann::json;
using Packing = Quantisation::Packing;
using Part = QuantisationPart;

/// Numbers of 8 bits, of which the tensors of each matrix say how far a scale reaches.
Quantisation of_float8() {
  return {.packing = Packing::fp8, .dtype = DType::f8, .group = kWholeRowGroup, .uniform = true};
}

Quantisation nvfp4() { return {.packing = Packing::nvfp4, .dtype = DType::i4, .group = 16, .uniform = true}; }

/// Reads "weight_block_size" or "block_structure": the sizes of the blocks that share a scale.
void read_block_size(Part& fields, const std::string& key) {
  if (fields.absent(key)) return;
  const json& size = fields.at(key);
  if (size != json::array({128, 128})) fields.unread(key, "[128, 128]");
}

}  // namespace

Quantisation read_fp8(Part& fields) {
  if (fields.word("fmt", "e4m3") != "e4m3") fields.unread("fmt", "e4m3");
  read_block_size(fields, "weight_block_size");
  return of_float8();
}

Quantisation read_float_quantized(Part& fields) {
  fields.for_each_group([](Part& group) {
    Part weights(group.at("weights"), group.where + ".weights");
    if (weights.word("type", "int") != "float") weights.unread("type", "float");
    if (weights.integer("num_bits", 1, 64) != 8) weights.unread("num_bits", "8");
    const std::string strategy = weights.word("strategy", "tensor");
    if (strategy != "tensor" && strategy != "channel" && strategy != "block")
      weights.unread("strategy", "tensor, channel or block");
    read_block_size(weights, "block_structure");
  });
  return of_float8();
}

Quantisation read_fp4(Part& fields) {
  const std::string format = fields.word("format", "");
  const bool mx = format == "mxfp4-pack-quantized";
  const int group_size = mx ? 32 : 16;
  fields.for_each_group([&](Part& group) {
    if (group.word("format", format) != format) group.unread("format", format);
    Part weights(group.at("weights"), group.where + ".weights");
    if (weights.word("type", "int") != "float") weights.unread("type", "float");
    if (weights.integer("num_bits", 1, 64) != 4) weights.unread("num_bits", "4");
    if (weights.integer("group_size", 1, 1 << 20) != group_size)
      weights.unread("group_size", std::to_string(group_size));
    if (!weights.flag("symmetric", true)) weights.unread("symmetric", "true");
  });
  return mx ? mxfp4() : nvfp4();
}

Quantisation read_modelopt(Part& fields) {
  Part part = fields.has("quantization") ? Part(fields.at("quantization"), fields.where + ".quantization") : fields;
  const std::string method = part.word("quant_algo", "");
  if (method == "fp8" || method == "fp8_per_channel_per_token") return of_float8();
  if (method != "nvfp4" && method != "w4a16_nvfp4")
    part.unread("quant_algo", "NVFP4, W4A16_NVFP4, FP8 or FP8_PER_CHANNEL_PER_TOKEN");
  if (!part.absent("group_size") && part.integer("group_size", -1, 1 << 20) != 16) part.unread("group_size", "16");
  return nvfp4();
}

Quantisation read_bitsandbytes(Part& fields) {
  if (fields.flag("load_in_8bit", false)) {
    if (fields.flag("llm_int8_has_fp16_weight", false)) fields.unread("llm_int8_has_fp16_weight", "false");
    return {.packing = Packing::bitsandbytes,
            .dtype = DType::i8,
            .group = kWholeRowGroup,
            .whole_rows = true,
            .uniform = true};
  }
  if (!fields.flag("load_in_4bit", false)) fields.unread("load_in_4bit", "true, or load_in_8bit");
  if (fields.word("bnb_4bit_quant_type", "fp4") != "nf4") return {.packing = Packing::bitsandbytes};
  return {.packing = Packing::bitsandbytes, .dtype = DType::i4, .group = 64, .uniform = true};
}

Quantisation mxfp4() { return {.packing = Packing::mxfp4, .dtype = DType::i4, .group = 32, .uniform = true}; }

Quantisation quantisation_from_modelopt(const json& config, const std::string& where) {
  Part fields(config, where);
  return read_modelopt(fields);
}

}  // namespace weft::policy
