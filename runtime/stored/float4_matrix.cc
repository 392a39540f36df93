// runtime/stored/float4_matrix.cc: matrices of numbers of 4 bits (E2M1), two to a byte, the first in its low half.
//
// MXFP4 (OCP Microscaling Formats 1.0): groups of 32 share a scale of E8M0, a power of 2.
//
//                       numbers                     scales
//   quant_method mxfp4  NAME_blocks [.., g, 16]     NAME_scales [.., g], with g groups in a row
//   compressed-tensors  NAME_packed [rows, cols/2]  NAME_scale [rows, cols/32]
//
// The first, which gpt-oss has, may hold the matrices of several experts in one tensor: the sizes before g are those of
// all rows together. Twice the numbers of E2M1 are whole, so their 4 bits are levels of a table (LevelTable::e2m1) in
// Weft's groups, exactly.
//
// NVFP4: groups of 16 share a scale of E4M3, and the matrix has a scale in fp32.
//
//                       numbers                     scales                      of the matrix, one number
//   compressed-tensors  NAME_packed [rows, cols/2]  NAME_scale [rows, cols/16]  NAME_global_scale, which divides
//   ModelOpt            NAME [rows, cols/2]         NAME_scale [rows, cols/16]  NAME_scale_2, which multiplies
//
// A number is E2M1's times the group's scale, which is first multiplied, or divided, by that of the matrix; each result
// is rounded to fp32. As levels they are MXFP4's, with scales that fp16 rounds.
#include <algorithm>
#include <cmath>

#include "kernels/small_floats.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {
namespace {

using policy::Quantisation;

constexpr int kZero = 16;  // what the levels of 0 stand for

/// Twice number `i` of packed numbers.
float twice(const std::vector<std::byte>& pairs, std::size_t i) {
  const auto pair = static_cast<std::uint8_t>(pairs[i / 2]);
  return static_cast<float>(kTwiceE2M1[i % 2 ? pair >> 4 : pair & 15]);
}

/// The levels of packed numbers.
void unpack(const std::vector<std::byte>& pairs, std::vector<std::uint8_t>& levels) {
  levels.clear();
  levels.reserve(pairs.size() * 2);
  for (const std::byte byte : pairs) {
    const auto pair = static_cast<std::uint8_t>(byte);
    levels.push_back(pair & 15), levels.push_back(pair >> 4);
  }
}

/// Throws CheckpointError unless rows are whole groups.
void require_groups(const std::string& tensor, std::int64_t cols, std::int64_t group) {
  if (cols % group != 0)
    throw CheckpointError(Fault::bad_shape, "tensor " + in_quotes(tensor) + ": rows of " + std::to_string(cols) +
                                                " numbers do not fill groups of " + std::to_string(group));
}

// ------------------------------------------------------------------------------------------------------------ MXFP4

constexpr std::int64_t kMxGroup = 32;

struct Mxfp4Parts {
  std::string numbers, scales;  // their names
  bool blocks = false;          // as quant_method mxfp4 has them
};

Mxfp4Parts mxfp4_parts(const Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.find(name + "_blocks")) return {name + "_blocks", name + "_scales", true};
  return {name + "_packed", name + "_scale", false};
}

class Mxfp4Matrix : public StoredMatrix {
 public:
  Mxfp4Matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols)
      : StoredMatrix(name, rows, cols,
                     {.type = DType::i4, .group = kMxGroup, .table = LevelTable::e2m1, .exact = true, .name = "MXFP4"}),
        checkpoint_(checkpoint), numbers_(*checkpoint.find(mxfp4_parts(checkpoint, name).numbers)),
        scales_(*checkpoint.find(mxfp4_parts(checkpoint, name).scales)) {}

  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    const std::vector<std::byte> bytes = read_numbers_of(first_row, rows);
    to.scales = read_scales(first_row, rows);
    unpack(bytes, to.levels);
    to.minima.resize(to.scales.size());
    for (std::size_t group = 0; group < to.scales.size(); ++group) {
      const auto first = to.levels.begin() + static_cast<std::ptrdiff_t>(group * kMxGroup);
      // Writers give zeros the smallest scale, which fp16 does not hold.
      if (std::all_of(first, first + kMxGroup, [](std::uint8_t level) { return kTwiceE2M1[level] == 0; }))
        to.scales[group] = 0;
      to.minima[group] = -kZero * to.scales[group];
    }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const std::vector<std::byte> bytes = read_numbers_of(first_row, rows);
    const std::vector<float> scales = read_scales(first_row, rows);
    to.resize(bytes.size() * 2);
    for (std::size_t i = 0; i < to.size(); ++i) {
      to[i] = twice(bytes, i) * scales[i / kMxGroup];
      if (!std::isfinite(to[i]))
        refuse_tensor(
            checkpoint_, numbers_,
            "a number of row " + std::to_string(row_of(first_row, i / kMxGroup)) + " is too large for float32");
    }
  }

 private:
  std::int64_t row_of(std::int64_t first_row, std::size_t group) const {
    return first_row + static_cast<std::int64_t>(group) / groups();
  }

  std::vector<std::byte> read_numbers_of(std::int64_t first_row, std::int64_t rows) const {
    return read_bytes(checkpoint_, numbers_, first_row * groups() * (kMxGroup / 2), rows * groups() * (kMxGroup / 2));
  }

  /// The scales of twice the numbers.
  std::vector<float> read_scales(std::int64_t first_row, std::int64_t rows) const {
    std::vector<float> scales;
    for (const std::byte byte : read_bytes(checkpoint_, scales_, first_row * groups(), rows * groups())) {
      const auto bits = static_cast<std::uint8_t>(byte);
      if (bits == kNanE8M0)
        refuse_tensor(checkpoint_, scales_,
                      "the scale of row " + std::to_string(row_of(first_row, scales.size())) + ", group " +
                          std::to_string(static_cast<std::int64_t>(scales.size()) % groups()) + " is not a number");
      scales.push_back(half_of_e8m0(bits));
    }
    return scales;
  }

  const Checkpoint& checkpoint_;
  const TensorInfo &numbers_, &scales_;
};

bool has_mxfp4(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  return how.packing == Quantisation::Packing::mxfp4 && checkpoint.find(mxfp4_parts(checkpoint, name).numbers);
}

/// The sizes of the blocks before `groups`, if they are those of so many rows.
std::vector<std::int64_t> row_sizes(const TensorInfo& blocks, std::int64_t rows) {
  if (blocks.shape.size() < 3) return {rows};
  std::int64_t product = 1;
  std::vector<std::int64_t> sizes(blocks.shape.begin(), blocks.shape.end() - 2);
  for (const std::int64_t size : sizes) product *= size;
  return product == rows ? sizes : std::vector{rows};
}

std::vector<TensorNeed> needs_of_mxfp4(const Checkpoint& checkpoint, const Quantisation&, const std::string& name,
                                       std::int64_t rows, std::int64_t cols) {
  const Mxfp4Parts parts = mxfp4_parts(checkpoint, name);
  require_groups(parts.numbers, cols, kMxGroup);
  if (!parts.blocks)
    return {{parts.numbers, {rows, cols / 2}, {"U8"}, true},
            {parts.scales, {rows, cols / kMxGroup}, {"U8", "F8_E8M0"}, true}};
  std::vector<std::int64_t> sizes = row_sizes(*checkpoint.find(parts.numbers), rows);
  sizes.push_back(cols / kMxGroup);
  TensorNeed scales{parts.scales, sizes, {"U8"}, true};
  sizes.push_back((kMxGroup / 2));
  return {{parts.numbers, std::move(sizes), {"U8"}, true}, std::move(scales)};
}

std::unique_ptr<StoredMatrix> open_mxfp4(const Checkpoint& checkpoint, const Quantisation&, const std::string& name,
                                         std::int64_t rows, std::int64_t cols) {
  return std::make_unique<Mxfp4Matrix>(checkpoint, name, rows, cols);
}

// ------------------------------------------------------------------------------------------------------------ NVFP4

constexpr std::int64_t kNvGroup = 16;

struct Nvfp4Parts {
  std::string numbers, scales, of_matrix;  // their names
  bool divides = false;
};

Nvfp4Parts nvfp4_parts(const Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.find(name + "_packed")) return {name + "_packed", name + "_scale", name + "_global_scale", true};
  return {name, name + "_scale", name + "_scale_2", false};
}

class Nvfp4Matrix : public StoredMatrix {
 public:
  Nvfp4Matrix(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols)
      : StoredMatrix(name, rows, cols,
                     {.type = DType::i4, .group = kNvGroup, .table = LevelTable::e2m1, .name = "NVFP4"}),
        checkpoint_(checkpoint), numbers_(*checkpoint.find(nvfp4_parts(checkpoint, name).numbers)),
        scales_(*checkpoint.find(nvfp4_parts(checkpoint, name).scales)),
        of_matrix_(*checkpoint.find(nvfp4_parts(checkpoint, name).of_matrix)),
        divides_(nvfp4_parts(checkpoint, name).divides) {}

  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    unpack(read_pairs(first_row, rows), to.levels);
    to.scales = read_scales(first_row, rows);
    to.minima.clear();
    for (float& scale : to.scales) {
      // Rounded first, so that the level of 0 stays 0. The levels stand for twice the numbers.
      scale = static_cast<float>(f16(scale / 2));
      to.minima.push_back(-kZero * scale);
    }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const std::vector<std::byte> pairs = read_pairs(first_row, rows);
    const std::vector<float> scales = read_scales(first_row, rows);
    to.resize(pairs.size() * 2);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = twice(pairs, i) / 2 * scales[i / kNvGroup];
  }

 private:
  std::vector<std::byte> read_pairs(std::int64_t first_row, std::int64_t rows) const {
    return read_bytes(checkpoint_, numbers_, first_row * groups() * (kNvGroup / 2), rows * groups() * (kNvGroup / 2));
  }

  std::vector<float> read_scales(std::int64_t first_row, std::int64_t rows) const {
    const float of_matrix = read_floats(checkpoint_, of_matrix_, 0, 1).front();
    if (!std::isfinite(of_matrix) || of_matrix == 0)
      refuse_tensor(checkpoint_, of_matrix_, "the scale of the matrix is 0, or not finite");
    std::vector<float> scales;
    scales.reserve(static_cast<std::size_t>(rows * groups()));
    for (const std::byte byte : read_bytes(checkpoint_, scales_, first_row * groups(), rows * groups())) {
      const float stored = e4m3(static_cast<std::uint8_t>(byte));
      const float scale = divides_ ? stored / of_matrix : stored * of_matrix;
      const auto group = static_cast<std::int64_t>(scales.size());
      if (!std::isfinite(6 * scale))
        refuse_tensor(checkpoint_, scales_,
                      "the scale of row " + std::to_string(first_row + group / groups()) + ", group " +
                          std::to_string(group % groups()) + " is not finite");
      scales.push_back(scale);
    }
    return scales;
  }

  const Checkpoint& checkpoint_;
  const TensorInfo &numbers_, &scales_, &of_matrix_;
  bool divides_;
};

bool has_nvfp4(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  if (how.packing != Quantisation::Packing::nvfp4) return false;
  const TensorInfo* const numbers = checkpoint.find(nvfp4_parts(checkpoint, name).numbers);
  return numbers && numbers->dtype == "U8";
}

std::vector<TensorNeed> needs_of_nvfp4(const Checkpoint& checkpoint, const Quantisation&, const std::string& name,
                                       std::int64_t rows, std::int64_t cols) {
  const Nvfp4Parts parts = nvfp4_parts(checkpoint, name);
  require_groups(parts.numbers, cols, kNvGroup);
  const TensorInfo* const of_matrix = checkpoint.find(parts.of_matrix);
  // One number, however it is written.
  const bool scalar = of_matrix && of_matrix->shape.empty();
  return {{parts.numbers, {rows, cols / 2}, {"U8"}, true},
          {parts.scales, {rows, cols / kNvGroup}, {"F8_E4M3"}, true},
          {parts.of_matrix, scalar ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{1}, {"F32"}, true}};
}

std::unique_ptr<StoredMatrix> open_nvfp4(const Checkpoint& checkpoint, const Quantisation&, const std::string& name,
                                         std::int64_t rows, std::int64_t cols) {
  return std::make_unique<Nvfp4Matrix>(checkpoint, name, rows, cols);
}

}  // namespace

const MatrixFormat kMxfp4{has_mxfp4, needs_of_mxfp4, open_mxfp4};
const MatrixFormat kNvfp4{has_nvfp4, needs_of_nvfp4, open_nvfp4};

}  // namespace weft::runtime
