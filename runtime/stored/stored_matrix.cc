// runtime/stored/stored_matrix.cc: the table of formats, and what they share.
#include "runtime/stored/stored_matrix.h"

#include <array>

#include "kernels/error.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/float_types.h"

namespace weft::runtime {

const MatrixFormat* matrix_format(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                  const std::string& name) {
  static constexpr std::array all{&kPackedWords, &kBlocks, &kFloat8, &kMxfp4, &kNvfp4, &kTableLevels, &kSignedBytes};
  for (const MatrixFormat* const format : all)
    if (format->is_in(checkpoint, how, name)) return format;
  return nullptr;
}

std::string module_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

void refuse_tensor(const Checkpoint& checkpoint, const TensorInfo& tensor, const std::string& what) {
  throw DataError(checkpoint.files()[tensor.file].string() + ": tensor " + in_quotes(tensor.name) + ": " + what);
}

std::vector<float> read_floats(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first,
                               std::int64_t count) {
  const DType type = weight_dtype(tensor);
  std::vector<std::byte> bytes(static_cast<std::size_t>(bytes_of(type, count)));
  checkpoint.read_range(tensor.file, tensor.offset + bytes_of(type, first), bytes);
  return widened(type, bytes);
}

std::vector<std::byte> read_bytes(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first,
                                  std::int64_t count) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  checkpoint.read_range(tensor.file, tensor.offset + static_cast<std::uint64_t>(first), bytes);
  return bytes;
}

}  // namespace weft::runtime
