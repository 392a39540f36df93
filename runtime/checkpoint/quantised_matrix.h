// runtime/checkpoint/quantised_matrix.h: a matrix of 4 bits as others store it, in several tensors of a checkpoint:
//
//                       levels                        scales                       zero points
//   compressed-tensors  weight_packed [rows, cols/8]  weight_scale [rows, groups]  weight_zero_point [rows/8, groups],
//                                                                                  or I8 [rows, groups], or none
//   GPTQ                qweight [cols/8, rows]        scales [groups, rows]        qzeros [groups, rows/8]
//   AWQ                 qweight [cols, rows/8]        scales [groups, rows]        qzeros [groups, rows/8]
//
// A word of 32 bits holds eight levels, or zero points, that are neighbours along the axis that is divided by 8. AWQ
// stores them in the order 0 2 4 6 1 3 5 7. A number is scale * (level - zero point). GPTQ's first format stores its
// zero points one too low. Absent zero points are 8.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "policy/model/quantisation.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// Some rows of such a matrix, in one order whichever format they come from.
struct QuantisedRows {
  std::vector<std::uint32_t> words;  ///< [rows, cols / 8]: 8 levels each, the first in the lowest bits
  std::vector<float> scales;         ///< [rows, groups]
  std::vector<std::uint8_t> zeros;   ///< [rows, groups], from 0 to 15
};

class QuantisedMatrix {
 public:
  /// Whether the checkpoint holds levels for the tensor that would be called `name`, which ends in ".weight".
  static bool is_in(const Checkpoint& checkpoint, const policy::Quantisation& how, const std::string& name);
  /// If is_in(): the tensors that the checkpoint must hold for a matrix [rows, cols], for Checkpoint::demand().
  static std::vector<TensorNeed> needs(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                       const std::string& name, std::int64_t rows, std::int64_t cols);

  /// `checkpoint` must hold what needs() lists and outlive this object. Reads nothing.
  QuantisedMatrix(const Checkpoint& checkpoint, const policy::Quantisation& how, const std::string& name,
                  std::int64_t rows, std::int64_t cols);

  const std::string& name() const { return name_; }  ///< the name that the tensor would have
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  int group() const { return group_; }
  std::int64_t groups() const { return (cols_ + group_ - 1) / group_; }  ///< groups in a row

  /// Reads the small tensors that describe the layout of the others. Throws DataError if columns are grouped in an
  /// order of their own or a shape differs, or IoError.
  void check() const;
  /// Reads some rows. Throws DataError if a zero point is out of range or a scale is not finite, or IoError.
  void read(std::int64_t first_row, std::int64_t rows, QuantisedRows& to) const;
  /// Computes the numbers [rows, cols] that these rows stand for, in fp32.
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
  const TensorInfo *zeros_ = nullptr, *order_ = nullptr, *shape_ = nullptr;  // null if there is none
};

}  // namespace weft::runtime
