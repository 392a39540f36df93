// runtime/stored/float8_matrix.cc: matrices of numbers of 8 bits (E4M3, without infinities) with scales in a tensor
// of their own: weight_scale_inv or weight_scale [rows / 128, cols / 128] for blocks of 128 x 128, or weight_scale, one
// for the whole matrix or one for each row. A number is its 8 bits' times its scale.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "kernels/small_floats.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {
namespace {

constexpr const char* kFloat8Type = "F8_E4M3";
constexpr std::int64_t kBlockSide = 128;

std::int64_t blocks_of(std::int64_t size) { return (size + kBlockSide - 1) / kBlockSide; }

/// The scales of a matrix: the tensor, how far its scales reach, and the shape that it must have for that.
struct Scales {
  const TensorInfo* tensor = nullptr;
  std::int64_t rows = 0, cols = 0;  // of the matrix, for one scale
  std::vector<std::int64_t> shape;
};

Scales scales_of(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols) {
  const std::vector<std::int64_t> by_blocks{blocks_of(rows), blocks_of(cols)};
  const auto is_one = [](const TensorInfo& tensor) {
    return std::all_of(tensor.shape.begin(), tensor.shape.end(), [](std::int64_t size) { return size == 1; });
  };
  if (const TensorInfo* const blocks = checkpoint.find(name + "_scale_inv");
      blocks && blocks->shape.size() == 2 && !is_one(*blocks))
    return {blocks, kBlockSide, kBlockSide, by_blocks};
  Scales found{checkpoint.find(name + "_scale"), rows, cols, {}};
  if (found.tensor && found.tensor->shape == by_blocks)  // as compressed-tensors names them
    return {found.tensor, kBlockSide, kBlockSide, by_blocks};
  if (!found.tensor) found.tensor = checkpoint.find(name + "_scale_inv");
  if (!found.tensor)
    throw CheckpointError(Fault::missing_tensor, checkpoint.files().front().string() + ": tensor " + in_quotes(name) +
                                                     " is stored as F8_E4M3 without " + in_quotes(name + "_scale") +
                                                     " or " + in_quotes(name + "_scale_inv"));
  found.shape = found.tensor->shape;  // one number, however it is written
  if (is_one(*found.tensor)) return found;
  found.rows = 1;
  found.shape = found.shape.size() == 1 ? std::vector{rows} : std::vector{rows, std::int64_t{1}};
  return found;
}

class Float8Matrix : public StoredMatrix {
 public:
  Float8Matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols)
      : StoredMatrix(name, rows, cols, {.type = DType::f8, .group = kFloat8Group, .exact = true, .name = kFloat8Type}),
        checkpoint_(checkpoint), numbers_(*checkpoint.find(name)), scales_(scales_of(checkpoint, name, rows, cols)) {}

  /// A GPU computes with numbers of fp16, so larger ones are refused wherever they are.
  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    constexpr std::uint8_t kSize = 127;  // without the sign: a larger one is that of a larger number, or of NaN
    const std::vector<std::byte> bytes = read_bytes(checkpoint_, numbers_, first_row * cols(), rows * cols());
    const RowScales scales = read_scales(first_row, rows);
    to.levels.resize(bytes.size());
    if (!bytes.empty()) std::memcpy(to.levels.data(), bytes.data(), bytes.size());
    to.scales.resize(static_cast<std::size_t>(rows * groups()));
    to.minima.clear();
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t group = 0; group < groups(); ++group) {
        const std::int64_t first = group * kBlockSide, count = std::min(kBlockSide, cols() - first);
        const std::uint8_t* const levels = to.levels.data() + row * cols() + first;
        std::uint8_t largest = 0;
        for (std::int64_t i = 0; i < count; ++i) largest = std::max<std::uint8_t>(largest, levels[i] & kSize);
        const float scale = scales.at(row, first), most = std::abs(e4m3(largest) * scale);
        to.scales[static_cast<std::size_t>(row * groups() + group)] = scale;
        if (most <= kMostHalf && std::abs(scale) < kFloat8ScaleEnd) continue;
        const auto at = std::find_if(levels, levels + count, [&](std::uint8_t l) { return (l & kSize) == largest; });
        refuse_number(first_row + row, first + (at - levels),
                      !std::isfinite(most) ? kNotFinite
                      : most > kMostHalf   ? "is too large for float16; give --weight-dtype bfloat16"
                                           : "has a scale of 256 or more; give --weight-dtype float16");
      }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const auto width = static_cast<std::size_t>(cols());
    const std::vector<std::byte> bytes = read_bytes(checkpoint_, numbers_, first_row * cols(), rows * cols());
    const RowScales scales = read_scales(first_row, rows);
    to.resize(bytes.size());
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::size_t i = 0; i < width; ++i) {
        const std::size_t at = static_cast<std::size_t>(row) * width + i;
        const auto column = static_cast<std::int64_t>(i);
        to[at] = e4m3(static_cast<std::uint8_t>(bytes[at])) * scales.at(row, column);
        if (!std::isfinite(to[at])) refuse_number(first_row + row, column, kNotFinite);
      }
  }

 private:
  static constexpr const char* kNotFinite = "is not finite";
  static constexpr float kMostHalf = 65504;

  /// The scales of some rows.
  struct RowScales {
    std::vector<float> numbers;
    std::int64_t across, offset;  // scales next to each other; the first row's place in its block
    std::int64_t rows, cols;      // of a block
    float at(std::int64_t row, std::int64_t column) const {
      return numbers[static_cast<std::size_t>((offset + row) / rows * across + column / cols)];
    }
  };
  RowScales read_scales(std::int64_t first_row, std::int64_t rows) const {
    const std::int64_t first = first_row / scales_.rows, last = (first_row + rows - 1) / scales_.rows,
                       across = (cols() + scales_.cols - 1) / scales_.cols;
    return {read_floats(checkpoint_, *scales_.tensor, first * across, (last - first + 1) * across), across,
            first_row % scales_.rows, scales_.rows, scales_.cols};
  }
  [[noreturn]] void refuse_number(std::int64_t row, std::int64_t column, const std::string& what) const {
    refuse_tensor(checkpoint_, numbers_,
                  "the number at row " + std::to_string(row) + ", column " + std::to_string(column) + " " + what);
  }

  const Checkpoint& checkpoint_;
  const TensorInfo& numbers_;
  Scales scales_;
};

bool has_float8(const Checkpoint& checkpoint, const policy::Quantisation&, const std::string& name) {
  const TensorInfo* const tensor = name.ends_with(".weight") ? checkpoint.find(name) : nullptr;
  return tensor && tensor->dtype == kFloat8Type;
}

std::vector<TensorNeed> needs_of_float8(const Checkpoint& checkpoint, const policy::Quantisation&,
                                        const std::string& name, std::int64_t rows, std::int64_t cols) {
  const Scales scales = scales_of(checkpoint, name, rows, cols);
  return {{.name = name, .shape = {rows, cols}, .dtypes = {kFloat8Type}, .row_major = true},
          {.name = scales.tensor->name, .shape = scales.shape, .row_major = true}};
}

std::unique_ptr<StoredMatrix> open_float8(const Checkpoint& checkpoint, const policy::Quantisation&,
                                          const std::string& name, std::int64_t rows, std::int64_t cols) {
  return std::make_unique<Float8Matrix>(checkpoint, name, rows, cols);
}

}  // namespace

const MatrixFormat kFloat8{has_float8, needs_of_float8, open_float8};

}  // namespace weft::runtime
