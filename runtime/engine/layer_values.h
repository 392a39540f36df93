// runtime/engine/layer_values.h: shorthands of layers*.cc.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/tensor.h"
#include "policy/model/steps.h"
#include "runtime/engine/layer_data.h"
#include "runtime/model/weights.h"

namespace weft::runtime {

/// The entry of an array that is indexed by policy::Value.
template <class Values> auto& value_at(Values& values, policy::Value value) {
  return values[static_cast<std::size_t>(value)];
}

/// No values but the rows of hidden states, and what lies beside them.
inline std::array<View, policy::kValues> with_hidden(const HiddenRows& rows) {
  std::array<View, policy::kValues> values;
  value_at(values, policy::Value::hidden) = rows.hidden;
  value_at(values, policy::Value::layer_inputs) = rows.layer_inputs;
  value_at(values, policy::Value::lent_k) = rows.lent_k;
  value_at(values, policy::Value::lent_v) = rows.lent_v;
  return values;
}

/// The entries [first, last).
template <class T> std::span<const T> part_of(const std::vector<T>& all, std::int64_t first, std::int64_t last) {
  return std::span<const T>(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

/// The steps, products of one input by the places of their weights: then their results get room in the same order, and
/// a GPU may compute them as one product (kernels::LinearGroup).
std::vector<policy::Step> in_memory_order(std::vector<policy::Step> steps, const UnitViews& unit);

}  // namespace weft::runtime
