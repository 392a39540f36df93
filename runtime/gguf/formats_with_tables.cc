// runtime/gguf/formats_with_tables.cc: blocks of 32 levels of 4 bits that stand for the numbers of a table
// (kernels/quantised.h). Levels and groups stay those of the file, exactly.
#include <algorithm>
#include <array>

#include "kernels/small_floats.h"
#include "runtime/gguf/block_reader.h"

namespace weft::runtime {
namespace {

void iq4_nl(const std::byte* block, const BlockParts& to) {
  split_halves(block + 2, 16, to.levels);
  around(fp16_at(block), 128, to);
}

/// A block of zeros has the smallest scale, which fp16 does not hold.
void mxfp4(const std::byte* block, const BlockParts& to) {
  constexpr int kZero = 16;
  split_halves(block + 1, 16, to.levels);
  const bool zeros = std::all_of(to.levels, to.levels + 32, [](std::uint8_t level) { return kTwiceE2M1[level] == 0; });
  around(zeros ? 0 : half_of_e8m0(byte_at(block, 0)), kZero, to);
}

constexpr BlockFormat with_table(std::uint32_t id, const char* name, int bytes, LevelTable table,
                                 void (*read)(const std::byte*, const BlockParts&)) {
  return {.id = id,
          .name = name,
          .numbers = 32,
          .bytes = bytes,
          .type = DType::i4,
          .group = 32,
          .table = table,
          .read = read};
}
constexpr std::array kFormatsWithTables{with_table(20, "IQ4_NL", 18, LevelTable::iq4_nl, iq4_nl),
                                        with_table(39, "MXFP4", 17, LevelTable::e2m1, mxfp4)};

}  // namespace

std::span<const BlockFormat> formats_with_tables() { return kFormatsWithTables; }

}  // namespace weft::runtime
