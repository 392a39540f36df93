// policy/layout/placement.h: which block lives on which tier, and what is chosen where a policy leaves it open.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "offload/tier.h"
#include "policy/layout/footprint.h"

namespace weft::policy {

/// The most sequences of a block where the search chooses its size.
inline constexpr int kLargestBlock = 1 << 14;

/// A tier for each of `blocks` equal blocks, in the order in which they are used: at every prefix each tier has its
/// fraction of the blocks to within one, so that streamed and resident blocks alternate evenly.
/// `fractions` [device, host, disk] are >= 0 and sum to 1. Throws UsageError.
std::vector<offload::Tier> spread(std::size_t blocks, const std::array<double, 3>& fractions);
/// The same by bytes: at every prefix each tier has its fraction of the bytes to within the largest block.
std::vector<offload::Tier> spread(std::span<const std::size_t> block_bytes, const std::array<double, 3>& fractions);

/// What a run may use of each tier, and whether blocks may have their home on the host.
struct Allowance {
  Budgets budgets;
  bool host = true;
};
/// What the user set, and else `free`, what the machine has. `on_host_memory`: the device is the host's memory, so the
/// host tier stays empty unless the user put something there; then the two share what is free.
Allowance allowance(const PartialPolicy& partial, const Budgets& free, bool on_host_memory);

/// A complete policy out of what the user said: what is open is chosen so that the fastest tiers are filled first and
/// the block is the largest that fits. Throws CapacityError, which names the tier, the bytes and the largest block that
/// fits. `free` and `on_host_memory` as allowance() takes them.
Policy complete(const PartialPolicy& partial, const ModelSpec& model, const std::vector<Unit>& units,
                const Workload& workload, const SizingInputs& sizing, const Budgets& free, bool on_host_memory);

}  // namespace weft::policy
