// runtime/engine/layer_values.h: shorthands of layers*.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/model/steps.h"

namespace weft::runtime {

/// The entry of an array that is indexed by policy::Value.
template <class Values> auto& value_at(Values& values, policy::Value value) {
  return values[static_cast<std::size_t>(value)];
}

/// The entries [first, last).
template <class T> std::span<const T> part_of(const std::vector<T>& all, std::int64_t first, std::int64_t last) {
  return std::span<const T>(all).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace weft::runtime
