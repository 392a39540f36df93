// runtime/model/weights_made.cc: makes the bytes of units: numbers are read or drawn, converted and quantised piece by
// piece, or levels of others laid out.
#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/parallel.h"
#include "runtime/model/weights.h"

namespace weft::runtime {
namespace {

constexpr std::int64_t kPieceNumbers = 128 << 10;  // numbers that one thread makes at a time: its caches hold them
constexpr std::int64_t kPartBytes = 8 << 20;       // bytes of rows that are read at a time if they are spread
constexpr std::int64_t kTileRows = QuantisedLayout::kTileRows;

}  // namespace

/// Some rows of a tensor.
struct Weights::Piece {
  const Placed* tensor;
  std::int64_t first_row, rows;
};

/// A thread's memory for one piece.
struct Weights::Scratch {
  std::unique_ptr<std::byte[]> data;
  std::size_t bytes = 0;
  StoredLevels levels;         // of a StoredMatrix
  std::vector<float> numbers;  // the same
  std::byte* at_least(std::size_t wanted) {
    if (bytes < wanted) data = std::make_unique_for_overwrite<std::byte[]>(wanted), bytes = wanted;
    return data.get();
  }
};

void Weights::make(std::size_t unit, std::byte* to, const std::atomic<bool>& stop, int threads) const {
  if (threads == 0) threads = loop_threads();
  std::vector<Piece> pieces;
  std::size_t end = 0;
  const auto fill_gap = [&](std::size_t until) { std::memset(to + end, 0, until - end); };
  for (const Placed& tensor : layouts_[unit].tensors) {
    fill_gap(tensor.offset);
    end = tensor.offset + tensor.bytes();
    if (tensor.matrix) tensor.matrix->check();
    if (tensor.matrix && !tensor.matrix->is_by_rows()) {
      make_in_parts(tensor, to, stop, threads);
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

void Weights::make_piece(const Piece& piece, std::byte* to, Scratch& scratch) const {
  const Placed& tensor = *piece.tensor;
  if (tensor.matrix) return make_of_matrix(piece, to, scratch);
  if (tensor.levels) return draw_levels(piece, to);
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

void Weights::draw_levels(const Piece& piece, std::byte* to) const {
  const Placed& tensor = *piece.tensor;
  const QuantisedLayout layout = tensor.quantised();
  // Matrices that are parts of one tensor begin at different rows.
  const std::uint64_t key =
      mix(mix(seed_ ^ hash(tensor.spec.name)) + static_cast<std::uint64_t>(tensor.spec.first_row));
  for (std::int64_t row = piece.first_row; row < piece.first_row + piece.rows; row += kTileRows)
    tensor.levels->draw(layout, key, row / kTileRows, to + tensor.offset + row / kTileRows * layout.tile_bytes());
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

std::vector<float> Weights::numbers(std::size_t unit, policy::Role role) const {
  const Placed& tensor = placed(unit, role);
  const std::int64_t count = tensor.spec.elements();
  const auto convert = [&](DType from, const std::vector<std::byte>& in, DType to, std::byte* out) {
    convert_elements(from, in.data(), to, out, static_cast<std::size_t>(count), place_of(tensor, 0));
  };
  std::vector<std::byte> stored(bytes_of(tensor.dtype, count));
  if (packed_) {
    const std::array<offload::FileId, 1> file{};  // a packed file is one file
    packed_file_->read_range(0, packed_->part(unit, file).extent.offset + tensor.offset, stored);
  } else if (const DType given = given_type(tensor); given == tensor.dtype) {
    give(tensor, 0, tensor.spec.rows, stored.data());
  } else {
    std::vector<std::byte> wide(bytes_of(given, count));
    give(tensor, 0, tensor.spec.rows, wide.data());
    convert(given, wide, tensor.dtype, stored.data());
  }
  std::vector<float> numbers(static_cast<std::size_t>(count));
  convert(tensor.dtype, stored, DType::f32, reinterpret_cast<std::byte*>(numbers.data()));
  return numbers;
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

/// Makes some rows of a tensor that the checkpoint stores in a form of its own.
void Weights::make_of_matrix(const Piece& piece, std::byte* to, Scratch& scratch) const {
  const Placed& tensor = *piece.tensor;
  const std::int64_t first = tensor.spec.first_row + piece.first_row;
  if (keeps_levels(tensor)) {
    tensor.matrix->read_levels(first, piece.rows, scratch.levels);
    put_levels(tensor, piece.first_row, 0, piece.rows, scratch.levels, to);
  } else {
    tensor.matrix->read_numbers(first, piece.rows, scratch.numbers);
    put_numbers(tensor, piece.first_row, ConstView(scratch.numbers.data(), DType::f32, piece.rows, tensor.spec.cols),
                to);
  }
}

/// The same of a whole tensor whose rows are spread over its files: they are read in large parts, and cut into tiles.
void Weights::make_in_parts(const Placed& tensor, std::byte* to, const std::atomic<bool>& stop, int threads) const {
  const std::int64_t cols = tensor.spec.cols;
  const bool keeps = keeps_levels(tensor);
  const std::int64_t step = std::max(kTileRows, kPartBytes / (keeps ? cols : cols * 4) / kTileRows * kTileRows);
  StoredLevels levels;
  std::vector<float> numbers;
  for (std::int64_t first = 0; first < tensor.spec.rows; first += step) {
    if (stop) throw Interrupted{};
    const std::int64_t rows = std::min(step, tensor.spec.rows - first);
    if (keeps) tensor.matrix->read_levels(tensor.spec.first_row + first, rows, levels);
    else tensor.matrix->read_numbers(tensor.spec.first_row + first, rows, numbers);
    for_each_of((rows + kTileRows - 1) / kTileRows, threads, [&](std::int64_t tile, int) {
      const std::int64_t row = tile * kTileRows, some = std::min(kTileRows, rows - row);
      if (keeps) put_levels(tensor, first, row, some, levels, to);
      else put_numbers(tensor, first + row, ConstView(numbers.data() + row * cols, DType::f32, some, cols), to);
    });
  }
}

/// Writes rows of fp32, from `first_row` on, in the tensor's type.
void Weights::put_numbers(const Placed& tensor, std::int64_t first_row, const ConstView& numbers, std::byte* to) const {
  if (is_quantised(tensor.dtype)) return quantise(tensor, first_row, numbers, to);
  const std::int64_t cols = tensor.spec.cols;
  convert_elements(DType::f32, numbers.as<std::byte>(), tensor.dtype,
                   to + tensor.offset + bytes_of(tensor.dtype, first_row * cols),
                   static_cast<std::size_t>(numbers.rows * cols), place_of(tensor, first_row));
}

/// Writes rows [row, row + rows) of `levels`, which begin at row `first` of the tensor. Levels stay the same, with
/// scales and minima in float16.
void Weights::put_levels(const Placed& tensor, std::int64_t first, std::int64_t row, std::int64_t rows,
                         const StoredLevels& levels, std::byte* to) const {
  const QuantisedLayout layout = tensor.quantised();
  const std::int64_t groups = layout.groups();
  if (tensor.dtype == DType::f8) {
    for (std::int64_t end = row + rows; row < end; row += kTileRows)
      kernels::pack_tile(
          layout,
          {.levels = levels.levels.data() + row * layout.cols, .wide_scales = levels.scales.data() + row * groups},
          std::min(kTileRows, end - row), to + tensor.offset + (first + row) / kTileRows * layout.tile_bytes());
    return;
  }
  std::vector<GroupScale> scales;
  std::vector<std::uint8_t> wide;
  for (std::int64_t end = row + rows; row < end; row += kTileRows) {
    const std::int64_t some = std::min(kTileRows, end - row);
    scales.clear();
    for (auto i = static_cast<std::size_t>(row * groups); i < static_cast<std::size_t>((row + some) * groups); ++i) {
      const auto scale = kernels::rounded_scale(levels.scales[i], levels.minima[i]);
      const bool lost = tensor.matrix->form().exact && scale && static_cast<float>(scale->scale) != levels.scales[i];
      if (!scale || lost)
        throw DataError("tensor '" + tensor.matrix->name() + "', row " +
                        std::to_string(tensor.spec.first_row + first + static_cast<std::int64_t>(i) / groups) +
                        ": its scale is too " + (lost ? "small" : "large") +
                        " for float16; give --weight-dtype bfloat16");
      scales.push_back(*scale);
    }
    const std::uint8_t* own = levels.levels.data() + row * layout.cols;
    if (widens_levels(tensor)) {
      const auto& table = level_table(tensor.matrix->form().table);
      wide.resize(static_cast<std::size_t>(some * layout.cols));
      std::transform(own, own + wide.size(), wide.begin(), [&](std::uint8_t level) { return table[level]; });
      own = wide.data();
    }
    kernels::pack_tile(layout, {.levels = own, .scales = scales.data()}, some,
                       to + tensor.offset + (first + row) / kTileRows * layout.tile_bytes());
  }
}

}  // namespace weft::runtime
