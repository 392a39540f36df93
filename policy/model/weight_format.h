// policy/model/weight_format.h: the format of a run's weights: which tensors are quantised, and how.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "policy/model/model.h"

namespace weft::policy {

struct WeightFormat {
  DType dtype = DType::f16;  ///< if a float type: the highest precision that the weights may have
  int group = 64;            ///< numbers of a row that share a scale, if quantised
  /// int8 stands for the default too: integers for quantised weights, bfloat16 for bf16 weights on a CPU that can, else
  /// exact.
  Arithmetic arithmetic = Arithmetic::int8;

  /// The format of `dtype` with what it has unless it is said otherwise. float8 has groups of 128 and exact arithmetic,
  /// and no other.
  static WeightFormat of(DType dtype);

  bool quantised() const { return is_quantised(dtype); }
  /// Whether a text or a policy file has to say the arithmetic: another than float weights have by default.
  bool names_arithmetic() const { return quantised() || (dtype == DType::bf16 && arithmetic != Arithmetic::int8); }
  bool operator==(const WeightFormat&) const = default;
};

/// Returns nullopt for "auto", otherwise the named type: float16, bfloat16, float32, int8 or int4. Throws UsageError.
std::optional<DType> dtype_from_text(std::string_view name, const std::string& where);
/// The same, as a format, and float8.
std::optional<WeightFormat> weight_format_from_text(std::string_view name, const std::string& where);
/// Parses "exact", "int8" (int8 and int4 weights only) or "bfloat16" (these and bfloat16 weights only).
std::optional<Arithmetic> arithmetic_named(std::string_view name, DType weights);
/// The same, but throws UsageError.
Arithmetic arithmetic_from_text(std::string_view name, DType weights, const std::string& where);
/// Gives a quantised format groups of 16, 32, 64 or 128; float8 has only the last. Throws UsageError.
void set_group(WeightFormat& format, std::int64_t group, const std::string& where);
/// "float16", "int4 in groups of 64, int8 arithmetic"
std::string to_text(const WeightFormat& format);

/// The float type in which a GPU multiplies the weights of a model of type `model`: quantised ones are unpacked to f16.
DType multiplied_type(DType model, const std::optional<WeightFormat>& format);

/// Whether a quantised format quantises this tensor. It leaves in 16 bits the tensors that are small, are gathered by
/// rows, or would lose more quality than they save bytes: norms, biases, both embeddings, the head, and the projections
/// next to these. A head whose levels are in the checkpoint keeps them.
bool quantises(const Unit& unit, const TensorSpec& tensor);

}  // namespace weft::policy
