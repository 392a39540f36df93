// runtime/stored/float8_matrix.cc: matrices of numbers of 8 bits (E4M3, without infinities) with scales in a tensor
// of their own: weight_scale_inv or weight_scale [rows / 128, cols / 128] for blocks of 128 x 128, or weight_scale, one
// for the whole matrix or one for each row. A number is its 8 bits' times its scale.
#include <cmath>

#include "kernels/error.h"
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
  if (const TensorInfo* const blocks = checkpoint.find(name + "_scale_inv"); blocks && blocks->shape.size() == 2)
    return {blocks, kBlockSide, kBlockSide, by_blocks};
  Scales found{checkpoint.find(name + "_scale"), rows, cols, {}};
  if (found.tensor && found.tensor->shape == by_blocks)  // as compressed-tensors names them
    return {found.tensor, kBlockSide, kBlockSide, by_blocks};
  if (!found.tensor) found.tensor = checkpoint.find(name + "_scale_inv");
  if (!found.tensor)
    throw CheckpointError(Fault::missing_tensor, checkpoint.files().front().string() + ": tensor " + in_quotes(name) +
                                                     " is stored as F8_E4M3 without " + in_quotes(name + "_scale") +
                                                     " or " + in_quotes(name + "_scale_inv"));
  std::int64_t count = 1;
  for (const std::int64_t size : found.tensor->shape) count *= size;
  found.shape = found.tensor->shape;  // one number, however it is written
  if (count == 1) return found;
  found.rows = 1;
  found.shape = found.shape.size() == 1 ? std::vector{rows} : std::vector{rows, std::int64_t{1}};
  return found;
}

class Float8Matrix : public StoredMatrix {
 public:
  Float8Matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols)
      : StoredMatrix(name, rows, cols, {.type = DType::f32, .name = kFloat8Type}), checkpoint_(checkpoint),
        numbers_(*checkpoint.find(name)), scales_(scales_of(checkpoint, name, rows, cols)) {}

  void read_levels(std::int64_t, std::int64_t, StoredLevels&) const override {
    refuse_tensor(checkpoint_, numbers_, "has no levels");  // form() says so
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const auto width = static_cast<std::size_t>(cols());
    const std::vector<std::byte> bytes = read_bytes(checkpoint_, numbers_, first_row * cols(), rows * cols());
    const std::int64_t first_scale = first_row / scales_.rows, last = (first_row + rows - 1) / scales_.rows,
                       across = (cols() + scales_.cols - 1) / scales_.cols;
    const std::vector<float> scales =
        read_floats(checkpoint_, *scales_.tensor, first_scale * across, (last - first_scale + 1) * across);
    to.resize(bytes.size());
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* const of_row = scales.data() + ((first_row + row) / scales_.rows - first_scale) * across;
      for (std::size_t i = 0; i < width; ++i) {
        const std::size_t at = static_cast<std::size_t>(row) * width + i;
        to[at] = e4m3(static_cast<std::uint8_t>(bytes[at])) * of_row[static_cast<std::int64_t>(i) / scales_.cols];
        if (!std::isfinite(to[at]))
          refuse_tensor(checkpoint_, numbers_,
                        "the number at row " + std::to_string(first_row + row) + ", column " + std::to_string(i) +
                            " is not finite");
      }
    }
  }

 private:
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
