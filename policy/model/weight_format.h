// policy/model/weight_format.h: in what form the weights of a run are: which tensors are quantised, and how.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "policy/model/model.h"

namespace weft::policy {

struct WeightFormat {
  DType dtype = DType::f16;                  ///< of a float type: what the weights must not exceed in precision
  int group = 64;                            ///< of a quantised one: how many numbers of a row share a scale
  Arithmetic arithmetic = Arithmetic::int8;  ///< of products with quantised weights, or bfloat16 of those of bf16

  bool quantised() const { return is_quantised(dtype); }
  bool operator==(const WeightFormat&) const = default;
};

/// Of "auto" nothing, else the type of that name: float16, bfloat16, float32, int8, int4. Throws UsageError.
std::optional<DType> dtype_from_text(std::string_view name, const std::string& where);
/// The same, as a format.
std::optional<WeightFormat> weight_format_from_text(std::string_view name, const std::string& where);
/// By its name what is for these weights: exact, and int8 of quantised ones or bfloat16 of those of that type.
std::optional<Arithmetic> arithmetic_named(std::string_view name, DType weights);
/// The same. Throws UsageError.
Arithmetic arithmetic_from_text(std::string_view name, DType weights, const std::string& where);
/// 32, 64 or 128. Throws UsageError.
int group_from_number(std::int64_t group, const std::string& where);
/// "float16", "int4 in groups of 64, int8 arithmetic"
std::string to_text(const WeightFormat& format);

/// Whether a quantised format quantises this tensor. What it leaves in 16 bits is small, is gathered by rows, or costs
/// more in quality than it saves in bytes: norms, biases, both embeddings, the head, and projections next to these.
bool quantises(const Unit& unit, const TensorSpec& tensor);

}  // namespace weft::policy
