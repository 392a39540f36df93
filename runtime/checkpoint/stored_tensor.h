// runtime/checkpoint/stored_tensor.h: where a checkpoint has the tensors of a model.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/quantised_matrix.h"

namespace weft::runtime {

/// The tensor's name in this checkpoint; where none fits, that of transformers' own files.
std::string stored_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec);

/// Where a checkpoint has a tensor: as it is, or quantised by others.
struct StoredTensor {
  std::string name;
  const TensorInfo* info = nullptr;
  std::optional<QuantisedMatrix> matrix;
};
/// Of a checkpoint that has all tensor_needs().
StoredTensor stored_tensor(const policy::ModelSpec& model, const policy::Unit& unit, const policy::TensorSpec& spec,
                           const Checkpoint& checkpoint);
/// What a checkpoint of the model must hold. Throws DataError for what nobody can compute with.
std::vector<TensorNeed> tensor_needs(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                                     const Checkpoint& checkpoint);

}  // namespace weft::runtime
