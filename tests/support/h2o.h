// tests/support/h2o.h: H2O in fp64, and through the kernels of a place; golden numbers of kept tokens, and how exactly
// scores meet them.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/slots_under_test.h"

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

/// A prompt and decode steps of one KV head: attention weights (exp of the logits) [group][query][key <= query], and
/// the tokens that may be kept.
struct H2oCase {
  std::vector<std::vector<std::vector<double>>> weights;
  int prompt = 0, steps = 0;
  kernels::Keep keep;
  double cap = 0, sink = 0;  ///< on the logits; the weight of a sink logit in each head, 0: there is none
};

struct H2oTrace {
  std::vector<double> prefill_scores;
  std::vector<std::map<int, double>> kept;  // position -> score: after the prefill and after each step
  std::vector<int> evicted;                 // per step, -1: none
  std::vector<double> gap;                  // per entry of `kept`, fp64 only: the margin by which the choice was clear
};

/// H2O in fp64, as Keep defines it, with a window also PrefillAttention. `window`: ColumnSums::observation.
H2oTrace h2o_in_fp64(const H2oCase& c, int window = 0);

struct H2oOptions {
  bool feed = false;  ///< hand the kernels the probabilities and prompt scores of fp64, rounded to fp32
  int window = 0;
  int more_slots = 0;  ///< slots beyond those that are needed
};

/// Runs the cases through the kernels of a place as one block of sequences. All have the same group size, cap and sink;
/// their lengths may differ.
std::vector<H2oTrace> h2o_on(const Place& place, const std::vector<H2oCase>& cases, const H2oOptions& options = {});

/// The scoring of a rule other than H2O.
struct RuleParameters {
  kernels::Statistic statistic = kernels::Statistic::sum;
  int window = 0, pool = 1;
  float decay = 1;
};
/// Runs one case by another rule.
H2oTrace rule_on(const Place& place, const H2oCase& c, const RuleParameters& rule);

/// The softmax over the visible tokens of one query, as h2o_in_fp64() computes it. `sink`: H2oCase::sink.
std::map<int, double> probabilities(const std::vector<double>& weights, const std::vector<int>& visible,
                                    double sink = 0);

}  // namespace weft::test
