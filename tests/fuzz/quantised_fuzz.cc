// tests/fuzz/quantised_fuzz.cc: two bytes that choose a format and a shape, then a safetensors file: its matrix `m` is
// refused by a DataError, or its levels are read, and its numbers, the same in parts as at once.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <utility>

#include "kernels/error.h"
#include "kernels/quantised.h"
#include "runtime/stored/stored_matrix.h"
#include "tests/fuzz/files.h"

namespace {

using namespace weft;

using Packing = policy::Quantisation::Packing;
constexpr std::array<std::pair<Packing, DType>, 11> kPackings{{{Packing::compressed_tensors, DType::i4},
                                                               {Packing::gptq, DType::i4},
                                                               {Packing::gptq_v2, DType::i4},
                                                               {Packing::awq, DType::i4},
                                                               {Packing::mxfp4, DType::i4},
                                                               {Packing::nvfp4, DType::i4},
                                                               {Packing::bitsandbytes, DType::i4},
                                                               {Packing::bitsandbytes, DType::i8},
                                                               {Packing::compressed_tensors, DType::i8},
                                                               {Packing::gptq, DType::i8},
                                                               {Packing::gptq_v2, DType::i8}}};

void read_matrix(const runtime::Checkpoint& checkpoint, const policy::Quantisation& how, std::int64_t rows,
                 std::int64_t cols) {
  const std::string name = "m.weight";
  const runtime::MatrixFormat* const format = runtime::matrix_format(checkpoint, how, name);
  if (!format) return;
  checkpoint.demand(format->needs(checkpoint, how, name, rows, cols));
  const auto matrix = format->open(checkpoint, how, name, rows, cols);
  matrix->check();
  runtime::StoredLevels levels;
  std::vector<float> numbers, some;
  matrix->read_numbers(0, rows, numbers);
  if (numbers.size() != static_cast<std::size_t>(rows * cols)) std::abort();
  if (matrix->has_levels()) matrix->read_levels(0, rows, levels);
  for (const std::uint8_t level : levels.levels)
    if (level > levels_of(matrix->form().type)) std::abort();
  for (std::int64_t row = 0; row < rows; row += 5) {
    matrix->read_numbers(row, std::min<std::int64_t>(5, rows - row), some);
    for (std::size_t i = 0; i < some.size(); ++i)
      if (some[i] != numbers[static_cast<std::size_t>(row * cols) + i]) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const int format = data[0], shape = data[1];
  const auto [packing, dtype] = kPackings[static_cast<std::size_t>(format) % kPackings.size()];
  const policy::Quantisation how{.packing = packing,
                                 .dtype = dtype,
                                 .group = 32 << (shape % 3),
                                 .repeats = 1 + shape / 48 % 3,
                                 .whole_rows = (format & 16) != 0,
                                 .reordered = (format & 32) != 0,
                                 .zero_points = (format & 64) != 0,
                                 .whole_words = (format & 128) != 0};
  try {
    read_matrix(runtime::Checkpoint::open_file(fuzz::file_of("q", fuzz::text_of(data + 2, size - 2))), how,
                8 * (1 + shape / 3 % 4), 32 * (1 + shape / 12 % 4));
  } catch (const DataError&) {}
  return 0;
}
