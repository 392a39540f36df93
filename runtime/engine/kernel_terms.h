// runtime/engine/kernel_terms.h: what a model's config and a retention say, in the kernels' terms.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops.h"
#include "policy/retention.h"

namespace weft::runtime {

/// The activation that config.json names, as transformers does. Throws DataError with the known names.
kernels::Activation activation_named(const std::string& name, const std::string& where);

/// `head`, here and below: a layer's KV head, the first of a run of heads that keep alike.
kernels::Scoring scoring_of(const policy::Retention& retention, int layer, int head);
/// Whether prompts are kept by their scores times the norms of values.
bool by_value(const policy::Retention& retention, int layer, int head);
/// Of the rule `random`.
std::uint64_t seed_of(const policy::Retention& retention, int layer, int head);
/// Of the rules by position; 1 for others.
std::int32_t stride_of(const policy::Retention& retention);
kernels::Statistic statistic_of(const policy::Retention& retention);

}  // namespace weft::runtime
