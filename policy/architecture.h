// policy/architecture.h: what differs between families of models, as tables.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "policy/json.h"
#include "policy/model.h"

namespace weft::policy {

enum class Dim : std::uint8_t { one, hidden, ffn, vocab, embed, positions, q_rows, kv_rows, qkv_rows };
enum class When : std::uint8_t { always, qkv_bias, output_bias, mlp_bias, norm, final_norm, projections, untied };

/// One row of an architecture's table.
struct TensorRow {
  Unit::Kind unit;
  Role role;
  const char* name;  ///< '#' stands for the layer
  Dim rows, cols;
  When when = When::always;
};

struct Architecture {
  const char* model_type;
  std::span<const TensorRow> tensors;
  std::span<const char* const> prefixes;                               ///< see name_prefixes()
  ModelSpec (*from_config)(Fields& fields, const std::string& where);  ///< throws DataError
};

/// Null: none of that name.
const Architecture* find_architecture(const std::string& model_type);
std::string known_architectures();  ///< "opt, llama"

ModelSpec opt_from_config(Fields& fields, const std::string& where);
ModelSpec llama_from_config(Fields& fields, const std::string& where);
ModelSpec mistral_from_config(Fields& fields, const std::string& where);
ModelSpec qwen2_from_config(Fields& fields, const std::string& where);
ModelSpec neox_from_config(Fields& fields, const std::string& where);

/// What "eos_token_id" of a config.json or a generation_config.json says: an id or a list of them, none for null,
/// nothing where the key is absent. Throws DataError for what is no id below `vocab`, and for a list without any.
std::optional<std::vector<std::int32_t>> eos_ids(Fields& fields, int vocab);

}  // namespace weft::policy
