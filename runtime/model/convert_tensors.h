// runtime/model/convert_tensors.h: the tensors of a copy of a checkpoint in plain numbers. Names and shapes are those
// of transformers, which reads such copies too.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/model/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/stored/stored_tensor.h"

namespace weft::runtime {

class AtomicFile;

/// Tensors of single experts that become one of all, expert by expert.
struct StackedExperts {
  policy::ExpertStack stack;
  std::int64_t rows = 0, cols = 0;  ///< those of a part; a list of numbers has one column
  std::vector<StoredTensor> parts;  ///< [experts][parts]
};

/// A tensor of the copy: `stacked`, or else `stored`.
struct CopiedTensor {
  StoredTensor stored;  ///< its name is that in the copy
  std::optional<StackedExperts> stacked = {};
  std::uint64_t first = 0;  ///< numbers of `stored.info` before those that are meant
  std::vector<std::int64_t> shape;
  DType from = DType::f32, type = DType::f32;
  std::uint64_t bytes = 0;
};

/// Lists the tensors in the order in which the units are read. A tensor in pieces, or in two units, is listed once.
/// Adds to `read` the number of checkpoint tensors that they need. Throws CheckpointError for one that is missing, and
/// what check_unused() throws.
std::vector<CopiedTensor> plan_tensors(const policy::ModelSpec& spec, const Checkpoint& checkpoint, DType type,
                                       std::size_t& read);

/// Writes them as a safetensors file. Throws IoError, DataError for a number that the type does not hold, and
/// Interrupted.
void write_tensors(const Checkpoint& checkpoint, const std::vector<CopiedTensor>& planned, AtomicFile& file,
                   const std::atomic<bool>& stop);

}  // namespace weft::runtime
