#include "runtime/stored/stored_tensor.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <set>
#include <string_view>

#include "kernels/error.h"
#include "runtime/base/quote.h"
#include "runtime/gguf/gguf.h"
#include "runtime/stored/expert_stack.h"

namespace weft::runtime {
namespace {

using policy::Form;

constexpr const char* kHeadInMemory = "lm_head.weight";

bool is_vector(Form form) { return form == Form::norm || form == Form::vector; }

bool is_there(const policy::ModelSpec& model, const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.find(name) || matrix_format(checkpoint, model.quantisation, name);
}

/// The format of the tensor if it is not stored as plain rows; else null. Of vectors that are those with 1 added.
const MatrixFormat* format_for(const policy::ModelSpec& model, const Checkpoint& checkpoint, Form form,
                               const std::string& name) {
  const TensorInfo* const tensor = is_vector(form) ? checkpoint.find(name) : nullptr;
  if (is_vector(form) && !(tensor && tensor->plus_one)) return nullptr;
  return matrix_format(checkpoint, model.quantisation, name);
}

/// Refuses tensors that change results and are not tensors of the model.
void refuse_extras(const policy::ModelSpec& model, const Checkpoint& checkpoint) {
  if (!model.quantisation) {
    for (const TensorInfo& tensor : checkpoint.tensors())
      if (tensor.name.ends_with(".qweight") || tensor.name.ends_with(".weight_packed") ||
          tensor.name.ends_with(".weight_scale_2") || tensor.name.ends_with(".weight.absmax"))
        throw DataError(checkpoint.files()[tensor.file].string() + ": tensor " + in_quotes(tensor.name) +
                        " is quantised, but config.json has no quantization_config, which says how; older files have "
                        "it in quantize_config.json");
  }
  if (!model.quantisation.foreign()) return;
  const std::string method = name_of(model.quantisation.packing);
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (tensor.name.ends_with(".act.scales") || tensor.name.ends_with(".pre_quant_scale"))
      refuse_tensor(checkpoint, tensor,
                    method + " has scaled activations, which is not read; use the unquantized model");
  if (model.tied_head && matrix_format(checkpoint, model.quantisation, kHeadInMemory))
    throw DataError(checkpoint.files().front().string() + ": " + method +
                    " has quantised lm_head, but tie_word_embeddings says that it is the embedding; set it to false");
}

constexpr std::size_t kPiece = 4 << 20;

/// The tensors that are in the checkpoint and no part of the model. Tables that transformers makes itself are left out.
std::vector<const TensorInfo*> unused(const std::vector<TensorNeed>& needs, const policy::ModelSpec& model,
                                      const Checkpoint& checkpoint) {
  std::set<std::string, std::less<>> known;
  for (const TensorNeed& need : needs) {
    known.insert(need.name);
    if (model.quantisation) known.insert(need.name.substr(0, need.name.rfind('.') + 1));  // beside parts of a matrix
  }
  std::vector<const TensorInfo*> found;
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    const std::string_view name = tensor.name;
    const bool table = name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attention.bias") ||
                       name.ends_with(".masked_bias") || name.ends_with("position_ids") ||
                       std::find(kGgufFactors.begin(), kGgufFactors.end(), name) != kGgufFactors.end();
    const bool beside =
        model.quantisation && !name.ends_with(".bias") && known.contains(name.substr(0, name.rfind('.') + 1));
    if (!table && !beside && !known.contains(name)) found.push_back(&tensor);
  }
  return found;
}

bool is_zero(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  if (tensor.bytes > kPiece) return false;
  const std::vector<std::byte> bytes = checkpoint.read_tensor(tensor);
  return std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{}; });
}

/// The first tensor with this role; null if the model has none.
std::optional<policy::TensorSpec> first_with(const policy::ModelSpec& model, policy::Role role) {
  for (const policy::Unit& unit : policy::model_units(model))
    for (const policy::TensorSpec& spec : unit.tensors)
      if (spec.role == role) return spec;
  return {};
}

std::string embedding_name(const policy::ModelSpec& model, const Checkpoint& checkpoint) {
  const auto embedding = first_with(model, policy::Role::token_embedding);
  return embedding ? stored_name(model, checkpoint, *embedding) : std::string();
}

/// Whether two tensors of the same shape have the same type and bytes.
bool same_bytes(const Checkpoint& checkpoint, const TensorInfo& one, const TensorInfo& other) {
  if (one.dtype != other.dtype || one.strides != other.strides) return false;
  std::vector<std::byte> ones(kPiece), others(kPiece);
  for (std::uint64_t at = 0; at < one.bytes; at += kPiece) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(kPiece, one.bytes - at));
    checkpoint.read_range(one.file, one.offset + at, std::span(ones).first(bytes));
    checkpoint.read_range(other.file, other.offset + at, std::span(others).first(bytes));
    if (std::memcmp(ones.data(), others.data(), bytes) != 0) return false;
  }
  return true;
}

/// What an unused tensor adds to the model; null if it is no part of its layers, or adds nothing.
const char* addition(const policy::ModelSpec& model, const Checkpoint& checkpoint, const TensorInfo& tensor) {
  constexpr std::string_view kLayers = "layers.";
  std::string_view name = tensor.name;
  if (name.find(".lora_") != std::string_view::npos) return "parts of LoRA";
  for (const std::string_view prefix : policy::name_prefixes(model))
    if (name.starts_with(prefix)) {
      name.remove_prefix(prefix.size());
      break;
    }
  const bool in_layers = name.starts_with(kLayers);
  if (!in_layers && std::count(name.begin(), name.end(), '.') != 1) return nullptr;
  int layer = 0;
  if (in_layers) {
    name.remove_prefix(kLayers.size());
    if (std::from_chars(name.data(), name.data() + name.size(), layer).ec != std::errc{}) return nullptr;
    if (layer >= model.layers) return layer < model.layers + model.next_layers ? nullptr : "layers";
    // Checkpoints may have keys and values that nothing is made of.
    if (model.shares_kv(layer) && name.find(".self_attn.k_norm") != std::string_view::npos) return nullptr;
  }
  if (name.ends_with(".bias")) return is_zero(checkpoint, tensor) ? nullptr : "biases";
  if (in_layers && name.ends_with(".sinks")) return "sink logits";
  return in_layers && name.ends_with("norm.weight") ? "norms" : nullptr;
}

/// A quantization_config that a merge has left behind says nothing of weights that are plain numbers. Throws DataError
/// if they are not, and the config cannot be read.
void settle_quantisation(policy::ModelSpec& model, const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  const bool unread = !model.unread_quantisation.empty();
  if (!unread && !model.quantisation.foreign()) return;
  const auto is_plain = [&](const policy::TensorSpec& spec) {
    const std::string name = stored_name(model, checkpoint, spec);
    if (!unread) return !matrix_format(checkpoint, model.quantisation, name);
    const TensorInfo* const tensor = checkpoint.find(name);
    return tensor && (tensor->dtype == "F32" || tensor->dtype == "F16" || tensor->dtype == "BF16");
  };
  for (const policy::Unit& unit : policy::model_units(model))
    if (!std::all_of(unit.tensors.begin(), unit.tensors.end(), is_plain)) {
      if (unread) throw DataError(model.unread_quantisation);
      return;
    }
  model.quantisation = {};
  model.unread_quantisation.clear();
  notes.push_back("config.json has a quantization_config, but the weights are plain numbers and are used as they are");
}

}  // namespace

std::string check_unused(const std::vector<TensorNeed>& needs, const policy::ModelSpec& model,
                         const Checkpoint& checkpoint) {
  constexpr std::size_t kShown = 3;
  std::map<std::string, std::size_t> kinds;
  const TensorInfo* first = nullptr;
  std::vector<std::string> names;
  for (const TensorInfo* const tensor : unused(needs, model, checkpoint)) {
    if (const char* const kind = addition(model, checkpoint, *tensor)) {
      if (!first) first = tensor;
      ++kinds[kind];
    } else if (tensor->name != kHeadInMemory) {
      names.push_back(tensor->name);
    }
  }
  std::string list;
  if (first) {
    for (const auto& [kind, count] : kinds) list += (list.empty() ? "" : ", ") + std::to_string(count) + " " + kind;
    throw DataError(
        checkpoint.files()[first->file].string() + ": holds tensors that config.json does not announce (" + list +
        ", such as " + in_quotes(first->name) +
        "), and answers without them would be wrong; mend config.json, or merge the adapter into the model");
  }
  if (names.empty()) return {};
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) list += (i ? ", " : "") + in_quotes(names[i]);
  return std::to_string(names.size()) + " tensors of the checkpoint are no part of this model and not used: " + list +
         (names.size() > kShown ? ", ..." : "");
}

std::vector<std::string> complete_from_files(policy::ModelSpec& model, const Checkpoint& checkpoint) {
  std::vector<std::string> notes;
  settle_quantisation(model, checkpoint, notes);
  const TensorInfo* const embedding = checkpoint.find(embedding_name(model, checkpoint));
  if (!embedding) return notes;
  if (!model.names_dtype && embedding->dtype == "BF16") {
    model.dtype = DType::bf16;
    notes.push_back("config.json names no dtype; the weights are bfloat16, and so is the computation");
  }
  const TensorInfo* head = checkpoint.find(kHeadInMemory);
  if (!head) head = checkpoint.find("embed_out.weight");
  if (!head || !model.tied_head || model.quantisation) return notes;
  if (head->shape != embedding->shape || same_bytes(checkpoint, *embedding, *head)) return notes;
  model.tied_head = false;
  notes.push_back(in_quotes(head->name) +
                  " is not the embedding, so it is used as the head, although config.json says tie_word_embeddings");
  return notes;
}

void keep_head_levels(policy::ModelSpec& model, const Checkpoint& checkpoint,
                      const std::optional<policy::WeightFormat>& format) {
  const policy::Quantisation& how = model.quantisation;
  if (!how.foreign() || !how.keeps_levels() || !format || format->dtype != how.dtype || format->group != how.group)
    return;
  if (model.tied_head && is_there(model, checkpoint, kHeadInMemory)) return;  // refuse_extras() says what is wrong
  policy::ModelSpec untied = model;
  untied.tied_head = false, untied.head_of_embedding = model.tied_head;
  const auto head = first_with(untied, policy::Role::head);
  if (!head || !matrix_format(checkpoint, how, stored_name(untied, checkpoint, *head))) return;
  checkpoint.demand(needs_of(untied, *head, checkpoint));
  const StoredTensor stored = stored_tensor(untied, *head, checkpoint);
  if (!stored.matrix->has_levels()) return;
  const DType type = stored.matrix->form().type;
  if (type != how.dtype && type != DType::i8) return;
  model = std::move(untied);
  model.quantisation.head = type;
}

namespace {

/// The name that transformers 5 has in memory, and in files that it saves so, for a tensor of Mixtral's files.
std::string name_in_memory(std::string name) {
  constexpr std::string_view kInFiles = "block_sparse_moe.";
  if (const auto at = name.find(kInFiles); at != std::string::npos) name.replace(at, kInFiles.size(), "mlp.");
  return name;
}

std::string own_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec) {
  if (spec.role == policy::Role::head) {
    if (is_there(model, checkpoint, spec.name)) return spec.name;
    // GPT-NeoX's files call this tensor embed_out; transformers 5 calls it lm_head, and so does its state_dict().
    if (is_there(model, checkpoint, kHeadInMemory)) return kHeadInMemory;
    return model.head_of_embedding ? embedding_name(model, checkpoint) : spec.name;
  }
  const auto prefixes = policy::name_prefixes(model);
  for (const std::string& name : {spec.name, name_in_memory(spec.name)})
    for (const char* prefix : prefixes)
      if (is_there(model, checkpoint, prefix + name)) return prefix + name;
  return prefixes.front() + spec.name;
}

/// The tensor of all experts that holds the tensor; empty if it has one of its own, or is not there.
std::optional<policy::ExpertStack> stack_of(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                                            const policy::TensorSpec& spec, const std::string& own) {
  return is_there(model, checkpoint, own) ? std::nullopt : find_stack(model, checkpoint, spec);
}

}  // namespace

std::string stored_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec) {
  std::string own = own_name(model, checkpoint, spec);
  const auto stack = stack_of(model, checkpoint, spec, own);
  return stack ? stack->name : own;
}

StoredTensor stored_tensor(const policy::ModelSpec& model, const policy::TensorSpec& spec,
                           const Checkpoint& checkpoint) {
  StoredTensor stored{.name = own_name(model, checkpoint, spec), .info = nullptr, .matrix = nullptr};
  if (const auto stack = stack_of(model, checkpoint, spec, stored.name)) {
    StackPart part = stack_part(model, checkpoint, *stack, spec, stored.name);
    if (part.info) stored.name = stack->name;
    stored.info = part.info, stored.first_row = part.first_row, stored.matrix = std::move(part.matrix);
    return stored;
  }
  if (const MatrixFormat* const format = format_for(model, checkpoint, spec.form, stored.name))
    stored.matrix = format->open(checkpoint, model.quantisation, stored.name, spec.of_rows, spec.cols);
  else stored.info = checkpoint.find(stored.name);
  return stored;
}

std::vector<TensorNeed> needs_of(const policy::ModelSpec& model, const policy::TensorSpec& spec,
                                 const Checkpoint& checkpoint) {
  const std::string own = own_name(model, checkpoint, spec);
  if (const auto stack = stack_of(model, checkpoint, spec, own)) return stack_needs(model, checkpoint, *stack, spec);
  if (const MatrixFormat* const format = format_for(model, checkpoint, spec.form, own))
    return format->needs(checkpoint, model.quantisation, own, spec.of_rows, spec.cols);
  const TensorInfo* const tensor = checkpoint.find(own);
  // A single row may be stored as a vector or as a matrix: ERNIE's score bias, the gate of shared experts in GGUF
  // files.
  const bool vector = spec.of_rows == 1 && (tensor ? tensor->shape.size() == 1 : is_vector(spec.form));
  return {{own, vector ? std::vector{spec.cols} : std::vector{spec.of_rows, spec.cols}}};
}

std::vector<TensorNeed> tensor_needs(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                                     const Checkpoint& checkpoint) {
  refuse_extras(model, checkpoint);
  std::vector<TensorNeed> needs;
  std::set<std::string> seen;
  for (const policy::Unit& unit : units)
    for (const policy::TensorSpec& spec : unit.tensors)
      for (TensorNeed& need : needs_of(model, spec, checkpoint))
        if (seen.insert(need.name).second) needs.push_back(std::move(need));
  return needs;
}

}  // namespace weft::runtime
