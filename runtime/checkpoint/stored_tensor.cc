#include "runtime/checkpoint/stored_tensor.h"

#include "kernels/error.h"
#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

using policy::Form;

constexpr const char* kHeadInMemory = "lm_head.weight";

bool is_vector(Form form) { return form == Form::norm || form == Form::vector; }

bool is_there(const policy::ModelSpec& model, const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.find(name) || QuantisedMatrix::is_in(checkpoint, model.quantisation, name);
}

/// The number of rows of the whole tensor, even if the unit holds only some of them.
std::int64_t whole_rows(const policy::ModelSpec& model, const policy::Unit& unit, const policy::TensorSpec& spec) {
  if (unit.kind == policy::Unit::Kind::embedding || unit.kind == policy::Unit::Kind::head) return model.vocab;
  if (unit.kind == policy::Unit::Kind::positions) return std::int64_t{model.positions} + model.position_offset;
  return spec.rows;
}

/// Refuses tensors that change results and are not tensors of the model.
void refuse_extras(const policy::ModelSpec& model, const Checkpoint& checkpoint) {
  if (!model.quantisation) {
    for (const TensorInfo& tensor : checkpoint.tensors())
      if (tensor.name.ends_with(".qweight") || tensor.name.ends_with(".weight_packed"))
        throw DataError(checkpoint.files()[tensor.file].string() + ": tensor " + in_quotes(tensor.name) +
                        " is quantised, but config.json has no quantization_config, which says how; older files have "
                        "it in quantize_config.json");
  }
  if (!model.quantisation.foreign()) return;
  const std::string method = name_of(model.quantisation.packing);
  for (const TensorInfo& tensor : checkpoint.tensors())
    if (tensor.name.ends_with(".act.scales"))
      throw DataError(checkpoint.files()[tensor.file].string() + ": tensor " + in_quotes(tensor.name) + ": " + method +
                      " has scaled an activation function, which is not read; use the unquantized model");
  if (model.tied_head && QuantisedMatrix::is_in(checkpoint, model.quantisation, kHeadInMemory))
    throw DataError(checkpoint.files().front().string() + ": " + method +
                    " has quantised lm_head, but tie_word_embeddings says that it is the embedding; set it to false");
}

}  // namespace

std::string stored_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec) {
  // GPT-NeoX's files call this tensor embed_out; transformers 5 calls it lm_head, and so does its state_dict().
  if (spec.role == policy::Role::head)
    return !is_there(model, checkpoint, spec.name) && is_there(model, checkpoint, kHeadInMemory) ? kHeadInMemory
                                                                                                 : spec.name;
  const auto prefixes = policy::name_prefixes(model);
  for (const char* prefix : prefixes)
    if (is_there(model, checkpoint, prefix + spec.name)) return prefix + spec.name;
  return prefixes.front() + spec.name;
}

StoredTensor stored_tensor(const policy::ModelSpec& model, const policy::Unit& unit, const policy::TensorSpec& spec,
                           const Checkpoint& checkpoint) {
  StoredTensor stored{.name = stored_name(model, checkpoint, spec), .info = nullptr, .matrix = {}};
  if (QuantisedMatrix::is_in(checkpoint, model.quantisation, stored.name))
    stored.matrix.emplace(checkpoint, model.quantisation, stored.name, whole_rows(model, unit, spec), spec.cols);
  else stored.info = checkpoint.find(stored.name);
  return stored;
}

std::vector<TensorNeed> tensor_needs(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                                     const Checkpoint& checkpoint) {
  refuse_extras(model, checkpoint);
  std::vector<TensorNeed> needs;
  for (const policy::Unit& unit : units) {
    for (const policy::TensorSpec& spec : unit.tensors) {
      if (spec.first_row != 0) continue;  // another piece of the same tensor
      const std::int64_t rows = whole_rows(model, unit, spec);
      const std::string name = stored_name(model, checkpoint, spec);
      if (!is_vector(spec.form) && QuantisedMatrix::is_in(checkpoint, model.quantisation, name)) {
        const auto parts = QuantisedMatrix::needs(checkpoint, model.quantisation, name, rows, spec.cols);
        needs.insert(needs.end(), parts.begin(), parts.end());
      } else {
        needs.push_back({name, is_vector(spec.form) ? std::vector{spec.cols} : std::vector{rows, spec.cols}});
      }
    }
  }
  return needs;
}

}  // namespace weft::runtime
