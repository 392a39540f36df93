// runtime/checkpoint/quantised_matrix.h: a matrix of 4 bits as others store it, in several tensors of a checkpoint:
//
//                         levels                                scales            zero points
//   compressed-tensors    weight_packed [rows, cols/8]          weight_scale      weight_zero_point [rows/8, groups],
//   or
//                                                               [rows, groups]    none, or I8 [rows, groups]
//   GPTQ                  qweight [cols/8, rows]                scales            qzeros [groups, rows/8]
//   AWQ                   qweight [cols, rows/8]                [groups, rows]    qzeros [groups, rows/8]
//
// A word of 32 bits holds eight levels, or zero points, that follow each other along the axis that is divided by 8; in
// AWQ in the order 0 2 4 6 1 3 5 7. A number is scale * (level - zero point); zero points of GPTQ's first format are
// stored one too low, absent ones are 8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/quantisation.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// Some rows of such a matrix, in one order whoever wrote it.
struct QuantisedRows {
  std::vector<std::uint32_t> words;  ///< [rows, cols / 8]: 8 levels each, the first in its lowest bits
  std::vector<float> scales;         ///< [rows, groups]
  std::vector<std::uint8_t> zeros;   ///< [rows, groups], from 0 to 15
};

class QuantisedMatrix {
 public:
  /// Whether the checkpoint holds levels of the tensor that would be `name`, which ends in ".weight".
  static bool is_in(const Checkpoint& checkpoint, const policy::Quantisation& how, const std::string& name);
  /// Where they are: what the checkpoint must hold of a matrix [rows, cols], for Checkpoint::demand().
  static std::vector<TensorNeed> needs(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                       const std::string& name, std::int64_t rows, std::int64_t cols);

  /// `checkpoint` has what needs() says and outlives this. Reads nothing.
  QuantisedMatrix(const Checkpoint& checkpoint, const policy::Quantisation& how, const std::string& name,
                  std::int64_t rows, std::int64_t cols);

  const std::string& name() const { return name_; }  ///< that the tensor would have
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  int group() const { return group_; }
  std::int64_t groups() const { return (cols_ + group_ - 1) / group_; }  ///< of a row

  /// Reads the small tensors that say how the others lie. Throws DataError where columns are in groups of an order of
  /// their own, or a shape is another; IoError.
  void check() const;
  /// Throws DataError where a zero point is out of range or a scale is not finite; IoError.
  void read(std::int64_t first_row, std::int64_t rows, QuantisedRows& to) const;
  /// The numbers [rows, cols] that read() means, in fp32.
  void dequantise(const QuantisedRows& from, std::vector<float>& to) const;

 private:
  std::vector<std::byte> read_block(const TensorInfo& tensor, std::int64_t first_row, std::int64_t rows,
                                    std::int64_t first_col, std::int64_t cols) const;
  void read_levels(std::int64_t first_row, std::int64_t rows, QuantisedRows& to) const;
  void read_scales(std::int64_t first_row, std::int64_t rows, QuantisedRows& to) const;
  void read_zeros(std::int64_t first_row, std::int64_t rows, QuantisedRows& to) const;
  [[noreturn]] void refuse(const TensorInfo& tensor, const std::string& what) const;

  const Checkpoint* checkpoint_;
  policy::Quantisation::Packing packing_;
  std::string name_;
  std::int64_t rows_, cols_;
  int group_;
  bool whole_rows_, whole_words_;
  const TensorInfo *levels_, *scales_;
  const TensorInfo *zeros_ = nullptr, *order_ = nullptr, *shape_ = nullptr;  // null: there is none
};

}  // namespace weft::runtime
