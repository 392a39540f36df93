// runtime/gguf/block_format.h: the types in which a GGUF file stores numbers, as a table. A type cuts a row into blocks
// of equal size, each with its levels and scales; the types of floats have blocks of one number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "kernels/tensor.h"

namespace weft::runtime {

/// The parts of one block. A number is scale * level, or what the level stands for, + minimum, by one fused
/// multiply-add in fp32.
struct BlockParts {
  std::uint8_t* levels;    ///< [numbers of the block]
  float *scales, *minima;  ///< [groups of the block]
};

struct BlockFormat {
  std::uint32_t id;                     ///< the number of the type in files
  const char* name;                     ///< "Q8_0"
  int numbers, bytes;                   ///< a block has so many
  DType type;                           ///< i4 or i8 if there are levels; else the float type
  int group = 1;                        ///< numbers that share a scale
  LevelTable table = LevelTable::even;  ///< the meaning of i4's levels
  bool exact = true;                    ///< scales and minima are numbers of fp16, if they are in its range
  std::optional<int> zero = {};         ///< the level of 0, which it stays where scales are rounded; none: any, or none
  void (*read)(const std::byte* block, const BlockParts& to) = nullptr;  ///< null for floats

  bool is_float() const { return numbers == 1; }
};

// The formats that Weft reads, a list for each source.
std::span<const BlockFormat> float_formats();        ///< F32, F16, BF16
std::span<const BlockFormat> formats_of_32();        ///< blocks of 32 with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
std::span<const BlockFormat> formats_of_256();       ///< blocks of 256: Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TQ1_0, TQ2_0
std::span<const BlockFormat> formats_with_tables();  ///< levels for uneven numbers: IQ4_NL, IQ4_XS, MXFP4, NVFP4

/// Returns null if Weft does not read the type.
const BlockFormat* block_format(std::uint32_t id);
const BlockFormat* block_format(const std::string& name);
/// The name of any type that GGUF knows, such as "IQ2_XS"; "type 99" for another.
std::string block_format_name(std::uint32_t id);
/// The names of the formats that Weft reads: "F32, F16, ...".
std::string block_format_names();

}  // namespace weft::runtime
