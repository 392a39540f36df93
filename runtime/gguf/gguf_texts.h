// runtime/gguf/gguf_texts.h: a GGUF file's metadata as the small files of the Hugging Face folder that it may have been
// made of.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/model/quantisation.h"
#include "runtime/base/model_texts.h"
#include "runtime/gguf/gguf.h"

namespace weft::runtime {

/// config.json, generation_config.json and, if the file has a vocabulary, tokenizer.json and tokenizer_config.json.
/// They are made when they are read, of `model`, which must outlive them. Throws GgufError then, if the model or its
/// vocabulary is none that Weft reads.
ModelTexts gguf_texts(const GgufModel& model);

nlohmann::ordered_json gguf_config(const GgufModel& model);  ///< gguf_config.cc
nlohmann::ordered_json gguf_generation_config(const GgufModel& model);
nlohmann::ordered_json gguf_tokenizer(const Gguf& gguf);
nlohmann::ordered_json gguf_tokenizer_config(const Gguf& gguf);

/// config.json's share of a head's `numbers` that turns: it is cut to `dims` when it is multiplied by them again.
double gguf_rotary_share(std::int64_t dims, std::int64_t numbers);

/// Gemma 4's "tokenizer.ggml.model". The tokens that such a file has the user define are special in the model's folder.
inline constexpr const char* kGgufGemma4Pieces = "gemma4";

/// The metadata's key for the id of a special token, such as "eos".
inline std::string gguf_token_key(const char* name) { return std::string("tokenizer.ggml.") + name + "_token_id"; }

/// Adds the ids of the tokens that begin and end a text; null if the file has none.
void add_gguf_token_ids(const Gguf& gguf, nlohmann::ordered_json& config);

/// Whether the tensor is a matrix of a layer, or those of all its experts. Routers, which are never quantised, and
/// biases of experts are not.
inline bool is_gguf_layer_matrix(const GgufTensor& tensor) {
  return tensor.shape.size() >= 2 && tensor.name.starts_with("blk.") && tensor.name.ends_with(".weight") &&
         !tensor.name.ends_with("ffn_gate_inp.weight");
}

/// The quantisation of the layers' matrices: int4 if some have that, else int8, in groups of 32 if some have these,
/// else of 16; none if all are floats.
policy::Quantisation gguf_quantisation(const GgufModel& model);

}  // namespace weft::runtime
