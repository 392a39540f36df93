// runtime/model/kernel_terms.h: translates a model's config and a retention into the kernels' terms.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/ops.h"
#include "policy/layout/retention.h"

namespace weft::runtime {

/// The activation that config.json names, with transformers' names. Throws DataError, which lists the known names.
kernels::Activation activation_named(const std::string& name, const std::string& where);

/// The scoring of a run of heads. `head`, here and below, is the first KV head of a run in the layer.
kernels::Scoring scoring_of(const policy::Retention& retention, int layer, int head);
/// The seed of the rule `random`.
std::uint64_t seed_of(const policy::Retention& retention, int layer, int head);

}  // namespace weft::runtime
