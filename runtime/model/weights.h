// runtime/model/weights.h: the layout of each unit's tensors in a buffer, and the source of their bytes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/quantised.h"
#include "offload/buffer_store.h"
#include "policy/model/model.h"
#include "policy/model/weight_format.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/packed.h"
#include "runtime/model/deviates.h"
#include "runtime/stored/stored_tensor.h"

namespace weft::runtime {

/// The tensors of one unit, or of one expert of it, by role. A view is empty if the model has no such tensor.
using UnitViews = std::array<ConstView, policy::kRoles>;

/// Takes room for a matrix of `elements` 16-bit numbers. The matrices of a unit take the same room in any order.
std::size_t take_unpacked(offload::Arena& space, std::int64_t elements);

/// The bytes [begin, end) of a buffer.
struct ByteRange {
  std::size_t begin = 0, end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// A place in a stored tensor, for messages: the tensor's name and columns, and the index of an element.
struct ElementPlace {
  std::string_view tensor;
  std::int64_t cols, first;
};
/// Converts `count` elements and rounds each to the nearest. `place` is that of the first. Throws DataError, which
/// names tensor, row and number, if a finite number is too large for `to`.
void convert_elements(DType from, const std::byte* in, DType to, std::byte* out, std::size_t count,
                      const ElementPlace& place);

/// The weights of a model, unit by unit. If the kernels can use a unit's tensors as they are in the checkpoint, the
/// unit consists of ranges of its files, so that the checkpoint itself is the disk tier. Any other unit is made:
/// converted, or random.
class Weights {
 public:
  /// Uses the weights of a checkpoint, which must outlive this, and checks all names, shapes and dtypes. No matrix gets
  /// more precision than `type`; a narrower type in the file is kept, because widening it is exact. A quantised
  /// `format` applies to the tensors that policy::quantises() names; those that others have quantised to the same
  /// format keep their levels. Throws DataError.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const Checkpoint& checkpoint,
          DType type, const std::optional<policy::WeightFormat>& format = {});
  /// Makes random weights: normal deviates that depend on nothing but the seed, the tensor and the element. Matrices
  /// have standard deviation 1 / sqrt(columns), embeddings and biases 0.02, and norm weights are 1 +- 0.02. Quantised
  /// matrices are drawn as levels (RandomLevels), so they are others than the same model has in 16 bits.
  Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, std::uint64_t seed, DType type,
          const std::optional<policy::WeightFormat>& format = {});

  /// The weights for a packed file: every unit is made, and none consists of ranges of the checkpoint.
  static Weights to_pack(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                         const Checkpoint& checkpoint, DType type, const policy::WeightFormat& format);
  /// The weights of a packed file, which must outlive this. Throws DataError.
  static Weights from_packed(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                             const Checkpoint& packed, DType type, const policy::WeightFormat& format);

  const std::vector<std::uint64_t>& unit_bytes() const { return bytes_; }
  /// [units] The bytes that a unit's quantised matrices take in 16 bits, each by take_unpacked().
  std::vector<std::uint64_t> unpacked_bytes() const;
  UnitViews views(std::size_t unit, const std::byte* base, int expert = 0) const;
  /// The bytes of a unit that the tensors of some of its experts take, in order. `wanted` has an entry for each expert.
  std::vector<ByteRange> ranges_of(std::size_t unit, const std::vector<bool>& wanted) const;
  std::size_t tensor_offset(std::size_t unit, policy::Role role) const { return placed(unit, role).offset; }
  DType tensor_dtype(std::size_t unit, policy::Role role) const { return placed(unit, role).dtype; }
  /// The numbers of a tensor that is neither a matrix nor cut: a norm's or a vector's. Throws IoError or DataError.
  std::vector<float> numbers(std::size_t unit, policy::Role role) const;
  /// True if parts() are the unit, false if make() writes it.
  bool in_files(std::size_t unit) const { return layouts_[unit].in_files; }
  /// The number of bytes by which the whole buffer must begin before its place, so that tensors begin at words of 16
  /// bytes, as products on a GPU need. (A safetensors file's data may begin in the middle of a word.) The first shift()
  /// bytes of the buffer hold nothing.
  std::size_t shift(std::size_t unit) const;
  /// The ranges of files that make up a unit. `files` [checkpoint files] are the disk store's ids of the checkpoint's
  /// files.
  std::vector<offload::FilePart> parts(std::size_t unit, std::span<const offload::FileId> files) const;
  /// Writes the unit_bytes()[unit] bytes of a unit on `threads` threads, or on all cores for 0: pieces of its tensors
  /// are read or drawn, converted and quantised side by side, so that one's reads overlap another's arithmetic. Throws
  /// IoError, DataError if a number cannot be converted or quantised, or Interrupted within a few pieces after `stop`
  /// was set.
  void make(std::size_t unit, std::byte* to, const std::atomic<bool>& stop = kNeverStopped, int threads = 0) const;
  /// The number of weights of a unit that make() quantises.
  std::int64_t quantised_elements(std::size_t unit) const;

  /// The names, sorted, of the layers' matrices that stay in a float type although the format is quantised, because
  /// whoever quantised the checkpoint has left them out.
  std::vector<std::string> left_plain() const;
  /// The names, sorted, of the layers' matrices that are int8 although the format is int4, because they are so in the
  /// checkpoint.
  std::vector<std::string> left_int8() const;
  /// The layers' matrices in int4, and what their levels stand for.
  std::map<std::string, LevelTable> level_tables() const;
  /// The layers' matrices that are quantised, and the sizes of their groups.
  std::map<std::string, int> group_sizes() const;
  /// Lines for people on the matrices that the checkpoint holds as levels and that do not stay exactly as they are.
  std::vector<std::string> changed_levels() const;
  /// Whether there is a checkpoint but some unit must be made, which takes a copy.
  bool converts() const;

 private:
  struct Placed {
    policy::TensorSpec spec;
    DType dtype = DType::f32;
    std::size_t offset = 0;  // in the buffer
    const TensorInfo* source = nullptr;
    std::uint64_t file_offset = 0;                    // place in the file of the first row that the unit holds
    int group = 0;                                    // size of a group, if it is quantised
    LevelTable table = LevelTable::even;              // what its levels stand for
    std::unique_ptr<const StoredMatrix> matrix = {};  // instead of a source
    bool plain = false;                               // the checkpoint leaves it unquantised
    bool own_int8 = false;                            // the checkpoint has it in int8, and others in int4
    std::shared_ptr<const Deviates> deviates = {};
    std::shared_ptr<const RandomLevels> levels = {};  // of a random matrix, if it is quantised
    QuantisedLayout quantised() const { return {dtype, group, spec.rows, spec.cols, table}; }
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
  void take(const policy::ModelSpec& model, Placed& tensor) const;
  void lay_out(const std::vector<policy::Unit>& units, const std::optional<policy::WeightFormat>& format);
  void lay_out_packed(Layout& layout);
  void lay_out_in_files(Layout& layout);
  bool quantise_if(const policy::Unit& unit, Placed& tensor, const std::optional<policy::WeightFormat>& format) const;
  /// The same where the checkpoint has this format, whose tensors may be plain or of a type or group of their own.
  bool quantise_as_stored(Placed& tensor, const policy::WeightFormat& format) const;
  struct Piece;
  struct Scratch;
  DType given_type(const Placed& tensor) const;
  static ElementPlace place_of(const Placed& tensor, std::int64_t row);
  bool keeps_levels(const Placed& tensor) const;
  static bool widens_levels(const Placed& tensor);
  void make_piece(const Piece& piece, std::byte* to, Scratch& scratch) const;
  void draw_levels(const Piece& piece, std::byte* to) const;
  void give(const Placed& tensor, std::int64_t first_row, std::int64_t rows, std::byte* to) const;
  void quantise(const Placed& tensor, std::int64_t first_row, const ConstView& numbers, std::byte* to) const;
  void make_in_parts(const Placed& tensor, std::byte* to, const std::atomic<bool>& stop, int threads) const;
  void make_of_matrix(const Piece& piece, std::byte* to, Scratch& scratch) const;
  void put_numbers(const Placed& tensor, std::int64_t first_row, const ConstView& numbers, std::byte* to) const;
  void put_levels(const Placed& tensor, std::int64_t first, std::int64_t row, std::int64_t rows,
                  const StoredLevels& levels, std::byte* to) const;
  std::vector<std::string> names_with(bool Placed::*mark) const;

  const Checkpoint* checkpoint_ = nullptr;
  std::optional<PackedUnits> packed_;
  const Checkpoint* packed_file_ = nullptr;  // of packed_
  policy::Quantisation quantised_;           // the checkpoint's own
  std::uint64_t seed_ = 0;
  DType type_ = DType::f32;  // of what is not quantised
  std::vector<Layout> layouts_;
  std::vector<std::uint64_t> bytes_;
};

}  // namespace weft::runtime
