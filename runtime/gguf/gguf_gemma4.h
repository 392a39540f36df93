// runtime/gguf/gguf_gemma4.h: the keys that only Gemma 4's config.json has, made of a GGUF file's metadata and tensors.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "runtime/gguf/gguf.h"

namespace weft::runtime {

/// Refuses, by its key, what no published model has. Throws GgufError.
void check_gguf_gemma4(const Gguf& gguf);

/// The numbers of a head in layers with a window.
std::int64_t gguf_gemma4_head(const Gguf& gguf);

/// The width of an mlp; a list has those of each layer, of which the last may be twice as wide.
std::int64_t gguf_gemma4_width(const Gguf& gguf);

/// Adds the other heads, rotation, experts, inputs of layers, layers that share keys and cap to `config`, in which the
/// layers' types stand. Throws GgufError.
void add_gguf_gemma4(const GgufModel& model, nlohmann::ordered_json& config);

}  // namespace weft::runtime
