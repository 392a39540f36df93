// runtime/checkpoint/stored_matrix.cc: the table of formats.
#include "runtime/checkpoint/stored_matrix.h"

#include <array>

namespace weft::runtime {

const MatrixFormat* matrix_format(const Checkpoint& checkpoint, const policy::Quantisation& how,
                                  const std::string& name) {
  static constexpr std::array all{&kPackedWords, &kBlocks, &kFloat8};
  for (const MatrixFormat* const format : all)
    if (format->is_in(checkpoint, how, name)) return format;
  return nullptr;
}

}  // namespace weft::runtime
