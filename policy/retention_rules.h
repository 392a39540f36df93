// policy/retention_rules.h: the rules of retention as rows of a table, for the sources of retention.h alone.
#pragma once

#include <array>
#include <cstddef>

#include "policy/retention.h"

namespace weft::policy {

/// The numbers that a rule takes, whether it scores by attention, and its parameters where nothing else is said.
struct RuleRow {
  Retention::Rule rule;
  const char* name;
  bool heavy, recent, scored;
  std::int32_t window = 0, pool = 1;
  double decay = 1;
  Retention::Statistic statistic = Retention::Statistic::sum;
  bool once = false, rest = false;
};
inline constexpr std::array kRules{
    RuleRow{Retention::Rule::full, "full", false, false, false},
    RuleRow{Retention::Rule::recent, "recent", false, true, false},
    RuleRow{Retention::Rule::heavy, "heavy", true, false, true},
    RuleRow{Retention::Rule::h2o, "h2o", true, true, true},
    RuleRow{Retention::Rule::h2o_flexgen, "h2o-flexgen", true, true, true},
    RuleRow{Retention::Rule::random, "random", true, true, false},
    RuleRow{Retention::Rule::mean, "mean", true, true, true, 0, 1, 1, Retention::Statistic::mean},
    RuleRow{Retention::Rule::tova, "tova", true, false, true, 1, 1, 0},
    RuleRow{Retention::Rule::snapkv, "snapkv", true, true, true, 32, 7, 1, Retention::Statistic::sum, true},
    RuleRow{Retention::Rule::defensive, "defensive", true, true, true, 32, 5, 0.99, Retention::Statistic::largest},
    RuleRow{Retention::Rule::scissorhands, "scissorhands", true, true, true, 0, 1, 1, Retention::Statistic::count},
    RuleRow{Retention::Rule::keydiff, "keydiff", true, true, false},
    RuleRow{Retention::Rule::strided, "strided", true, true, false},
    RuleRow{Retention::Rule::fixed, "fixed", true, true, false},
};
/// Whether a token's score is its position's.
constexpr bool by_position(Retention::Rule rule) {
  return rule == Retention::Rule::strided || rule == Retention::Rule::fixed;
}
constexpr const RuleRow& row_of(Retention::Rule rule) { return kRules[static_cast<std::size_t>(rule)]; }
static_assert(
    [] {
      for (std::size_t i = 0; i < kRules.size(); ++i)
        if (static_cast<std::size_t>(kRules[i].rule) != i) return false;
      return true;
    }(),
    "the rows are in the order of Retention::Rule");

}  // namespace weft::policy
