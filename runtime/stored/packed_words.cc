// runtime/stored/packed_words.cc: a matrix of 4 or 8 bits as others store it, in several tensors of a checkpoint:
//
//                       levels                        scales                       zero points
//   compressed-tensors  weight_packed [rows, cols/n]  weight_scale [rows, groups]  weight_zero_point [rows/n, groups],
//                                                                                  or I8 [rows, groups], or none
//   GPTQ                qweight [cols/n, rows]        scales [groups, rows]        qzeros [groups, rows/n]
//   AWQ, 4 bits         qweight [cols, rows/8]        scales [groups, rows]        qzeros [groups, rows/8]
//
// A word of 32 bits holds n = 8 levels of 4 bits, or 4 of 8, or as many zero points, that are neighbours along the axis
// that is divided by n. AWQ stores them in the order 0 2 4 6 1 3 5 7. A number is scale * (level - zero point). GPTQ's
// first format stores its zero points one too low. Absent zero points are the middle, 8 or 128. The groups of the file
// may each be several of Weft's.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "kernels/error.h"
#include "kernels/tensor.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/float_types.h"
#include "runtime/stored/stored_matrix.h"

namespace weft::runtime {
namespace {

using policy::Quantisation;
using Packing = Quantisation::Packing;

constexpr std::int64_t kColumns = 8;                                    // whole rows of tiles have multiples of it
constexpr std::array<std::size_t, 8> kAwqHalf{0, 4, 1, 5, 2, 6, 3, 7};  // half bytes of a word, by column

/// Levels of so many bits in words.
struct Words {
  int bits;

  std::int64_t of_word() const { return 32 / bits; }
  std::int64_t count(std::int64_t levels) const { return (levels + of_word() - 1) / of_word(); }
  std::uint32_t top() const { return (1U << bits) - 1; }  // the highest level
  std::uint32_t middle() const { return 1U << (bits - 1); }
  std::uint32_t ones() const { return ~0U / top(); }  // 1 in each level
  std::uint32_t level(std::uint32_t word, std::size_t place) const {
    return word >> (static_cast<std::size_t>(bits) * place) & top();
  }
};

struct Names {
  std::string levels, scales, zeros, order, shape;
};
Names names_of(Packing packing, const std::string& name) {
  const std::string stem = module_of(name);
  if (packing == Packing::compressed_tensors)
    return {stem + ".weight_packed", stem + ".weight_scale", stem + ".weight_zero_point", stem + ".weight_g_idx",
            stem + ".weight_shape"};
  return {stem + ".qweight", stem + ".scales", stem + ".qzeros", packing == Packing::awq ? "" : stem + ".g_idx", ""};
}

/// Half byte k of word i becomes half byte i of word k.
void transpose(std::array<std::uint32_t, 8>& words) {
  constexpr std::array<std::pair<std::size_t, std::uint32_t>, 3> steps{
      {{4, 0x0000FFFF}, {2, 0x00FF00FF}, {1, 0x0F0F0F0F}}};
  for (const auto& [apart, low] : steps)
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (i & apart) continue;
      const std::size_t bits = 4 * apart;
      const std::uint32_t swapped = (words[i] >> bits ^ words[i + apart]) & low;
      words[i] ^= swapped << bits;
      words[i + apart] ^= swapped;
    }
}

template <class T> std::vector<T> as(const std::vector<std::byte>& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return values;
}

/// Some rows, in one order whichever format they come from.
struct WordRows {
  std::vector<std::uint32_t> words;  // [rows, cols / of_word()], the first level in the lowest bits
  std::vector<float> scales;         // [rows, groups]
  std::vector<std::uint8_t> zeros;   // [rows, groups]
};

class PackedWords : public StoredMatrix {
 public:
  PackedWords(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name, std::int64_t rows,
              std::int64_t cols);
  bool is_by_rows() const override { return packing_ == Packing::compressed_tensors; }
  void check() const override;
  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override;
  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override;

 private:
  WordRows read(std::int64_t first_row, std::int64_t rows) const;
  std::vector<std::byte> read_block(const TensorInfo& tensor, std::int64_t first_row, std::int64_t rows,
                                    std::int64_t first_col, std::int64_t cols) const;
  void read_words(std::int64_t first_row, std::int64_t rows, WordRows& to) const;
  void read_scales(std::int64_t first_row, std::int64_t rows, WordRows& to) const;
  void read_zeros(std::int64_t first_row, std::int64_t rows, WordRows& to) const;
  /// The groups of a row in the file, and that of them which one of Weft's is part of.
  std::int64_t stored_groups() const { return whole_rows_ ? 1 : (groups() + repeats_ - 1) / repeats_; }
  std::int64_t stored_group(std::int64_t group) const { return whole_rows_ ? 0 : group / repeats_; }
  [[noreturn]] void refuse(const TensorInfo& tensor, const std::string& what) const {
    refuse_tensor(*checkpoint_, tensor, what);
  }

  const Checkpoint* checkpoint_;
  Packing packing_;
  Words in_words_;
  int group_, repeats_;
  bool whole_rows_, whole_words_;
  const TensorInfo *levels_, *scales_;
  const TensorInfo *zeros_ = nullptr, *order_ = nullptr, *shape_ = nullptr;  // null if there is none
};

bool has_words(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name) {
  const bool words = how.packing == Packing::compressed_tensors || how.packing == Packing::gptq ||
                     how.packing == Packing::gptq_v2 || how.packing == Packing::awq;
  const bool bits = how.dtype == DType::i4 || (how.dtype == DType::i8 && how.packing != Packing::awq);
  return words && bits && name.ends_with(".weight") && checkpoint.find(names_of(how.packing, name).levels);
}

std::vector<TensorNeed> needs_of_words(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name,
                                       std::int64_t rows, std::int64_t cols) {
  const Names names = names_of(how.packing, name);
  const bool by_rows = how.packing == Packing::compressed_tensors;
  const Words in_words{bits_of(how.dtype)};
  if (cols % kColumns != 0 || (!by_rows && rows % in_words.of_word() != 0))
    throw CheckpointError(Fault::bad_shape, "tensor " + in_quotes(names.levels) + ": a matrix of [" +
                                                std::to_string(rows) + ", " + std::to_string(cols) +
                                                "] does not fill words of 8 levels, so it is not read quantised");
  const std::int64_t group = std::int64_t{how.group} * how.repeats;
  const std::int64_t groups = how.whole_rows ? 1 : (cols + group - 1) / group;
  const std::int64_t col_words = in_words.count(cols), row_words = in_words.count(rows);
  std::vector<TensorNeed> needs;
  const auto need = [&](const std::string& tensor, std::vector<std::int64_t> shape, std::vector<std::string> dtypes) {
    needs.push_back({tensor, std::move(shape), std::move(dtypes), true});
  };
  const std::vector<std::string> words{"I32"};
  if (how.packing == Packing::awq) need(names.levels, {cols, row_words}, words);
  else if (by_rows) need(names.levels, {rows, col_words}, words);
  else need(names.levels, {col_words, rows}, words);
  need(names.scales, by_rows ? std::vector{rows, groups} : std::vector{groups, rows}, {});
  if (!by_rows) {
    need(names.zeros, {groups, row_words}, words);
  } else if (const TensorInfo* const zeros = checkpoint.find(names.zeros); zeros || how.zero_points) {
    const bool bytes = zeros && zeros->dtype == "I8";  // older writers store them so
    need(names.zeros, {bytes ? rows : row_words, groups}, bytes ? std::vector<std::string>{"I8"} : words);
  }
  if (by_rows) need(names.shape, {2}, {"I64", "I32"});
  if (how.packing != Packing::awq && (how.reordered || checkpoint.find(names.order))) need(names.order, {cols}, words);
  return needs;
}

PackedWords::PackedWords(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name,
                         std::int64_t rows, std::int64_t cols)
    : StoredMatrix(name, rows, cols, {.type = how.dtype, .group = how.group, .name = name_of(how.packing)}),
      checkpoint_(&checkpoint), packing_(how.packing), in_words_{bits_of(how.dtype)}, group_(how.group),
      repeats_(how.repeats), whole_rows_(how.whole_rows), whole_words_(how.whole_words) {
  const Names names = names_of(packing_, name);
  levels_ = checkpoint.find(names.levels), scales_ = checkpoint.find(names.scales);
  zeros_ = checkpoint.find(names.zeros);
  order_ = names.order.empty() ? nullptr : checkpoint.find(names.order);
  shape_ = names.shape.empty() ? nullptr : checkpoint.find(names.shape);
}

void PackedWords::check() const {
  if (shape_) {
    std::vector<std::int64_t> shape;
    const std::vector<std::byte> bytes = read_block(*shape_, 0, 1, 0, 2);
    if (shape_->dtype == "I64") shape = as<std::int64_t>(bytes);
    else
      for (const std::int32_t size : as<std::int32_t>(bytes)) shape.push_back(size);
    if (shape[0] != rows() || shape[1] != cols())
      refuse(*shape_, "says [" + std::to_string(shape[0]) + ", " + std::to_string(shape[1]) + "], wanted [" +
                          std::to_string(rows()) + ", " + std::to_string(cols()) + "]");
  }
  if (!order_) return;
  const auto order = as<std::int32_t>(read_block(*order_, 0, 1, 0, cols()));
  for (std::int64_t i = 0; i < cols(); ++i)
    if (const std::int64_t group = stored_group(i / group_); order[static_cast<std::size_t>(i)] != group)
      refuse(*order_, "column " + std::to_string(i) + " is in group " +
                          std::to_string(order[static_cast<std::size_t>(i)]) + ", wanted " + std::to_string(group) +
                          ": columns in an order of their own (desc_act, actorder) are not read; quantise without it, "
                          "or use the unquantized model with --weight-dtype int4");
}

WordRows PackedWords::read(std::int64_t first_row, std::int64_t rows) const {
  WordRows found;
  read_words(first_row, rows, found);
  read_scales(first_row, rows, found);
  read_zeros(first_row, rows, found);
  return found;
}

void PackedWords::read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const {
  WordRows from = read(first_row, rows);
  const auto of_word = static_cast<std::size_t>(in_words_.of_word());
  to.levels.resize(from.words.size() * of_word);
  for (std::size_t i = 0; i < from.words.size(); ++i)
    for (std::size_t place = 0; place < of_word; ++place)
      to.levels[i * of_word + place] = static_cast<std::uint8_t>(in_words_.level(from.words[i], place));
  to.minima.resize(from.scales.size());
  for (std::size_t i = 0; i < from.scales.size(); ++i)
    to.minima[i] = static_cast<float>(-int{from.zeros[i]}) * from.scales[i];
  to.scales = std::move(from.scales);
}

/// Reads rows and columns of a tensor [.., cols]: row by row, or at once if these are all columns.
std::vector<std::byte> PackedWords::read_block(const TensorInfo& tensor, std::int64_t first_row, std::int64_t rows,
                                               std::int64_t first_col, std::int64_t cols) const {
  const std::int64_t width = tensor.shape.back();
  std::uint64_t elements = 1;
  for (const std::int64_t size : tensor.shape) elements *= static_cast<std::uint64_t>(size);
  const std::uint64_t element = tensor.bytes / elements;
  const auto bytes = [&](std::int64_t count) { return static_cast<std::size_t>(count) * element; };
  std::vector<std::byte> block(bytes(rows * cols));
  const std::span<std::byte> all(block);
  if (cols == width) {
    checkpoint_->read_range(tensor.file, tensor.offset + bytes(first_row * width), all);
  } else {
    for (std::int64_t row = 0; row < rows; ++row)
      checkpoint_->read_range(tensor.file, tensor.offset + bytes((first_row + row) * width + first_col),
                              all.subspan(bytes(row * cols), bytes(cols)));
  }
  return block;
}

void PackedWords::read_words(std::int64_t first_row, std::int64_t rows, WordRows& to) const {
  const std::int64_t width = cols() / in_words_.of_word();
  if (packing_ == Packing::compressed_tensors) {
    to.words = as<std::uint32_t>(read_block(*levels_, first_row, rows, 0, width));
    return;
  }
  to.words.resize(static_cast<std::size_t>(rows * width));
  const auto place = [&](std::int64_t row, std::int64_t word) { return static_cast<std::size_t>(row * width + word); };
  if (packing_ != Packing::awq) {
    const auto block = as<std::uint32_t>(read_block(*levels_, 0, width, first_row, rows));
    constexpr std::int64_t kTile = 16;
    for (std::int64_t top = 0; top < rows; top += kTile)
      for (std::int64_t word = 0; word < width; ++word)
        for (std::int64_t row = top; row < std::min(rows, top + kTile); ++row)
          to.words[place(row, word)] = block[static_cast<std::size_t>(word * rows + row)];
    return;
  }
  const std::int64_t from = first_row / in_words_.of_word(), across = in_words_.count(first_row + rows) - from;
  const auto block = as<std::uint32_t>(read_block(*levels_, 0, cols(), from, across));
  std::array<std::uint32_t, 8> eight{};
  for (std::int64_t column = 0; column < across; ++column)
    for (std::int64_t word = 0; word < width; ++word) {
      for (std::int64_t i = 0; i < in_words_.of_word(); ++i)
        eight[static_cast<std::size_t>(i)] =
            block[static_cast<std::size_t>((word * in_words_.of_word() + i) * across + column)];
      transpose(eight);
      for (std::int64_t i = 0; i < in_words_.of_word(); ++i) {
        const std::int64_t row = (from + column) * in_words_.of_word() + i - first_row;
        if (row >= 0 && row < rows) to.words[place(row, word)] = eight[kAwqHalf[static_cast<std::size_t>(i)]];
      }
    }
}

void PackedWords::read_scales(std::int64_t first_row, std::int64_t rows, WordRows& to) const {
  const std::int64_t stored = stored_groups();
  const bool by_rows = packing_ == Packing::compressed_tensors;
  const std::vector<float> scales =
      widened(weight_dtype(*scales_), by_rows ? read_block(*scales_, first_row, rows, 0, stored)
                                              : read_block(*scales_, 0, stored, first_row, rows));
  to.scales.clear();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups(); ++g) {
      const std::int64_t group = stored_group(g);
      const float scale = scales[static_cast<std::size_t>(by_rows ? row * stored + group : group * rows + row)];
      if (!std::isfinite(scale))
        refuse(*scales_, "the scale of row " + std::to_string(first_row + row) + ", group " + std::to_string(group) +
                             " is not finite");
      to.scales.push_back(scale);
    }
}

void PackedWords::read_zeros(std::int64_t first_row, std::int64_t rows, WordRows& to) const {
  const std::int64_t stored = stored_groups();
  to.zeros.assign(static_cast<std::size_t>(rows * groups()), static_cast<std::uint8_t>(in_words_.middle()));
  if (!zeros_) return;
  const auto out_of_range = [&](std::int64_t row, std::int64_t group, const std::string& what) {
    refuse(*zeros_, "the zero point of row " + std::to_string(first_row + row) + ", group " + std::to_string(group) +
                        " is out of range: " + what);
  };
  const auto set = [&](std::int64_t row, std::int64_t g, std::uint32_t zero) {
    to.zeros[static_cast<std::size_t>(row * groups() + g)] = static_cast<std::uint8_t>(zero);
  };
  const bool by_rows = packing_ == Packing::compressed_tensors, bytes = zeros_->dtype == "I8";
  const std::int64_t of_word = in_words_.of_word();
  const std::int64_t from = first_row / of_word, across = in_words_.count(first_row + rows) - from;
  const std::vector<std::byte> block = bytes     ? read_block(*zeros_, first_row, rows, 0, stored)
                                       : by_rows ? read_block(*zeros_, from, across, 0, stored)
                                                 : read_block(*zeros_, 0, stored, from, across);
  const std::vector<std::uint32_t> words = bytes ? std::vector<std::uint32_t>{} : as<std::uint32_t>(block);
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t g = 0; g < groups(); ++g) {
      const std::int64_t group = stored_group(g);
      if (bytes) {
        const int zero = static_cast<std::int8_t>(block[static_cast<std::size_t>(row * stored + group)]);
        const int middle = static_cast<int>(in_words_.middle());
        if (zero < -middle || zero >= middle)
          out_of_range(
              row, group,
              std::to_string(zero) + ", wanted " + std::to_string(-middle) + " to " + std::to_string(middle - 1));
        set(row, g, static_cast<std::uint32_t>(zero + middle));
        continue;
      }
      const std::int64_t word = (first_row + row) / of_word - from;
      const auto place = static_cast<std::size_t>((first_row + row) % of_word);
      const std::uint32_t all =
          words[static_cast<std::size_t>(by_rows ? word * stored + group : group * across + word)];
      if (packing_ == Packing::awq) {
        set(row, g, in_words_.level(all, kAwqHalf[place]));
      } else if (packing_ != Packing::gptq) {
        set(row, g, in_words_.level(all, place));
      } else {
        if (!whole_words_ && in_words_.level(all, place) == in_words_.top())
          out_of_range(row, group,
                       std::to_string(in_words_.top()) + " in the first format of GPTQ is " +
                           std::to_string(in_words_.top() + 1) +
                           " to some readers and 0 to others; save the checkpoint with checkpoint_format gptq_v2");
        set(row, g, in_words_.level(all + in_words_.ones(), place));
      }
    }
}

void PackedWords::read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const {
  const WordRows from = read(first_row, rows);
  const auto width = static_cast<std::size_t>(cols()), per_row = static_cast<std::size_t>(groups()),
             of_group = static_cast<std::size_t>(group_);
  const auto of_word = static_cast<std::size_t>(in_words_.of_word());
  to.resize(from.words.size() * of_word);
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::size_t row = i / width, group = row * per_row + i % width / of_group;
    const auto level = static_cast<int>(in_words_.level(from.words[i / of_word], i % of_word));
    to[i] = static_cast<float>(level - from.zeros[group]) * from.scales[group];
  }
}

std::unique_ptr<StoredMatrix> open_words(const Checkpoint& checkpoint, const Quantisation& how, const std::string& name,
                                         std::int64_t rows, std::int64_t cols) {
  return std::make_unique<PackedWords>(checkpoint, how, name, rows, cols);
}

}  // namespace

const MatrixFormat kPackedWords{has_words, needs_of_words, open_words};

}  // namespace weft::runtime
