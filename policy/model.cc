#include "policy/model.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"

namespace weft::policy {
namespace {

enum class Dim : std::uint8_t { one, hidden, ffn, vocab, embed, positions, q_rows, kv_rows };
enum class When : std::uint8_t { always, bias, norm, final_norm, projections, untied };

/// One row of an architecture's table.
struct TensorRow {
  Unit::Kind unit;
  Role role;
  const char* name;  // '#' stands for the layer
  Dim rows, cols;
  When when;
};

/// Names and shapes as transformers' OPTForCausalLM has them.
constexpr std::array kOpt{
    TensorRow{Unit::Kind::embedding, Role::token_embedding, "embed_tokens.weight", Dim::vocab, Dim::embed,
              When::always},
    TensorRow{Unit::Kind::positions, Role::position_embedding, "embed_positions.weight", Dim::positions, Dim::hidden,
              When::always},
    TensorRow{Unit::Kind::input, Role::project_in, "project_in.weight", Dim::hidden, Dim::embed, When::projections},
    TensorRow{Unit::Kind::attention, Role::k_weight, "layers.#.self_attn.k_proj.weight", Dim::kv_rows, Dim::hidden,
              When::always},
    TensorRow{Unit::Kind::attention, Role::k_bias, "layers.#.self_attn.k_proj.bias", Dim::one, Dim::kv_rows,
              When::bias},
    TensorRow{Unit::Kind::attention, Role::v_weight, "layers.#.self_attn.v_proj.weight", Dim::kv_rows, Dim::hidden,
              When::always},
    TensorRow{Unit::Kind::attention, Role::v_bias, "layers.#.self_attn.v_proj.bias", Dim::one, Dim::kv_rows,
              When::bias},
    TensorRow{Unit::Kind::attention, Role::q_weight, "layers.#.self_attn.q_proj.weight", Dim::q_rows, Dim::hidden,
              When::always},
    TensorRow{Unit::Kind::attention, Role::q_bias, "layers.#.self_attn.q_proj.bias", Dim::one, Dim::q_rows, When::bias},
    TensorRow{Unit::Kind::attention, Role::o_weight, "layers.#.self_attn.out_proj.weight", Dim::hidden, Dim::q_rows,
              When::always},
    TensorRow{Unit::Kind::attention, Role::o_bias, "layers.#.self_attn.out_proj.bias", Dim::one, Dim::hidden,
              When::bias},
    TensorRow{Unit::Kind::attention, Role::norm1_weight, "layers.#.self_attn_layer_norm.weight", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::attention, Role::norm1_bias, "layers.#.self_attn_layer_norm.bias", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::mlp, Role::up_weight, "layers.#.fc1.weight", Dim::ffn, Dim::hidden, When::always},
    TensorRow{Unit::Kind::mlp, Role::up_bias, "layers.#.fc1.bias", Dim::one, Dim::ffn, When::bias},
    TensorRow{Unit::Kind::mlp, Role::down_weight, "layers.#.fc2.weight", Dim::hidden, Dim::ffn, When::always},
    TensorRow{Unit::Kind::mlp, Role::down_bias, "layers.#.fc2.bias", Dim::one, Dim::hidden, When::bias},
    TensorRow{Unit::Kind::mlp, Role::norm2_weight, "layers.#.final_layer_norm.weight", Dim::one, Dim::hidden,
              When::norm},
    TensorRow{Unit::Kind::mlp, Role::norm2_bias, "layers.#.final_layer_norm.bias", Dim::one, Dim::hidden, When::norm},
    TensorRow{Unit::Kind::output, Role::final_norm_weight, "final_layer_norm.weight", Dim::one, Dim::hidden,
              When::final_norm},
    TensorRow{Unit::Kind::output, Role::final_norm_bias, "final_layer_norm.bias", Dim::one, Dim::hidden,
              When::final_norm},
    TensorRow{Unit::Kind::output, Role::project_out, "project_out.weight", Dim::embed, Dim::hidden, When::projections},
    TensorRow{Unit::Kind::head, Role::head, "lm_head.weight", Dim::vocab, Dim::embed, When::untied},
};

std::int64_t size_of(Dim dim, const ModelSpec& model) {
  switch (dim) {
    case Dim::one: return 1;
    case Dim::hidden: return model.hidden;
    case Dim::ffn: return model.ffn;
    case Dim::vocab: return model.vocab;
    case Dim::embed: return model.embed;
    case Dim::positions: return std::int64_t{model.positions} + model.position_offset;
    case Dim::q_rows: return std::int64_t{model.heads} * model.head_dim;
    case Dim::kv_rows: return std::int64_t{model.kv_heads} * model.head_dim;
  }
  return 0;
}

bool applies(When when, const ModelSpec& model) {
  switch (when) {
    case When::always: return true;
    case When::bias: return model.bias;
    case When::norm: return model.norm_affine;
    case When::final_norm: return model.final_norm && model.norm_affine;
    case When::projections: return model.has_projections();
    case When::untied: return !model.tied_head;
  }
  return false;
}

Unit make_unit(const ModelSpec& model, Unit::Kind kind, int layer) {
  Unit unit{.kind = kind, .layer = layer, .tensors = {}};
  for (const TensorRow& row : kOpt) {
    if (row.unit != kind || !applies(row.when, model)) continue;
    std::string name = row.name;
    if (const auto hash = name.find('#'); hash != std::string::npos) name.replace(hash, 1, std::to_string(layer));
    unit.tensors.push_back({row.role, std::move(name), size_of(row.rows, model), size_of(row.cols, model)});
  }
  return unit;
}

/// Cuts a unit of one table into pieces of at most `limit` elements, each of whole rows.
void add_pieces(std::vector<Unit>& units, const Unit& whole, std::int64_t limit) {
  const TensorSpec& table = whole.tensors.front();
  const std::int64_t pieces = std::max<std::int64_t>(1, (table.elements() + limit - 1) / limit);
  for (std::int64_t p = 0; p < pieces; ++p) {
    Unit piece = whole;
    TensorSpec& part = piece.tensors.front();
    part.first_row = table.rows * p / pieces;
    part.rows = table.rows * (p + 1) / pieces - part.first_row;
    units.push_back(std::move(piece));
  }
}

DType dtype_from_config(Fields& fields) {
  for (const char* key : {"dtype", "torch_dtype"}) {  // transformers 5 and 4
    if (!fields.has(key) || fields.is_null(key)) continue;
    const std::string name = fields.text(key);
    if (name == "float32") return DType::f32;
    if (name == "float16") return DType::f16;
    if (name == "bfloat16") return DType::bf16;
    fields.refuse_field(key, "float32, float16 or bfloat16");
  }
  return DType::f32;
}

std::vector<std::int32_t> eos_from_config(Fields& fields, int vocab, std::vector<std::int32_t> fallback) {
  if (!fields.has("eos_token_id")) return fallback;
  const auto& value = fields.at("eos_token_id");
  if (value.is_null()) return {};
  const auto list = value.is_array() ? value : nlohmann::json::array({value});
  std::vector<std::int32_t> ids;
  for (const auto& id : list) {
    if (!id.is_number_integer() || id.get<std::int64_t>() < 0 || id.get<std::int64_t>() >= vocab)
      fields.refuse_field("eos_token_id", "an id from 0 to " + std::to_string(vocab - 1) + ", a list of them, or null");
    ids.push_back(id.get<std::int32_t>());
  }
  return ids;
}

int integer(Fields& fields, const char* key, std::int64_t high, std::int64_t fallback) {
  return static_cast<int>(fields.integer(key, 1, high, fallback));
}

ModelSpec opt_from_config(Fields& fields, const std::string& where) {
  ModelSpec model;
  model.architecture = "opt";
  model.hidden = integer(fields, "hidden_size", 131072, 768);
  model.layers = integer(fields, "num_hidden_layers", 1024, 12);
  model.ffn = integer(fields, "ffn_dim", 1 << 20, 3072);
  model.heads = integer(fields, "num_attention_heads", 4096, 12);
  model.vocab = integer(fields, "vocab_size", 1 << 22, 50272);
  model.positions = integer(fields, "max_position_embeddings", 1 << 24, 2048);
  model.position_offset = 2;
  const bool projected = fields.has("word_embed_proj_dim") && !fields.is_null("word_embed_proj_dim");
  model.embed = projected ? integer(fields, "word_embed_proj_dim", 131072, model.hidden) : model.hidden;
  model.pre_norm = fields.boolean("do_layer_norm_before", true);
  model.final_norm = model.pre_norm && !fields.boolean("_remove_final_layer_norm", false);
  model.bias = fields.boolean("enable_bias", true);
  model.norm_affine = fields.boolean("layer_norm_elementwise_affine", true);
  model.tied_head = fields.boolean("tie_word_embeddings", true);
  model.activation = fields.text("activation_function", "relu");
  if (model.hidden % model.heads != 0)
    throw DataError(where + ": num_attention_heads " + std::to_string(model.heads) + " does not divide hidden_size " +
                    std::to_string(model.hidden));
  model.kv_heads = model.heads;
  model.head_dim = model.hidden / model.heads;
  model.dtype = dtype_from_config(fields);
  model.eos = eos_from_config(fields, model.vocab,
                              model.vocab > 2 ? std::vector<std::int32_t>{2} : std::vector<std::int32_t>{});
  if (!fields.is_null("bos_token_id"))
    model.bos =
        static_cast<std::int32_t>(fields.integer("bos_token_id", 0, model.vocab - 1, std::min(2, model.vocab - 1)));
  return model;
}

}  // namespace

ModelSpec model_from_config(const nlohmann::json& config, const std::string& where) {
  Fields fields(config, where, Blame::data);
  const std::string type = fields.text("model_type");
  if (fields.has("quantization_config") && !fields.is_null("quantization_config"))
    throw DataError(where +
                    ": quantization_config is present; quantized checkpoints are not read: use the unquantized model");
  if (type == "opt") return opt_from_config(fields, where);
  throw DataError(where + ": model_type '" + type.substr(0, 40) + "' is not supported; supported: opt");
}

std::int64_t Unit::elements() const {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.elements();
  return sum;
}

std::vector<Unit> model_units(const ModelSpec& model) {
  std::vector<Unit> units;
  const std::int64_t limit = make_unit(model, Unit::Kind::mlp, 0).elements();
  Unit embedding = make_unit(model, Unit::Kind::embedding, -1);
  embedding.gathered = true;
  embedding.streamed = model.tied_head;
  add_pieces(units, embedding, limit);
  Unit positions = make_unit(model, Unit::Kind::positions, -1);
  positions.gathered = true;
  positions.streamed = false;
  add_pieces(units, positions, limit);
  if (model.has_projections()) units.push_back(make_unit(model, Unit::Kind::input, -1));
  for (int layer = 0; layer < model.layers; ++layer) {
    units.push_back(make_unit(model, Unit::Kind::attention, layer));
    units.push_back(make_unit(model, Unit::Kind::mlp, layer));
  }
  if (Unit output = make_unit(model, Unit::Kind::output, -1); !output.tensors.empty())
    units.push_back(std::move(output));
  if (!model.tied_head) add_pieces(units, make_unit(model, Unit::Kind::head, -1), limit);
  return units;
}

const char* name_of(Sublayer::Kind kind) {
  constexpr std::array names{"embed", "attention", "mlp", "output", "head"};
  return names[static_cast<std::size_t>(kind)];
}

std::vector<Sublayer> model_sublayers(const ModelSpec& model, const std::vector<Unit>& units) {
  using Kind = Sublayer::Kind;
  std::vector<Sublayer> order{{Kind::embed}};
  const Unit::Kind head = model.tied_head ? Unit::Kind::embedding : Unit::Kind::head;
  std::vector<Sublayer> heads;
  Sublayer output{Kind::output};
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const Unit& unit = units[static_cast<std::size_t>(u)];
    if (unit.kind == head) heads.push_back({Kind::head, -1, u});
    if (unit.kind == Unit::Kind::input) order.front().unit = u;
    if (unit.kind == Unit::Kind::output) output.unit = u;
    if (unit.kind == Unit::Kind::mlp) order.push_back({Kind::mlp, unit.layer, u});
    if (unit.kind == Unit::Kind::attention) order.push_back({Kind::attention, unit.layer, u});
  }
  order.push_back(output);
  order.insert(order.end(), heads.begin(), heads.end());
  return order;
}

std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = 0;
  for (const Unit& unit : model_units(model)) sum += unit.elements();
  return sum;
}

double flops_per_token(const ModelSpec& model, double context, bool head) {
  const double q = double(model.heads) * model.head_dim, kv = double(model.kv_heads) * model.head_dim;
  const double layer = 2.0 * model.hidden * (2 * q + 2 * kv) + 4.0 * model.hidden * model.ffn + 4.0 * context * q;
  const double projections = model.has_projections() ? 4.0 * model.hidden * model.embed : 0;
  return model.layers * layer + projections + (head ? 2.0 * model.vocab * model.embed : 0);
}

}  // namespace weft::policy
