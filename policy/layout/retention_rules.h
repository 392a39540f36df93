// policy/layout/retention_rules.h: the retention rules as rows of a table. Only the sources of retention.h include it.
#pragma once

#include <array>
#include <cstddef>

#include "policy/layout/retention.h"

namespace weft::policy {

/// The numbers that a rule takes, whether it scores by attention, and the defaults of its parameters.
struct RuleRow {
  Retention::Rule rule;
  const char* name;
  bool heavy, recent, scored;
  std::int32_t observation = 0, pool = 1;
  double decay = 1;
  kernels::Statistic statistic = kernels::Statistic::sum;
  bool once = false;
};
inline constexpr std::array kRules{
    RuleRow{Retention::Rule::full, "full", false, false, false},
    RuleRow{Retention::Rule::recent, "recent", false, true, false},
    RuleRow{Retention::Rule::heavy, "heavy", true, false, true},
    RuleRow{Retention::Rule::h2o, "h2o", true, true, true},
    RuleRow{Retention::Rule::h2o_flexgen, "h2o-flexgen", true, true, true},
    RuleRow{Retention::Rule::random, "random", true, true, false},
    RuleRow{Retention::Rule::tova, "tova", true, false, true, 1, 1, 0},
    RuleRow{Retention::Rule::snapkv, "snapkv", true, true, true, 32, 7, 1, kernels::Statistic::sum, true},
    RuleRow{Retention::Rule::defensive, "defensive", true, true, true, 32, 5, 0.99, kernels::Statistic::largest},
    RuleRow{Retention::Rule::keydiff, "keydiff", true, true, false},
};
constexpr const RuleRow& row_of(Retention::Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }
static_assert(
    [] {
      for (std::size_t i = 0; i < kRules.size(); ++i)
        if (static_cast<std::size_t>(kRules[i].rule) != i) return false;
      return true;
    }(),
    "the rows are in the order of Retention::Rule");

}  // namespace weft::policy
