// runtime/stored/expert_stack.h: tensors of one expert that a checkpoint holds in a tensor of all experts of a layer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/model/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {

/// The tensor that the checkpoint has in the place of an expert's own: the `stack` of `spec`, or one that is named as
/// `spec` is, with '*' in the place of the expert. Its name has one of the model's prefixes. Empty if there is none.
std::optional<policy::ExpertStack> find_stack(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                                              const policy::TensorSpec& spec);

/// The tensors that the checkpoint must hold for a stack, for Checkpoint::demand().
std::vector<TensorNeed> stack_needs(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                                    const policy::ExpertStack& stack, const policy::TensorSpec& spec);

/// A part of a stack: rows of a tensor whose rows have as many columns as the part, or a matrix of its own.
struct StackPart {
  const TensorInfo* info = nullptr;
  std::int64_t first_row = 0;  ///< counted in `info`
  std::unique_ptr<const StoredMatrix> matrix;
};
/// Finds the part `spec` of a stack whose stack_needs() the checkpoint holds. `name` is what the part is called.
StackPart stack_part(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::ExpertStack& stack,
                     const policy::TensorSpec& spec, std::string name);

}  // namespace weft::runtime
