#include "runtime/model/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "kernels/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"

namespace weft::runtime {
namespace {

using policy::Form;

constexpr std::uint64_t kPart = 64;                // alignment of packed tensors
constexpr std::size_t kUnpacked = 256;             // alignment of unpacked tensors
constexpr std::uint64_t kWord = 16;                // bytes of a word in which a GPU reads memory best
constexpr std::int64_t kPieceNumbers = 128 << 10;  // numbers that one thread makes at a time: its caches hold them
constexpr std::int64_t kRepackBytes = 8 << 20;     // bytes of levels made by others that are repacked at a time
constexpr std::int64_t kTileRows = QuantisedLayout::kTileRows;

double deviation(const policy::TensorSpec& spec) {
  return spec.form == Form::matrix ? 1 / std::sqrt(double(spec.cols)) : 0.02;
}

}  // namespace

std::size_t take_unpacked(offload::Arena& space, std::int64_t elements) {
  return space.take(offload::round_up(bytes_of(DType::f16, elements), kUnpacked), kUnpacked);
}

/// Some rows of a tensor.
struct Weights::Piece {
  const Placed* tensor;
  std::int64_t first_row, rows;
};

/// A thread's memory for one piece.
struct Weights::Scratch {
  std::unique_ptr<std::byte[]> data;
  std::size_t bytes = 0;
  std::byte* at_least(std::size_t wanted) {
    if (bytes < wanted) data = std::make_unique_for_overwrite<std::byte[]>(wanted), bytes = wanted;
    return data.get();
  }
};

Weights::Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const Checkpoint& checkpoint,
                 DType type, const std::optional<policy::WeightFormat>& format)
    : checkpoint_(&checkpoint), quantised_(model.quantisation), type_(type) {
  checkpoint.demand(tensor_needs(model, units, checkpoint));
  for (const policy::Unit& unit : units) {
    Layout layout{.tensors = {}, .in_files = true};
    for (const policy::TensorSpec& spec : unit.tensors) {
      Placed& tensor = layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type});
      take(model, tensor);
      if (tensor.source) tensor.dtype = weight_dtype(*tensor.source);
      const bool narrow = tensor.dtype == type || type == DType::f32;
      const bool whole = !is_quantised(tensor.dtype) && tensor.file_offset % size_of(tensor.dtype) == 0;
      if (quantise_if(unit, tensor, format) || tensor.matrix || !narrow || !whole) layout.in_files = false;
    }
    if (layout.in_files) {
      lay_out_in_files(layout);
    } else {
      for (Placed& tensor : layout.tensors)
        if (!is_quantised(tensor.dtype)) tensor.dtype = type;
      lay_out_packed(layout);
    }
    layouts_.push_back(std::move(layout));
  }
}

Weights::Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, std::uint64_t seed, DType type,
                 const std::optional<policy::WeightFormat>& format)
    : quantised_(model.quantisation), seed_(seed), type_(type) {
  lay_out(units, format);
  std::map<std::tuple<float, float, DType>, std::shared_ptr<const Deviates>> tables;
  for (Layout& layout : layouts_)
    for (Placed& tensor : layout.tensors) {
      const auto scale = static_cast<float>(deviation(tensor.spec));
      const float mean = tensor.spec.form == Form::norm && !model.norm_plus_one ? 1.0f : 0.0f;
      auto& table = tables[{scale, mean, given_type(tensor)}];
      if (!table) table = std::make_shared<Deviates>(scale, mean, given_type(tensor));
      tensor.deviates = table;
    }
}

Weights Weights::from_packed(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                             const Checkpoint& packed, DType type, const policy::WeightFormat& format) {
  Weights weights;
  weights.type_ = type;
  weights.quantised_ = model.quantisation;
  weights.lay_out(units, format);
  for (Layout& layout : weights.layouts_) layout.in_files = true;
  weights.packed_.emplace(packed, UnitSizes(weights.bytes_.begin(), weights.bytes_.end()));
  return weights;
}

Weights Weights::to_pack(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                         const Checkpoint& checkpoint, DType type, const policy::WeightFormat& format) {
  checkpoint.demand(tensor_needs(model, units, checkpoint));
  Weights weights;
  weights.checkpoint_ = &checkpoint;
  weights.type_ = type;
  weights.quantised_ = model.quantisation;
  for (const policy::Unit& unit : units) {
    Layout layout;
    for (const policy::TensorSpec& spec : unit.tensors) {
      Placed& tensor = layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type});
      weights.take(model, tensor);
      weights.quantise_if(unit, tensor, format);
    }
    weights.lay_out_packed(layout);
    weights.layouts_.push_back(std::move(layout));
  }
  return weights;
}

/// Finds the tensor in the checkpoint.
void Weights::take(const policy::ModelSpec& model, Placed& tensor) const {
  StoredTensor stored = stored_tensor(model, tensor.spec, *checkpoint_);
  tensor.matrix = std::move(stored.matrix);
  tensor.source = stored.info;
  if (tensor.source)
    tensor.file_offset =
        tensor.source->offset + bytes_of(weight_dtype(*tensor.source), tensor.spec.first_row * tensor.spec.cols);
}

/// Lays out the tensors of every unit in their order, in a buffer for the unit alone.
void Weights::lay_out(const std::vector<policy::Unit>& units, const std::optional<policy::WeightFormat>& format) {
  for (const policy::Unit& unit : units) {
    Layout layout;
    for (const policy::TensorSpec& spec : unit.tensors) {
      layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type_});
      quantise_if(unit, layout.tensors.back(), format);
    }
    lay_out_packed(layout);
    layouts_.push_back(std::move(layout));
  }
}

namespace {

/// The format's own type, except that int4 becomes int8 for the matrix that makes the values: it is a twelfth of a
/// layer or less, and in 4 bits it causes a third of int4's loss (docs/quality.md).
DType quantised_type(const policy::WeightFormat& format, policy::Role role) {
  return format.dtype == DType::i4 && role == policy::Role::v_weight ? DType::i8 : format.dtype;
}

}  // namespace

bool Weights::quantise_if(const policy::Unit& unit, Placed& tensor,
                          const std::optional<policy::WeightFormat>& format) const {
  if (!format || !format->quantised() || !policy::quantises(unit, tensor.spec)) return false;
  const bool own = format->dtype == quantised_.dtype && format->group == quantised_.group;
  if (own) {
    const auto& plain = quantised_.plain;
    tensor.plain =
        std::binary_search(plain.begin(), plain.end(), tensor.spec.name) || (quantised_.foreign() && tensor.source);
    if (tensor.plain) return false;
  }
  tensor.dtype = own && quantised_.uniform ? format->dtype : quantised_type(*format, tensor.spec.role);
  tensor.group = format->group;
  return true;
}

void Weights::lay_out_packed(Layout& layout) {
  std::size_t end = 0;
  for (Placed& tensor : layout.tensors) {
    tensor.offset = offload::round_up(end, kPart);
    end = tensor.offset + tensor.bytes();
  }
  bytes_.push_back(offload::round_up(end, offload::kPage));
}

/// Tensors that follow each other in a file stay together. Every such run begins as far into a page as it does in the
/// file, so that O_DIRECT reads land in place. If the data of another file begin elsewhere in a word, its reads do not
/// land in place, because all runs of a unit must need the same shift.
void Weights::lay_out_in_files(Layout& layout) {
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.source->file, a.file_offset) < std::pair(b.source->file, b.file_offset);
  });
  std::size_t end = 0;
  const Placed* before = nullptr;
  for (Placed& tensor : layout.tensors) {
    const bool follows = before && before->source->file == tensor.source->file &&
                         before->file_offset + before->bytes() == tensor.file_offset;
    if (!follows) end = offload::round_up(end, offload::kPage) + tensor.file_offset % offload::kPage;
    if (before && !follows) end += (layout.tensors.front().offset - end) % kWord;
    tensor.offset = end;
    end += tensor.bytes();
    before = &tensor;
  }
  bytes_.push_back(offload::round_up(end, offload::kPage));
}

const Weights::Placed& Weights::placed(std::size_t unit, policy::Role role) const {
  const auto& tensors = layouts_[unit].tensors;
  return *std::find_if(tensors.begin(), tensors.end(), [&](const Placed& tensor) { return tensor.spec.role == role; });
}

std::size_t Weights::shift(std::size_t unit) const {
  const Layout& layout = layouts_[unit];
  return layout.in_files ? layout.tensors.front().offset % kWord : 0;
}

std::vector<std::uint64_t> Weights::unpacked_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const Layout& layout : layouts_) {
    offload::Arena counting;
    for (const Placed& tensor : layout.tensors)
      if (is_quantised(tensor.dtype)) take_unpacked(counting, tensor.spec.elements());
    bytes.push_back(counting.used());
  }
  return bytes;
}

UnitViews Weights::views(std::size_t unit, const std::byte* base) const {
  UnitViews views;
  for (const Placed& tensor : layouts_[unit].tensors) {
    ConstView& view = views[static_cast<std::size_t>(tensor.spec.role)];
    view = ConstView(base + tensor.offset, tensor.dtype, tensor.spec.rows, tensor.spec.cols);
    view.group = tensor.group;
  }
  return views;
}

std::vector<offload::FilePart> Weights::parts(std::size_t unit, std::span<const offload::FileId> files) const {
  if (packed_) return {packed_->part(unit, files)};
  std::vector<offload::FilePart> parts;
  for (const Placed& tensor : layouts_[unit].tensors) {
    const offload::Extent extent{files[tensor.source->file], tensor.file_offset, tensor.bytes()};
    if (!parts.empty()) {
      offload::FilePart& last = parts.back();
      if (last.extent.file == extent.file && last.extent.offset + last.extent.bytes == extent.offset &&
          last.offset + last.extent.bytes == tensor.offset) {
        last.extent.bytes += extent.bytes;
        continue;
      }
    }
    parts.push_back({extent, tensor.offset});
  }
  return parts;
}

void Weights::make(std::size_t unit, std::byte* to, const std::atomic<bool>& stop, int threads) const {
  if (threads == 0) threads = loop_threads();
  std::vector<Piece> pieces;
  std::size_t end = 0;
  const auto fill_gap = [&](std::size_t until) { std::memset(to + end, 0, until - end); };
  for (const Placed& tensor : layouts_[unit].tensors) {
    fill_gap(tensor.offset);
    end = tensor.offset + tensor.bytes();
    if (tensor.matrix) {
      make_of_levels(tensor, to, stop, threads);
      continue;
    }
    const std::int64_t step = std::max(kTileRows, kPieceNumbers / tensor.spec.cols / kTileRows * kTileRows);
    for (std::int64_t row = 0; row < tensor.spec.rows; row += step)
      pieces.push_back({&tensor, row, std::min(step, tensor.spec.rows - row)});
  }
  fill_gap(bytes_[unit]);
  std::vector<Scratch> scratch(static_cast<std::size_t>(threads));
  for_each_of(static_cast<std::int64_t>(pieces.size()), threads, [&](std::int64_t i, int thread) {
    if (stop) throw Interrupted{};
    make_piece(pieces[static_cast<std::size_t>(i)], to, scratch[static_cast<std::size_t>(thread)]);
  });
}

std::int64_t Weights::quantised_elements(std::size_t unit) const {
  std::int64_t count = 0;
  for (const Placed& tensor : layouts_[unit].tensors)
    if (is_quantised(tensor.dtype) && !keeps_levels(tensor)) count += tensor.spec.elements();
  return count;
}

std::vector<std::string> Weights::left_plain() const {
  std::vector<std::string> names;
  for (const Layout& layout : layouts_)
    for (const Placed& tensor : layout.tensors)
      if (tensor.plain) names.push_back(tensor.spec.name);
  std::sort(names.begin(), names.end());
  return names;
}

bool Weights::converts() const {
  return checkpoint_ && std::any_of(layouts_.begin(), layouts_.end(), [](const Layout& l) { return !l.in_files; });
}

/// The type of the numbers that a tensor is made of: the checkpoint's, or that of random numbers.
DType Weights::given_type(const Placed& tensor) const {
  if (tensor.source) return weight_dtype(*tensor.source);
  return is_quantised(tensor.dtype) ? type_ : tensor.dtype;
}

/// Whether the tensor's levels are those of the checkpoint.
bool Weights::keeps_levels(const Placed& tensor) const {
  return tensor.matrix && tensor.dtype == quantised_.dtype && tensor.group == quantised_.group;
}

/// Where a row of the unit's tensor begins in the checkpoint's.
ElementPlace Weights::place_of(const Placed& tensor, std::int64_t row) {
  const std::string& name = tensor.source   ? tensor.source->name
                            : tensor.matrix ? tensor.matrix->name()
                                            : tensor.spec.name;
  return {name, tensor.spec.cols, (tensor.spec.first_row + row) * tensor.spec.cols};
}

void Weights::make_piece(const Piece& piece, std::byte* to, Scratch& scratch) const {
  const Placed& tensor = *piece.tensor;
  const DType given = given_type(tensor);
  const std::int64_t cols = tensor.spec.cols, count = piece.rows * cols;
  if (given == tensor.dtype)
    return give(tensor, piece.first_row, piece.rows, to + tensor.offset + bytes_of(given, piece.first_row * cols));
  std::byte* const numbers = scratch.at_least(bytes_of(given, count));
  give(tensor, piece.first_row, piece.rows, numbers);
  if (is_quantised(tensor.dtype)) {
    quantise(tensor, piece.first_row, ConstView(numbers, given, piece.rows, cols), to);
  } else {
    convert_elements(given, numbers, tensor.dtype, to + tensor.offset + bytes_of(tensor.dtype, piece.first_row * cols),
                     static_cast<std::size_t>(count), place_of(tensor, piece.first_row));
  }
}

/// Reads or draws rows, in given_type().
void Weights::give(const Placed& tensor, std::int64_t first_row, std::int64_t rows, std::byte* to) const {
  const std::int64_t first = first_row * tensor.spec.cols, count = rows * tensor.spec.cols;
  const DType given = given_type(tensor);
  if (tensor.source)
    checkpoint_->read_range(tensor.source->file, tensor.file_offset + bytes_of(given, first),
                            {to, bytes_of(given, count)});
  else
    tensor.deviates->draw(mix(seed_ ^ hash(tensor.spec.name)),
                          static_cast<std::uint64_t>(tensor.spec.first_row * tensor.spec.cols + first), count, to);
}

/// Quantises rows from `first_row` on, which begins a tile.
void Weights::quantise(const Placed& tensor, std::int64_t first_row, const ConstView& numbers, std::byte* to) const {
  const QuantisedLayout layout = tensor.quantised();
  for (std::int64_t row = 0; row < numbers.rows; row += kTileRows) {
    const std::int64_t wrong =
        kernels::quantise_tile(layout, numbers.slice(row, std::min(kTileRows, numbers.rows - row)),
                               to + tensor.offset + (first_row + row) / kTileRows * layout.tile_bytes());
    if (wrong >= 0)
      throw DataError("tensor '" + tensor.spec.name + "', row " + std::to_string(first_row + row + wrong) +
                      ": cannot be " + name_of(tensor.dtype) +
                      ": a number is not finite, or too large for a scale in float16; give --weight-dtype bfloat16");
  }
}

/// Makes a tensor of a matrix that others have quantised. Their layouts are read in large parts.
void Weights::make_of_levels(const Placed& tensor, std::byte* to, const std::atomic<bool>& stop, int threads) const {
  const std::int64_t cols = tensor.spec.cols;
  const bool keeps = keeps_levels(tensor);
  const std::int64_t row_bytes = keeps ? cols / 2 : static_cast<std::int64_t>(bytes_of(DType::f32, cols));
  const std::int64_t step = std::max(kTileRows, kRepackBytes / row_bytes / kTileRows * kTileRows);
  tensor.matrix->check();
  QuantisedRows levels;
  std::vector<float> numbers;
  for (std::int64_t first = 0; first < tensor.spec.rows; first += step) {
    if (stop) throw Interrupted{};
    const std::int64_t rows = std::min(step, tensor.spec.rows - first);
    tensor.matrix->read(tensor.spec.first_row + first, rows, levels);
    if (keeps) {
      repack(tensor, first, levels, to, threads);
      continue;
    }
    tensor.matrix->dequantise(levels, numbers);
    const ConstView all(numbers.data(), DType::f32, rows, cols);
    for_each_of((rows + kTileRows - 1) / kTileRows, threads, [&](std::int64_t tile, int) {
      const std::int64_t row = tile * kTileRows;
      const ConstView some = all.slice(row, std::min(kTileRows, rows - row));
      if (is_quantised(tensor.dtype)) quantise(tensor, first + row, some, to);
      else
        convert_elements(DType::f32, some.as<std::byte>(), tensor.dtype,
                         to + tensor.offset + bytes_of(tensor.dtype, (first + row) * cols),
                         static_cast<std::size_t>(some.rows * cols), place_of(tensor, first + row));
    });
  }
}

/// Writes the levels of others in Weft's layout. They stay the same, with scales and minima in float16.
void Weights::repack(const Placed& tensor, std::int64_t first_row, const QuantisedRows& levels, std::byte* to,
                     int threads) const {
  const QuantisedLayout layout = tensor.quantised();
  const std::int64_t groups = layout.groups(), rows = static_cast<std::int64_t>(levels.scales.size()) / groups;
  for_each_of((rows + kTileRows - 1) / kTileRows, threads, [&](std::int64_t tile, int) {
    const std::int64_t row = tile * kTileRows, some = std::min(kTileRows, rows - row);
    std::vector<GroupScale> scales;
    for (auto i = static_cast<std::size_t>(row * groups); i < static_cast<std::size_t>((row + some) * groups); ++i) {
      const auto scale = kernels::scale_with_zero(levels.scales[i], levels.zeros[i]);
      if (!scale)
        throw DataError("tensor '" + tensor.matrix->name() + "', row " +
                        std::to_string(first_row + static_cast<std::int64_t>(i) / groups) +
                        ": its scale is too large for float16; give --weight-dtype bfloat16");
      scales.push_back(*scale);
    }
    kernels::pack_tile(layout, {.words = levels.words.data() + row * (layout.cols / 8), .scales = scales.data()}, some,
                       to + tensor.offset + (first_row + row) / kTileRows * layout.tile_bytes());
  });
}

}  // namespace weft::runtime
