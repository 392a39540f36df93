// runtime/stored/stored_tensor.h: finds the tensors of a model in a checkpoint.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/model/model.h"
#include "policy/model/weight_format.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {

/// The name of the tensor that holds it in this checkpoint; if none does, its name in transformers' own files.
std::string stored_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec);

/// A tensor in a checkpoint: `info` if its rows are stored as they are, else `matrix`.
struct StoredTensor {
  std::string name;
  const TensorInfo* info = nullptr;
  std::int64_t first_row = 0;  ///< rows of `info` before the first that is the tensor's, as in a tensor of all experts
  std::unique_ptr<const StoredMatrix> matrix;
};
/// Finds a tensor in a checkpoint that has all tensor_needs().
StoredTensor stored_tensor(const policy::ModelSpec& model, const policy::TensorSpec& spec,
                           const Checkpoint& checkpoint);
/// The tensors that the checkpoint must hold for this one.
std::vector<TensorNeed> needs_of(const policy::ModelSpec& model, const policy::TensorSpec& spec,
                                 const Checkpoint& checkpoint);
/// Those of the model, each once. Throws DataError if the checkpoint holds something that
/// changes results and that Weft cannot compute with.
std::vector<TensorNeed> tensor_needs(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                                     const Checkpoint& checkpoint);
/// Looks at the tensors that are not among the `needs`. Throws DataError if some belong to the model's layers and
/// config.json does not announce them: biases that are not zero, norms, layers, parts of LoRA. Returns a note for
/// people that names the others; empty if there are none.
std::string check_unused(const std::vector<TensorNeed>& needs, const policy::ModelSpec& model,
                         const Checkpoint& checkpoint);

/// Corrects what config.json leaves open by what the files hold, as transformers 5 and vLLM do, and returns a note for
/// people on each correction. A quantization_config over plain weights is dropped. A config without a dtype gets that
/// of the embedding. A tied head is untied if the files hold a head with other numbers; both tensors are read if their
/// shapes are equal. Throws IoError, or DataError for weights whose quantization_config cannot be read.
std::vector<std::string> complete_from_files(policy::ModelSpec& model, const Checkpoint& checkpoint);

/// Lets the head keep the levels that the checkpoint has for it, as the matrices of layers do, if `format` is the
/// checkpoint's own. A head that is tied to the embedding becomes a matrix of its own: rows of the embedding are
/// gathered as floats.
void keep_head_levels(policy::ModelSpec& model, const Checkpoint& checkpoint,
                      const std::optional<policy::WeightFormat>& format);

}  // namespace weft::runtime
