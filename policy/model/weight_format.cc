#include "policy/model/weight_format.h"

#include <vector>

#include "kernels/error.h"

namespace weft::policy {
namespace {

std::vector<Arithmetic> arithmetics_of(DType weights) {
  if (weights == DType::f8) return {Arithmetic::exact};
  if (is_quantised(weights)) return {Arithmetic::exact, Arithmetic::int8, Arithmetic::bfloat16};
  if (weights == DType::bf16) return {Arithmetic::exact, Arithmetic::bfloat16};
  return {Arithmetic::exact};
}

std::optional<DType> named(std::string_view name, const std::string& where, const char* wanted) {
  if (name == "auto") return {};
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::i8, DType::i4})
    if (name == name_of(dtype)) return dtype;
  throw UsageError(where + " must be " + wanted + ", got '" + std::string(name.substr(0, 40)) + "'");
}

}  // namespace

WeightFormat WeightFormat::of(DType dtype) {
  if (dtype == DType::f8) return {.dtype = dtype, .group = kFloat8Group, .arithmetic = Arithmetic::exact};
  return {.dtype = dtype};
}

std::optional<DType> dtype_from_text(std::string_view name, const std::string& where) {
  return named(name, where, "auto, float16, bfloat16, float32, int8 or int4");
}

std::optional<WeightFormat> weight_format_from_text(std::string_view name, const std::string& where) {
  if (name == name_of(DType::f8)) return WeightFormat::of(DType::f8);
  const std::optional<DType> dtype = named(name, where, "auto, float16, bfloat16, float32, float8, int8 or int4");
  return dtype ? std::optional(WeightFormat::of(*dtype)) : std::nullopt;
}

std::optional<Arithmetic> arithmetic_named(std::string_view name, DType weights) {
  for (const Arithmetic arithmetic : arithmetics_of(weights))
    if (name == name_of(arithmetic)) return arithmetic;
  return {};
}

Arithmetic arithmetic_from_text(std::string_view name, DType weights, const std::string& where) {
  if (const auto arithmetic = arithmetic_named(name, weights)) return *arithmetic;
  const std::vector<Arithmetic> all = arithmetics_of(weights);
  std::string list;
  for (std::size_t i = 0; i < all.size(); ++i)
    list += std::string(i == 0 ? "" : i + 1 < all.size() ? ", " : " or ") + name_of(all[i]);
  throw UsageError(where + " must be " + list + " for weights of " + name_of(weights) + ", got '" +
                   std::string(name.substr(0, 40)) + "'");
}

void set_group(WeightFormat& format, std::int64_t group, const std::string& where) {
  const bool only_one = format.dtype == DType::f8;
  if (only_one ? group != kFloat8Group : !is_group_size(group))
    throw UsageError(where + " must be " +
                     (only_one ? "128 numbers for weights of float8" : std::string(kGroupSizes) + " numbers") +
                     ", got " + std::to_string(group));
  format.group = static_cast<int>(group);
}

std::string to_text(const WeightFormat& format) {
  std::string text = name_of(format.dtype);
  if (format.quantised()) text += " in groups of " + std::to_string(format.group);
  if (format.names_arithmetic()) text += std::string(", ") + name_of(format.arithmetic) + " arithmetic";
  return text;
}

DType multiplied_type(DType model, const std::optional<WeightFormat>& format) {
  return format && format->quantised() ? DType::f16 : model;
}

bool quantises(const Unit& unit, const TensorSpec& tensor) {
  switch (unit.kind) {
    case Unit::Kind::attention:
    case Unit::Kind::mlp:
    case Unit::Kind::experts:
      return tensor.form == Form::matrix && tensor.role != Role::router && tensor.role != Role::shared_gate;
    case Unit::Kind::embedding:
    case Unit::Kind::positions:
    case Unit::Kind::layer_inputs:
    case Unit::Kind::input:
    case Unit::Kind::output: return false;
    case Unit::Kind::head: return unit.keeps_levels;
  }
  return false;
}

}  // namespace weft::policy
