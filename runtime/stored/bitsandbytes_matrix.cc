// runtime/stored/bitsandbytes_matrix.cc: matrices as bitsandbytes stores them.
//
// With 4 bits (NF4, FP4) all numbers of a matrix, row after row, are cut into blocks. A number is that of a table for
// its level, times the largest of its block. Levels of NF4 are kept (LevelTable::nf4) where rows are whole groups of
// Weft's; FP4's numbers are taken as floats. NAME (two levels to a byte, the first in its high half) is [bytes, 1] of
// bytes, or of another type with as many bytes in all. Next to it lie
//
//   NAME.quant_state.bitsandbytes__nf4 (or __fp4)  a JSON object: "shape", "blocksize" and so on
//   NAME.quant_map [16]                            the table
//   NAME.absmax [blocks]                           the largest of each block, in fp32
//
// or, with double quantisation, NAME.absmax in bytes. Then a largest is NAME.nested_quant_map [256] for its byte, times
// NAME.nested_absmax for its block of "nested_blocksize" bytes, plus "nested_offset".
//
// With 8 bits NAME [rows, cols] are signed bytes. A number is its byte times SCB [rows] / 127. compressed-tensors has
// such matrices too: a number is its byte times NAME_scale [rows, 1].
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "policy/base/json.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {
namespace {

using policy::Quantisation;

constexpr std::uint64_t kLargestState = 4096;
constexpr std::int64_t kLargestBlock = 1 << 20;
constexpr int kSignedZero = 128, kLargestByte = 127;
constexpr int kWholeRowGroup = 128, kTableGroup = 64;
constexpr float kRounds = 0.51F;  // by which a level of 8 bits may be off what it stands for

bool has_table(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  return how.packing == Quantisation::Packing::bitsandbytes && how.dtype != DType::i8 && name.ends_with(".weight") &&
         checkpoint.find(name);
}

/// What NAME.quant_state says.
struct State {
  std::int64_t block = 0;
  struct Nested {
    std::int64_t block = 0;
    float offset = 0;
  };
  std::optional<Nested> nested;
};

const TensorInfo* state_of(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* const nf4 = checkpoint.find(name + ".quant_state.bitsandbytes__nf4");
  return nf4 ? nf4 : checkpoint.find(name + ".quant_state.bitsandbytes__fp4");
}

State read_state(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t rows, std::int64_t cols) {
  if (tensor.dtype != "U8" || tensor.bytes > kLargestState)
    refuse_tensor(checkpoint, tensor, "must be a JSON object in at most " + std::to_string(kLargestState) + " bytes");
  const std::vector<std::byte> bytes = read_bytes(checkpoint, tensor, 0, static_cast<std::int64_t>(tensor.bytes));
  const std::string where = checkpoint.files()[tensor.file].string() + ": tensor " + in_quotes(tensor.name);
  const nlohmann::json json = policy::parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, where,
                                                 policy::Blame::data, {.depth = 8});
  policy::Fields fields(json, where, policy::Blame::data);
  State state{.block = fields.integer("blocksize", 1, kLargestBlock), .nested = {}};
  if (fields.at("shape") != nlohmann::json::array({rows, cols}))
    fields.refuse_field("shape", "[" + std::to_string(rows) + ", " + std::to_string(cols) + "]");
  if (fields.has("nested_blocksize"))
    state.nested = State::Nested{fields.integer("nested_blocksize", 1, kLargestBlock),
                                 static_cast<float>(fields.number("nested_offset", -1e30, 1e30))};
  return state;
}

std::int64_t parts(std::int64_t count, std::int64_t size) { return (count + size - 1) / size; }

class TableLevels : public StoredMatrix {
 public:
  TableLevels(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols)
      : TableLevels(checkpoint, name, rows, cols, read_state(checkpoint, *state_of(checkpoint, name), rows, cols)) {}

  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    const std::int64_t first = first_row * cols(), end = first + rows * cols();
    const std::int64_t first_block = first / state_.block;
    const std::vector<float> largest = read_largest(first_block, end, 1);
    to.levels = read_packed(first, end);
    to.scales.clear(), to.minima.clear();
    for (std::int64_t i = first; i < end; i += kTableGroup) {
      // Rounded first, so that the level of 0 stays 0.
      const float most = largest[static_cast<std::size_t>(i / state_.block - first_block)];
      const auto scale = static_cast<float>(f16(most / kOneOfNf4));
      to.scales.push_back(scale), to.minima.push_back(-kSignedZero * scale);
    }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const std::int64_t first = first_row * cols(), end = first + rows * cols();
    const std::vector<float> table = read_finite(part(".quant_map"), 0, 16);
    const float most = std::abs(
        *std::max_element(table.begin(), table.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    const std::int64_t first_block = first / state_.block;
    const std::vector<float> largest = read_largest(first_block, end, most);
    to.clear();
    to.reserve(static_cast<std::size_t>(end - first));
    for (std::int64_t i = first; const std::uint8_t level : read_packed(first, end))
      to.push_back(table[level] * largest[static_cast<std::size_t>(i++ / state_.block - first_block)]);
  }

 private:
  TableLevels(const Checkpoint& checkpoint, const std::string& name, std::int64_t rows, std::int64_t cols, State state)
      : StoredMatrix(name, rows, cols, form_of(checkpoint, name, cols, state)), checkpoint_(checkpoint),
        levels_(*checkpoint.find(name)), largest_(*checkpoint.find(name + ".absmax")), state_(state) {}

  static StoredForm form_of(const Checkpoint& checkpoint, const std::string& name, std::int64_t cols,
                            const State& state) {
    const bool whole = cols % kTableGroup == 0 && state.block % kTableGroup == 0;
    if (!whole || !is_nf4(read_floats(checkpoint, *checkpoint.find(name + ".quant_map"), 0, 16)))
      return {.type = DType::f32, .name = "bitsandbytes"};
    return {.type = DType::i4, .group = kTableGroup, .table = LevelTable::nf4, .name = "bitsandbytes NF4"};
  }

  static bool is_nf4(const std::vector<float>& table) {
    const auto& levels = level_table(LevelTable::nf4);
    return std::equal(table.begin(), table.end(), levels.begin(), [](float number, std::uint8_t level) {
      return std::abs(number * kOneOfNf4 - static_cast<float>(level - kSignedZero)) < kRounds;
    });
  }

  /// The levels of elements [first, end).
  std::vector<std::uint8_t> read_packed(std::int64_t first, std::int64_t end) const {
    const std::vector<std::byte> pairs = read_bytes(checkpoint_, levels_, first / 2, parts(end, 2) - first / 2);
    std::vector<std::uint8_t> levels;
    levels.reserve(static_cast<std::size_t>(end - first));
    for (std::int64_t i = first; i < end; ++i) {
      const auto pair = static_cast<std::uint8_t>(pairs[static_cast<std::size_t>(i / 2 - first / 2)]);
      levels.push_back(i % 2 ? pair & 15 : pair >> 4);
    }
    return levels;
  }

  const TensorInfo& part(const char* suffix) const { return *checkpoint_.find(name() + suffix); }

  std::vector<float> read_finite(const TensorInfo& tensor, std::int64_t first, std::int64_t count) const {
    std::vector<float> numbers = read_floats(checkpoint_, tensor, first, count);
    for (std::size_t i = 0; i < numbers.size(); ++i)
      if (!std::isfinite(numbers[i]))
        refuse_tensor(checkpoint_, tensor,
                      "element " + std::to_string(first + static_cast<std::int64_t>(i)) + " is not finite");
    return numbers;
  }

  /// The largest numbers of the blocks from the first to that of the last element before `end`. Throws DataError if
  /// `most` times one is not finite.
  std::vector<float> read_largest(std::int64_t first_block, std::int64_t end, float most) const {
    std::vector<float> largest = largest_of(first_block, parts(end, state_.block) - first_block);
    for (std::size_t i = 0; i < largest.size(); ++i)
      if (!std::isfinite(largest[i] * most))
        refuse_tensor(checkpoint_, largest_,
                      "element " + std::to_string(first_block + static_cast<std::int64_t>(i)) +
                          " makes numbers that are not finite");
    return largest;
  }

  std::vector<float> largest_of(std::int64_t first, std::int64_t count) const {
    if (!state_.nested) return read_floats(checkpoint_, largest_, first, count);
    const auto [block, offset] = *state_.nested;
    const std::vector<float> table = read_finite(part(".nested_quant_map"), 0, 256);
    const std::int64_t first_outer = first / block;
    const std::vector<float> outer =
        read_finite(part(".nested_absmax"), first_outer, parts(first + count, block) - first_outer);
    std::vector<float> largest;
    largest.reserve(static_cast<std::size_t>(count));
    for (const std::byte byte : read_bytes(checkpoint_, largest_, first, count)) {
      const std::int64_t at = first + static_cast<std::int64_t>(largest.size());
      largest.push_back(
          table[static_cast<std::uint8_t>(byte)] * outer[static_cast<std::size_t>(at / block - first_outer)] + offset);
    }
    return largest;
  }

  const Checkpoint& checkpoint_;
  const TensorInfo &levels_, &largest_;
  State state_;
};

bool has_table_levels(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  return has_table(checkpoint, how, name) && (state_of(checkpoint, name) || checkpoint.find(name + ".absmax"));
}

/// The shape of a tensor of so many bytes: [elements, 1], of whatever type it has.
std::vector<std::int64_t> stored_shape(const TensorInfo& tensor, std::int64_t bytes) {
  const std::int64_t size = tensor.dtype == "F32" ? 4 : tensor.dtype == "F16" || tensor.dtype == "BF16" ? 2 : 1;
  return {bytes % size == 0 ? bytes / size : bytes, 1};
}

std::vector<TensorNeed> needs_of_table_levels(const Checkpoint& checkpoint, const Quantisation&,
                                              const std::string& name, std::int64_t rows, std::int64_t cols) {
  const TensorInfo* const tensor = state_of(checkpoint, name);
  if (!tensor) return {{name + ".quant_state.bitsandbytes__nf4", {}, {"U8"}, true}};
  const State state = read_state(checkpoint, *tensor, rows, cols);
  const std::int64_t blocks = parts(rows * cols, state.block);
  std::vector<TensorNeed> needs{
      {name, stored_shape(*checkpoint.find(name), parts(rows * cols, 2)), {"U8", "I8", "F16", "BF16", "F32"}, true},
      {tensor->name, tensor->shape, {"U8"}, true},
      {name + ".quant_map", {16}, {"F32"}, true},
      {name + ".absmax", {blocks}, {state.nested ? "U8" : "F32"}, true}};
  if (state.nested) {
    needs.push_back({name + ".nested_quant_map", {256}, {"F32"}, true});
    needs.push_back({name + ".nested_absmax", {parts(blocks, state.nested->block)}, {"F32"}, true});
  }
  return needs;
}

std::unique_ptr<StoredMatrix> open_table_levels(const Checkpoint& checkpoint, const Quantisation&,
                                                const std::string& name, std::int64_t rows, std::int64_t cols) {
  return std::make_unique<TableLevels>(checkpoint, name, rows, cols);
}

bool by_bitsandbytes(const Quantisation& how) { return how.packing == Quantisation::Packing::bitsandbytes; }

std::string row_scales_of(const Quantisation& how, const std::string& name) {
  return by_bitsandbytes(how) ? module_of(name) + ".SCB" : name + "_scale";
}

class SignedBytes : public StoredMatrix {
 public:
  SignedBytes(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name, std::int64_t rows,
              std::int64_t cols)
      : StoredMatrix(name, rows, cols,
                     {.type = DType::i8,
                      .group = kWholeRowGroup,
                      .name = by_bitsandbytes(how) ? "bitsandbytes int8" : "compressed-tensors int8"}),
        checkpoint_(checkpoint), levels_(*checkpoint.find(name)), scales_(*checkpoint.find(row_scales_of(how, name))),
        divisor_(by_bitsandbytes(how) ? kLargestByte : 1) {}

  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    to.levels.clear(), to.scales.clear(), to.minima.clear();
    to.levels.reserve(static_cast<std::size_t>(rows * cols()));
    for (const std::byte byte : read_bytes(checkpoint_, levels_, first_row * cols(), rows * cols()))
      to.levels.push_back(static_cast<std::uint8_t>(static_cast<std::int8_t>(byte) + kSignedZero));
    for (const float exact : read_scales(first_row, rows)) {
      // Rounded first, so that the level of 0 stays 0.
      const auto scale = static_cast<float>(f16(exact));
      to.scales.insert(to.scales.end(), static_cast<std::size_t>(groups()), scale);
      to.minima.insert(to.minima.end(), static_cast<std::size_t>(groups()), -kSignedZero * scale);
    }
  }

  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    const std::vector<float> scales = read_scales(first_row, rows);
    to.clear();
    to.reserve(static_cast<std::size_t>(rows * cols()));
    for (const std::byte byte : read_bytes(checkpoint_, levels_, first_row * cols(), rows * cols()))
      to.push_back(static_cast<float>(static_cast<std::int8_t>(byte)) *
                   scales[to.size() / static_cast<std::size_t>(cols())]);
  }

 private:
  std::vector<float> read_scales(std::int64_t first_row, std::int64_t rows) const {
    std::vector<float> scales = read_floats(checkpoint_, scales_, first_row, rows);
    for (std::size_t i = 0; i < scales.size(); ++i) {
      scales[i] /= divisor_;
      if (!std::isfinite(scales[i] * kSignedZero))
        refuse_tensor(
            checkpoint_, scales_,
            "the scale of row " + std::to_string(first_row + static_cast<std::int64_t>(i)) + " is not finite");
    }
    return scales;
  }

  const Checkpoint& checkpoint_;
  const TensorInfo &levels_, &scales_;
  float divisor_;
};

bool has_signed_bytes(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  const bool of_rows = by_bitsandbytes(how) || how.packing == Quantisation::Packing::compressed_tensors;
  const TensorInfo* const tensor =
      of_rows && how.dtype == DType::i8 && name.ends_with(".weight") ? checkpoint.find(name) : nullptr;
  return tensor && tensor->dtype == "I8";
}

std::vector<TensorNeed> needs_of_signed_bytes(const Checkpoint&, const Quantisation& how, const std::string& name,
                                              std::int64_t rows, std::int64_t cols) {
  if (cols % 8 != 0)
    throw CheckpointError(Fault::bad_shape, "tensor " + in_quotes(name) + ": rows of " + std::to_string(cols) +
                                                " numbers are not read quantised; wanted a multiple of 8");
  TensorNeed scales{.name = row_scales_of(how, name), .shape = {rows}, .dtypes = {"F32"}, .row_major = true};
  if (!by_bitsandbytes(how)) scales.shape = {rows, 1}, scales.dtypes = {};
  return {{name, {rows, cols}, {"I8"}, true}, std::move(scales)};
}

std::unique_ptr<StoredMatrix> open_signed_bytes(const Checkpoint& checkpoint, const Quantisation& how,
                                                const std::string& name, std::int64_t rows, std::int64_t cols) {
  return std::make_unique<SignedBytes>(checkpoint, how, name, rows, cols);
}

}  // namespace

const MatrixFormat kTableLevels{has_table_levels, needs_of_table_levels, open_table_levels};
const MatrixFormat kSignedBytes{has_signed_bytes, needs_of_signed_bytes, open_signed_bytes};

}  // namespace weft::runtime
