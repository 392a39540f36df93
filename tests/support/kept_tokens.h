// tests/support/kept_tokens.h: golden numbers of kept tokens, and how exactly scores meet them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/keep.h"

namespace weft::test {

constexpr kernels::Keep kKeepAll{0, INT32_MAX, 0, 0};
/// A choice between scores nearer than this is not one that fp32 can be held to.
constexpr double kClearScore = 1e-5;
/// The error that a score may have, relative to the largest.
constexpr double kScoreTolerance = 1e-5;

/// A golden number: "a/b" or a decimal, as a text or not.
inline double number(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  const std::size_t slash = text.find('/');
  return slash == std::string::npos ? std::stod(text)
                                    : std::stod(text.substr(0, slash)) / std::stod(text.substr(slash + 1));
}

/// The positions of kept tokens, ascending.
template <class Score> std::vector<int> positions(const std::map<int, Score>& kept) {
  std::vector<int> all;
  for (const auto& entry : kept) all.push_back(entry.first);
  return all;
}

}  // namespace weft::test
