#include "policy/weight_format.h"

#include <array>

#include "kernels/error.h"

namespace weft::policy {

std::optional<DType> dtype_from_text(std::string_view name, const std::string& where) {
  if (name == "auto") return {};
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32, DType::i8, DType::i4})
    if (name == name_of(dtype)) return dtype;
  throw UsageError(where + " must be auto, float16, bfloat16, float32, int8 or int4, got '" +
                   std::string(name.substr(0, 40)) + "'");
}

std::optional<WeightFormat> weight_format_from_text(std::string_view name, const std::string& where) {
  const std::optional<DType> dtype = dtype_from_text(name, where);
  return dtype ? std::optional(WeightFormat{.dtype = *dtype}) : std::nullopt;
}

Arithmetic arithmetic_from_text(std::string_view name, const std::string& where) {
  for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::int8})
    if (name == name_of(arithmetic)) return arithmetic;
  throw UsageError(where + " must be exact or int8, got '" + std::string(name.substr(0, 40)) + "'");
}

int group_from_number(std::int64_t group, const std::string& where) {
  if (group == 32 || group == 64 || group == 128) return static_cast<int>(group);
  throw UsageError(where + " must be 32, 64 or 128 numbers, got " + std::to_string(group));
}

std::string to_text(const WeightFormat& format) {
  if (!format.quantised()) return name_of(format.dtype);
  return std::string(name_of(format.dtype)) + " in groups of " + std::to_string(format.group) + ", " +
         name_of(format.arithmetic) + " arithmetic";
}

bool quantises(const Unit& unit, const TensorSpec& tensor) {
  switch (unit.kind) {
    case Unit::Kind::attention:
    case Unit::Kind::mlp: return tensor.form == Form::matrix;
    case Unit::Kind::embedding:
    case Unit::Kind::positions:
    case Unit::Kind::input:
    case Unit::Kind::output:
    case Unit::Kind::head: return false;
  }
  return false;
}

}  // namespace weft::policy
