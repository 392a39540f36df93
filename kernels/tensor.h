// kernels/tensor.h: number formats, and views of matrices, which own nothing.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace weft {

/// i8 and i4 are quantised: unsigned levels, which mean numbers only together with their group's scale and minimum
/// (kernels/quantised.h). Two levels of i4 share a byte. f8 is quantised too: floats of 8 bits (E4M3), which mean
/// numbers only together with their group's scale.
enum class DType : std::uint8_t { f32, f16, bf16, i32, i8, i4, f8 };
constexpr int kDTypes = 7;

inline constexpr int kFloat8Group = 128;  ///< numbers of a row that share a scale in f8
/// The same of the other quantised types.
inline constexpr int kGroupSizeKinds[] = {16, 32, 64, 128};
constexpr bool is_group_size(std::int64_t group) {
  for (const int size : kGroupSizeKinds)
    if (group == size) return true;
  return false;
}
inline constexpr const char* kGroupSizes = "16, 32, 64 or 128";

constexpr bool is_quantised(DType dtype) { return dtype == DType::i8 || dtype == DType::i4 || dtype == DType::f8; }
constexpr bool is_float(DType dtype) { return !is_quantised(dtype) && dtype != DType::i32; }
constexpr int bits_of(DType dtype) {
  switch (dtype) {
    case DType::f16:
    case DType::bf16: return 16;
    case DType::i8:
    case DType::f8: return 8;
    case DType::i4: return 4;
    default: return 32;
  }
}
/// Whole bytes of one number. It is 0 for i4: call bytes_of() if the type may be i4.
constexpr std::size_t size_of(DType dtype) { return static_cast<std::size_t>(bits_of(dtype)) / 8; }
/// Bytes of `elements` numbers next to each other, without the scales of quantised ones.
constexpr std::size_t bytes_of(DType dtype, std::int64_t elements) {
  return (static_cast<std::size_t>(elements) * static_cast<std::size_t>(bits_of(dtype)) + 7) / 8;
}
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::i32: return "int32";
    case DType::i8: return "int8";
    case DType::i4: return "int4";
    case DType::f8: return "float8";
  }
  return "?";
}

/// The meaning of i4's 16 levels: themselves, or levels of i8 by a table of 16 (level_table() in
/// kernels/quantised.h).
enum class LevelTable : std::uint8_t { even, e2m1, iq4_nl, nf4 };
constexpr LevelTable kLevelTableKinds[] = {LevelTable::even, LevelTable::e2m1, LevelTable::iq4_nl, LevelTable::nf4};
constexpr const char* name_of(LevelTable table) {
  switch (table) {
    case LevelTable::even: return "even";
    case LevelTable::e2m1: return "e2m1";
    case LevelTable::iq4_nl: return "iq4_nl";
    case LevelTable::nf4: return "nf4";
  }
  return "?";
}

/// The arithmetic of products with weights.
///   exact     multiplies fp32 numbers; quantised weights count as the numbers that their levels mean
///   int8      for weights of int8 and int4: the numbers of x that meet a group of weights become 8-bit levels with a
///             scale for that group, and products are integers
///   bfloat16  for bf16 weights, and for int8 and int4, whose numbers are rounded to bf16 too: x is rounded to bf16,
///             and instructions add pairs of products to fp32 sums; each kind of processor may round them in a
///             different way
enum class Arithmetic : std::uint8_t { exact, int8, bfloat16 };
constexpr const char* name_of(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::exact: return "exact";
    case Arithmetic::int8: return "int8";
    case Arithmetic::bfloat16: return "bfloat16";
  }
  return "?";
}

/// IEEE half precision as its 16 bits. Conversion to float is exact; conversion from float rounds to nearest even.
struct f16 {
  std::uint16_t bits = 0;
  f16() = default;
  explicit f16(float value) {
    // Scaling by powers of two lets the FPU do the rounding, denormals included.
    const std::uint32_t word = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t shifted = word + word, sign = word & 0x80000000u;
    std::uint32_t bias = shifted & 0xFF000000u;
    if (bias < 0x71000000u) bias = 0x71000000u;
    float base = (std::bit_cast<float>(word & 0x7FFFFFFFu) * 0x1.0p+112f) * 0x1.0p-110f;
    base = std::bit_cast<float>((bias >> 1) + 0x07800000u) + base;
    const std::uint32_t b = std::bit_cast<std::uint32_t>(base);
    const std::uint32_t nonsign = ((b >> 13) & 0x7C00u) + (b & 0x0FFFu);
    bits = static_cast<std::uint16_t>((sign >> 16) | (shifted > 0xFF000000u ? 0x7E00u : nonsign));
  }
  explicit operator float() const {
    const std::uint32_t word = static_cast<std::uint32_t>(bits) << 16, sign = word & 0x80000000u, twice = word + word;
    const float normal = std::bit_cast<float>((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
    const float denormal = std::bit_cast<float>((twice >> 17) | (126u << 23)) - 0.5f;
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(twice < (1u << 27) ? denormal : normal);
    return std::bit_cast<float>(sign | magnitude);
  }
};

/// bfloat16 as its 16 bits. Conversion from float rounds to nearest even and keeps NaN a NaN.
struct bf16 {
  std::uint16_t bits = 0;
  bf16() = default;
  explicit bf16(float value) {
    const std::uint32_t word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7FFFFFFFu) > 0x7F800000u) bits = static_cast<std::uint16_t>((word >> 16) | 0x40u);
    else bits = static_cast<std::uint16_t>((word + 0x7FFFu + ((word >> 16) & 1u)) >> 16);
  }
  explicit operator float() const { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }
};

template <class T> constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  else if constexpr (std::is_same_v<T, f16>) return DType::f16;
  else if constexpr (std::is_same_v<T, bf16>) return DType::bf16;
  else return DType::i32;
}

/// A matrix [rows, cols] of `dtype`: each row is contiguous, and rows are `stride` elements apart. A view owns nothing;
/// data may be null only if rows * cols is 0. A quantised matrix lies in memory whole, as kernels/quantised.h defines:
/// it has no stride and no slices.
template <class Void> struct BasicView {
  Void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0, cols = 0, stride = 0;
  int group = 0;                        ///< numbers of a row that share a scale, in a quantised matrix
  LevelTable table = LevelTable::even;  ///< the meaning of i4's levels

  BasicView() = default;
  BasicView(Void* d, DType t, std::int64_t r, std::int64_t c) : BasicView(d, t, r, c, c) {}
  BasicView(Void* d, DType t, std::int64_t r, std::int64_t c, std::int64_t s)
      : data(d), dtype(t), rows(r), cols(c), stride(s) {}
  template <class Other>
  requires(std::is_const_v<Void> && !std::is_const_v<Other>) BasicView(const BasicView<Other>& v)
      : BasicView(v.data, v.dtype, v.rows, v.cols, v.stride) {
    group = v.group, table = v.table;
  }

  explicit operator bool() const { return data != nullptr; }
  template <class T> auto as() const {
    using Element = std::conditional_t<std::is_const_v<Void>, const T, T>;
    return static_cast<Element*>(data);
  }
  /// Rows [first, first + count).
  BasicView slice(std::int64_t first, std::int64_t count) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return {static_cast<Byte*>(data) + bytes_of(dtype, first * stride), dtype, count, cols, stride};
  }
  /// Columns [first, first + count) of all rows.
  BasicView columns(std::int64_t first, std::int64_t count) const {
    using Byte = std::conditional_t<std::is_const_v<Void>, const std::byte, std::byte>;
    return {static_cast<Byte*>(data) + bytes_of(dtype, first), dtype, rows, count, stride};
  }
};
using View = BasicView<void>;
using ConstView = BasicView<const void>;

}  // namespace weft
