// runtime/engine/weights.h: the layout of each unit's tensors in a block, and where the bytes come from.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "offload/buffer_store.h"
#include "policy/model.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// The tensors of one unit by what they do; empty where the model has none.
using UnitViews = std::array<ConstView, policy::kRoles>;

/// The tensor's name in this checkpoint; where none fits, that of transformers' own files.
std::string stored_name(const policy::ModelSpec& model, const Checkpoint& checkpoint, const policy::TensorSpec& spec);
/// What a checkpoint of the model must hold.
std::vector<TensorNeed> tensor_needs(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                                     const Checkpoint& checkpoint);
/// `count` elements, each rounded to the nearest.
void convert_elements(DType from, const std::byte* in, DType to, std::byte* out, std::size_t count);

/// The weights of a model, unit by unit. A unit whose tensors the kernels can use as they are in the checkpoint is
/// ranges of its files, so that the checkpoint itself is the disk tier; any other unit is made: converted, or random.
class Weights {
 public:
  /// Checks all names, shapes and dtypes. `type`: what matrices must not exceed in precision; a narrower type in the
  /// file is kept, because widening it is exact. The checkpoint must outlive this. Throws DataError.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const Checkpoint& checkpoint,
          DType type);
  /// Normal deviates that depend on nothing but the seed, the tensor and the element: matrices of standard deviation
  /// 1 / sqrt(columns), embeddings and biases 0.02, norm weights 1 +- 0.02.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, std::uint64_t seed, DType type);

  const std::vector<std::uint64_t>& unit_bytes() const { return bytes_; }
  UnitViews views(std::size_t unit, const std::byte* base) const;
  std::size_t tensor_offset(std::size_t unit, policy::Role role) const { return placed(unit, role).offset; }
  DType tensor_dtype(std::size_t unit, policy::Role role) const { return placed(unit, role).dtype; }
  /// True: parts() are the unit. False: make() writes it.
  bool in_files(std::size_t unit) const { return layouts_[unit].in_files; }
  /// How far before its place in the block everything must lie so that tensors begin at words of 16 bytes, as a GPU's
  /// products want them: a safetensors file's data may begin in the middle of one. Nothing lies before it in the block.
  std::size_t shift(std::size_t unit) const;
  /// `files` [checkpoint files]: as the disk store knows them.
  std::vector<offload::FilePart> parts(std::size_t unit, std::span<const offload::FileId> files) const;
  void make(std::size_t unit, std::byte* to) const;  ///< unit_bytes()[unit] bytes

  /// Whether any unit has to be made although there is a checkpoint, which takes a copy.
  bool converts() const;

 private:
  struct Placed {
    policy::TensorSpec spec;
    DType dtype = DType::f32;
    std::size_t offset = 0;  // in the block
    const TensorInfo* source = nullptr;
    std::uint64_t file_offset = 0;  // of the tensor's first row that the unit holds
    std::uint64_t bytes() const { return bytes_of(dtype, spec.elements()); }
  };
  struct Layout {
    std::vector<Placed> tensors;
    bool in_files = false;
  };
  const Placed& placed(std::size_t unit, policy::Role role) const;
  void lay_out_packed(Layout& layout);
  void lay_out_in_files(Layout& layout);
  void convert(const Placed& tensor, std::byte* to) const;
  void randomize(const Placed& tensor, std::byte* to) const;

  const Checkpoint* checkpoint_ = nullptr;
  std::uint64_t seed_ = 0;
  std::vector<Layout> layouts_;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace weft::runtime
