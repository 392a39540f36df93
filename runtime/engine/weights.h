// runtime/engine/weights.h: the layout of each unit's tensors in a block, and where the bytes come from.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/quantised.h"
#include "offload/buffer_store.h"
#include "policy/model.h"
#include "policy/weight_format.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/packed.h"
#include "runtime/checkpoint/stored_tensor.h"

namespace weft::runtime {

/// The tensors of one unit by what they do; empty where the model has none.
using UnitViews = std::array<ConstView, policy::kRoles>;

/// Room for a matrix of so many elements in 16 bits. In any order the matrices of a unit take the same room.
std::size_t take_unpacked(offload::Arena& space, std::int64_t elements);

/// `count` elements, each rounded to the nearest.
void convert_elements(DType from, const std::byte* in, DType to, std::byte* out, std::size_t count);

/// The weights of a model, unit by unit. A unit whose tensors the kernels can use as they are in the checkpoint is
/// ranges of its files, so that the checkpoint itself is the disk tier; any other unit is made: converted, or random.
class Weights {
 public:
  /// Checks all names, shapes and dtypes. `type`: what matrices must not exceed in precision; a narrower type in the
  /// file is kept, because widening it is exact. `format`: where it is quantised, that of the tensors that
  /// policy::quantises() names; of those that others have quantised to the same format, the levels are theirs. The
  /// checkpoint must outlive this. Throws DataError.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const Checkpoint& checkpoint,
          DType type, const std::optional<policy::WeightFormat>& format = {});
  /// Normal deviates that depend on nothing but the seed, the tensor and the element: matrices of standard deviation
  /// 1 / sqrt(columns), embeddings and biases 0.02, norm weights 1 +- 0.02.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, std::uint64_t seed, DType type,
          const std::optional<policy::WeightFormat>& format = {});

  /// As a packed file is to have them: none is ranges of the checkpoint.
  static Weights to_pack(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                         const Checkpoint& checkpoint, DType type, const policy::WeightFormat& format);
  /// As such a file has them, which must outlive this. Throws DataError.
  static Weights from_packed(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                             const Checkpoint& packed, DType type, const policy::WeightFormat& format);

  const std::vector<std::uint64_t>& unit_bytes() const { return bytes_; }
  /// [units] in 16 bits, of the quantised matrices, each by take_unpacked().
  std::vector<std::uint64_t> unpacked_bytes() const;
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
  /// unit_bytes()[unit] bytes. Throws IoError, DataError where a number cannot be quantised.
  void make(std::size_t unit, std::byte* to) const;

  /// The matrices of layers that stay in a float type although the format is a quantised one, sorted by name: whoever
  /// quantised the checkpoint has left them out.
  std::vector<std::string> left_plain() const;
  /// Whether any unit has to be made although there is a checkpoint, which takes a copy.
  bool converts() const;

 private:
  struct Placed {
    policy::TensorSpec spec;
    DType dtype = DType::f32;
    std::size_t offset = 0;  // in the block
    const TensorInfo* source = nullptr;
    std::uint64_t file_offset = 0;               // of the tensor's first row that the unit holds
    int group = 0;                               // of a quantised one
    std::optional<QuantisedMatrix> matrix = {};  // in place of a source
    bool plain = false;                          // not quantised, because the checkpoint says so
    QuantisedLayout quantised() const { return {dtype, group, spec.rows, spec.cols}; }
    std::uint64_t bytes() const {
      return is_quantised(dtype) ? static_cast<std::uint64_t>(quantised().bytes()) : bytes_of(dtype, spec.elements());
    }
  };
  struct Layout {
    std::vector<Placed> tensors;
    bool in_files = false;
  };
  const Placed& placed(std::size_t unit, policy::Role role) const;
  Weights() = default;
  void take(const policy::ModelSpec& model, const policy::Unit& unit, Placed& tensor) const;
  void lay_out(const std::vector<policy::Unit>& units, const std::optional<policy::WeightFormat>& format);
  void lay_out_packed(Layout& layout);
  void lay_out_in_files(Layout& layout);
  bool quantise_if(const policy::Unit& unit, Placed& tensor, const std::optional<policy::WeightFormat>& format) const;
  void convert(const Placed& tensor, std::byte* to) const;
  void randomize(const Placed& tensor, std::byte* to, DType dtype, std::int64_t first_number, std::int64_t count) const;
  void quantise(const Placed& tensor, std::byte* to) const;
  void repack(const Placed& tensor, std::byte* to) const;
  void dequantise(const Placed& tensor, std::byte* to) const;
  void read_floats(const Placed& tensor, std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const;

  const Checkpoint* checkpoint_ = nullptr;
  std::optional<PackedUnits> packed_;
  policy::Quantisation quantised_;  // of the checkpoint
  std::uint64_t seed_ = 0;
  DType type_ = DType::f32;  // what random numbers are rounded to before they are quantised
  std::vector<Layout> layouts_;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace weft::runtime
