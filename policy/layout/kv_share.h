// policy/layout/kv_share.h: the retention and the type of keys and values that a share of the KV cache's bytes is best
// spent on, as measured (docs/lab/cold-tokens.md).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "policy/layout/policy.h"

namespace weft::policy {

/// A retention and a format of keys and values, in the words of --retention and --kv-dtype.
struct KvChoice {
  std::string retention, format;
};

/// The choice that cost running text least perplexity among those whose keys and values, with their scales, take
/// `share` of the bytes in 16 bits, from 0 to 1. With 1 it is the full cache as the model computes it.
KvChoice choose_for_share(double share, int head_dim);

/// The share of "auto:0.25"; nullopt if the text does not begin with "auto:". Throws UsageError unless it is above 0
/// and at most 1.
std::optional<double> kv_share_from_text(std::string_view text, const std::string& where);

/// Replaces `policy.kv_share`, if there is one, by the choice for it, and returns that. Throws UsageError if a format
/// of keys and values is given as well.
std::optional<KvChoice> settle_kv_share(PartialPolicy& policy, int head_dim);

}  // namespace weft::policy
