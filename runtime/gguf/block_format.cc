// runtime/gguf/block_format.cc: the table of formats, and those of floats.
#include "runtime/gguf/block_format.h"

#include <array>
#include <utility>

namespace weft::runtime {
namespace {

constexpr std::array kFloats{BlockFormat{.id = 0, .name = "F32", .numbers = 1, .bytes = 4, .type = DType::f32},
                             BlockFormat{.id = 1, .name = "F16", .numbers = 1, .bytes = 2, .type = DType::f16},
                             BlockFormat{.id = 30, .name = "BF16", .numbers = 1, .bytes = 2, .type = DType::bf16}};

constexpr std::array kLists{float_formats, formats_of_32, formats_of_256, formats_with_tables};

/// Types that are not read, so that a refusal can name them.
constexpr std::array<std::pair<std::uint32_t, const char*>, 17> kOthers{{{9, "Q8_1"},
                                                                         {15, "Q8_K"},
                                                                         {16, "IQ2_XXS"},
                                                                         {17, "IQ2_XS"},
                                                                         {18, "IQ3_XXS"},
                                                                         {19, "IQ1_S"},
                                                                         {21, "IQ3_S"},
                                                                         {22, "IQ2_S"},
                                                                         {24, "I8"},
                                                                         {25, "I16"},
                                                                         {26, "I32"},
                                                                         {27, "I64"},
                                                                         {28, "F64"},
                                                                         {29, "IQ1_M"},
                                                                         {41, "Q1_0"},
                                                                         {4, "Q4_2"},
                                                                         {5, "Q4_3"}}};

template <class Same> const BlockFormat* find(const Same& same) {
  for (const auto& list : kLists)
    for (const BlockFormat& format : list())
      if (same(format)) return &format;
  return nullptr;
}

}  // namespace

std::span<const BlockFormat> float_formats() { return kFloats; }

const BlockFormat* block_format(std::uint32_t id) {
  return find([id](const BlockFormat& format) { return format.id == id; });
}

const BlockFormat* block_format(const std::string& name) {
  return find([&](const BlockFormat& format) { return format.name == name; });
}

std::string block_format_name(std::uint32_t id) {
  if (const BlockFormat* const format = block_format(id)) return format->name;
  for (const auto& [other, name] : kOthers)
    if (other == id) return name;
  return "type " + std::to_string(id);
}

std::string block_format_names() {
  std::string names;
  for (const auto& list : kLists)
    for (const BlockFormat& format : list()) names += (names.empty() ? "" : ", ") + std::string(format.name);
  return names;
}

}  // namespace weft::runtime
