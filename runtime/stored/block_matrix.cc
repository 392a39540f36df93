// runtime/stored/block_matrix.cc: tensors of a GGUF file that are no plain rows of floats: rows of blocks, the rows of
// q and k in which the two halves of a head alternate, and norms with 1 added. NVFP4 may have a scale for the whole
// matrix, or for each expert's, in another tensor: that of a group is multiplied by it first.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/quantised.h"
#include "runtime/checkpoint/float_types.h"
#include "runtime/gguf/block_format.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {
namespace {

/// The tensor with the scale of a whole matrix, or null.
const TensorInfo* scale_of(const Checkpoint& checkpoint, const std::string& matrix) {
  return checkpoint.find(matrix + kGgufScale);
}

class BlockMatrix : public StoredMatrix {
 public:
  BlockMatrix(const Checkpoint& checkpoint, const TensorInfo& tensor, const BlockFormat& format)
      : StoredMatrix(tensor.name, rows_of(tensor), tensor.shape.back(),
                     {.type = format.type,
                      .group = format.group,
                      .table = format.table,
                      .exact = format.exact && !scale_of(checkpoint, tensor.name),
                      .name = format.name}),
        checkpoint_(checkpoint), tensor_(tensor), scale_(scale_of(checkpoint, tensor.name)), format_(format),
        row_bytes_(static_cast<std::size_t>(cols() / format.numbers * format.bytes)) {}

  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    read_parts(first_row, rows, to);
    if (!format_.zero) return;
    for (std::size_t i = 0; i < to.scales.size(); ++i) {
      to.scales[i] = static_cast<float>(f16(to.scales[i]));  // first, so that the level of 0 stays 0
      to.minima[i] = static_cast<float>(-*format_.zero) * to.scales[i];
    }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    if (format_.is_float()) {
      to = widened(format_.type, read_rows(first_row, rows));
    } else {
      to.resize(static_cast<std::size_t>(rows * cols()));
      StoredLevels from;
      read_parts(first_row, rows, from);
      const auto group = static_cast<std::size_t>(format_.group);
      const auto& table = level_table(format_.table);
      for (std::size_t i = 0; i < to.size(); ++i) {
        const std::uint8_t level = format_.type == DType::i4 ? table[from.levels[i]] : from.levels[i];
        to[i] = std::fma(from.scales[i / group], static_cast<float>(level), from.minima[i / group]);
      }
    }
    if (tensor_.plus_one)
      for (float& number : to) number -= 1;
  }

 private:
  /// The levels with scales and minima as the file means them.
  void read_parts(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const {
    const std::vector<std::byte> bytes = read_rows(first_row, rows);
    const auto blocks = static_cast<std::size_t>(rows * cols() / format_.numbers),
               of_block = static_cast<std::size_t>(format_.numbers / format_.group);
    to.levels.resize(blocks * static_cast<std::size_t>(format_.numbers));
    to.scales.resize(blocks * of_block);
    to.minima.resize(blocks * of_block);
    for (std::size_t i = 0; i < blocks; ++i)
      format_.read(bytes.data() + i * static_cast<std::size_t>(format_.bytes),
                   {.levels = to.levels.data() + i * static_cast<std::size_t>(format_.numbers),
                    .scales = to.scales.data() + i * of_block,
                    .minima = to.minima.data() + i * of_block});
    if (scale_) scale_all(first_row, to);
    require_finite(to.scales, first_row), require_finite(to.minima, first_row);
  }

  void scale_all(std::int64_t first_row, StoredLevels& to) const {
    const std::int64_t count = scale_->shape.empty() ? 1 : scale_->shape.front();  // a matrix has one, experts one each
    if (count < 1 || scale_->shape.size() > 1 || rows() % count != 0)
      refuse_tensor(checkpoint_, *scale_, "is no scale for each of some parts of " + std::to_string(rows()) + " rows");
    const std::vector<float> all = read_floats(checkpoint_, *scale_, 0, count);
    for (std::size_t i = 0; i < to.scales.size(); ++i) {
      const std::int64_t row = first_row + static_cast<std::int64_t>(i) / groups();
      const float scale = all[static_cast<std::size_t>(row / (rows() / count))];
      to.scales[i] *= scale, to.minima[i] *= scale;
    }
  }

  /// All but the last size together: a tensor of experts has three.
  static std::int64_t rows_of(const TensorInfo& tensor) {
    return std::accumulate(tensor.shape.begin(), tensor.shape.end() - 1, std::int64_t{1}, std::multiplies<>());
  }

  /// The row of the file that holds a row, if in each head of pair_rows the halves take turns.
  std::int64_t stored_row(std::int64_t row) const {
    const std::int64_t head = tensor_.pair_rows;
    const std::int64_t within = row % head, half = within / (head / 2);
    return row - within + within % (head / 2) * 2 + half;
  }

  std::vector<std::byte> read_rows(std::int64_t first_row, std::int64_t rows) const {
    std::vector<std::byte> bytes(static_cast<std::size_t>(rows) * row_bytes_);
    const auto place = [&](std::int64_t row) {
      return tensor_.offset + static_cast<std::uint64_t>(row) * std::uint64_t{row_bytes_};
    };
    if (tensor_.pair_rows == 0) {
      checkpoint_.read_range(tensor_.file, place(first_row), bytes);
      return bytes;
    }
    for (std::int64_t i = 0; i < rows; ++i)
      checkpoint_.read_range(tensor_.file, place(stored_row(first_row + i)),
                             std::span(bytes).subspan(static_cast<std::size_t>(i) * row_bytes_, row_bytes_));
    return bytes;
  }

  void require_finite(const std::vector<float>& numbers, std::int64_t first_row) const {
    const auto wrong = std::find_if_not(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); });
    if (wrong != numbers.end())
      refuse_tensor(
          checkpoint_, tensor_,
          "a scale of row " + std::to_string(first_row + (wrong - numbers.begin()) / groups()) + " is not finite");
  }

  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
  const TensorInfo* scale_;  // or null
  const BlockFormat& format_;
  std::size_t row_bytes_;
};

/// The tensor, if it has blocks, another order of rows, or 1 added.
const TensorInfo* find_blocks(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* const tensor = checkpoint.find(name);
  if (!tensor || checkpoint.format() != Checkpoint::Format::gguf) return nullptr;
  return tensor->pair_rows > 0 || tensor->plus_one || !block_format(tensor->dtype)->is_float() ? tensor : nullptr;
}

bool has_blocks(const Checkpoint& checkpoint, const policy::Quantisation&, const std::string& name) {
  return find_blocks(checkpoint, name) != nullptr;
}

std::vector<TensorNeed> needs_of_blocks(const Checkpoint& checkpoint, const policy::Quantisation&,
                                        const std::string& name, std::int64_t rows, std::int64_t cols) {
  const TensorInfo* const tensor = find_blocks(checkpoint, name);
  const std::vector<std::int64_t> shape = tensor->plus_one ? std::vector{cols} : std::vector{rows, cols};
  std::vector<TensorNeed> needs{{.name = name, .shape = shape, .dtypes = {tensor->dtype}, .row_major = true}};
  if (const TensorInfo* const scale = scale_of(checkpoint, name))
    needs.push_back({.name = scale->name,
                     .shape = {tensor->shape.size() > 2 ? tensor->shape.front() : 1},
                     .dtypes = {"F32"},
                     .row_major = true});
  return needs;
}

std::unique_ptr<StoredMatrix> open_blocks(const Checkpoint& checkpoint, const policy::Quantisation&,
                                          const std::string& name, std::int64_t, std::int64_t) {
  const TensorInfo* const tensor = find_blocks(checkpoint, name);
  return std::make_unique<BlockMatrix>(checkpoint, *tensor, *block_format(tensor->dtype));
}

}  // namespace

const MatrixFormat kBlocks{has_blocks, needs_of_blocks, open_blocks};

}  // namespace weft::runtime
