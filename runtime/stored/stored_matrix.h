// runtime/stored/stored_matrix.h: a matrix that a checkpoint does not hold as plain rows of floats: as levels with
// scales, in one tensor or several, or with its rows in another order. Each format is a row of a table and a file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policy/model/quantisation.h"
#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// The form of a matrix's numbers in its file.
struct StoredForm {
  DType type = DType::f32;              ///< i4, i8 or f8 if there are levels; else the float type
  int group = 1;                        ///< numbers of a row that share a scale
  LevelTable table = LevelTable::even;  ///< the meaning of i4's levels
  /// Scales and minima are numbers of fp16, unless they are out of its range. If not, they are rounded.
  bool exact = false;
  std::string name = {};  ///< a name for people: "GPTQ", "Q4_K"
};

/// Some rows as levels: a number is scale * level + minimum, or with a table scale * what the level stands for +
/// minimum. Levels of f8 are floats, which have no minimum.
struct StoredLevels {
  std::vector<std::uint8_t> levels;   ///< [rows, cols]
  std::vector<float> scales, minima;  ///< [rows, groups of a row]; of f8 only scales
};

class StoredMatrix {
 public:
  virtual ~StoredMatrix() = default;
  StoredMatrix(const StoredMatrix&) = delete;
  StoredMatrix& operator=(const StoredMatrix&) = delete;

  const std::string& name() const { return name_; }  ///< the name that the tensor would have
  std::int64_t rows() const { return rows_; }
  std::int64_t cols() const { return cols_; }
  const StoredForm& form() const { return form_; }
  bool has_levels() const { return is_quantised(form_.type); }
  std::int64_t groups() const { return (cols_ + form_.group - 1) / form_.group; }  ///< groups in a row
  /// Whether the bytes of a row lie together, so that few rows can be read at a time at little cost.
  virtual bool is_by_rows() const { return true; }

  /// Reads the small tensors that describe the layout of the others. Throws DataError if they say something that is not
  /// read, or IoError.
  virtual void check() const {}
  /// Reads some rows. Throws DataError if a scale is not finite or something is out of range, or IoError. The first
  /// needs has_levels(). Any thread may read.
  virtual void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const = 0;
  /// Computes the numbers [rows, cols] in fp32.
  virtual void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const = 0;

 protected:
  StoredMatrix(std::string name, std::int64_t rows, std::int64_t cols, StoredForm form)
      : name_(std::move(name)), rows_(rows), cols_(cols), form_(std::move(form)) {}

 private:
  std::string name_;
  std::int64_t rows_, cols_;
  StoredForm form_;
};

/// A way to store matrices. `name` is that which the tensor would have, such as "...q_proj.weight".
struct MatrixFormat {
  /// Whether the checkpoint holds the tensor so.
  bool (*is_in)(const Checkpoint& checkpoint, const policy::Quantisation& how, const std::string& name);
  /// If is_in(): the tensors that the checkpoint must hold for a matrix [rows, cols], for Checkpoint::demand().
  std::vector<TensorNeed> (*needs)(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                   const std::string& name, std::int64_t rows, std::int64_t cols);
  /// `checkpoint` must hold what needs() lists and outlive the matrix. Reads at most a few bytes that say how it lies.
  std::unique_ptr<StoredMatrix> (*open)(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                        const std::string& name, std::int64_t rows, std::int64_t cols);
};

extern const MatrixFormat kPackedWords;  ///< packed_words.cc: compressed-tensors, GPTQ, AWQ
extern const MatrixFormat kBlocks;       ///< block_matrix.cc: the blocks of GGUF files, and rows in another order
extern const MatrixFormat kFloat8;       ///< float8_matrix.cc: numbers of 8 bits with scales
extern const MatrixFormat kMxfp4;        ///< float4_matrix.cc: E2M1 in groups of 32 with scales of E8M0
extern const MatrixFormat kNvfp4;        ///< float4_matrix.cc: E2M1 in groups of 16 with scales of E4M3
extern const MatrixFormat kTableLevels;  ///< bitsandbytes_matrix.cc: NF4 and FP4
extern const MatrixFormat kSignedBytes;  ///< bitsandbytes_matrix.cc: int8

/// The format in which the checkpoint holds the tensor; null if it holds it as plain rows, or not at all.
const MatrixFormat* matrix_format(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                  const std::string& name);

/// "a.b.q_proj" of "a.b.q_proj.weight"; `name` must end so.
std::string module_of(const std::string& name);
/// Throws a DataError that names the file and the tensor.
[[noreturn]] void refuse_tensor(const Checkpoint& checkpoint, const TensorInfo& tensor, const std::string& what);
/// Reads elements [first, first + count) of a tensor that is row-major and has the float type of fp32, fp16 or bf16.
std::vector<float> read_floats(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first,
                               std::int64_t count);
/// The same of a tensor of bytes.
std::vector<std::byte> read_bytes(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first,
                                  std::int64_t count);

}  // namespace weft::runtime
