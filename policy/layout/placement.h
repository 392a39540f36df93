// policy/layout/placement.h: the home tier of each buffer, and the choices for everything that a policy leaves open.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "offload/tier.h"
#include "policy/layout/footprint.h"

namespace weft::policy {

/// The most sequences in a block whose size the search chooses.
inline constexpr int kLargestBlock = 1 << 14;

/// A tier for each of `blocks` equal buffers, in order of use. In every prefix each tier has its fraction of the
/// buffers to within one, so that streamed and resident buffers alternate evenly. `fractions` [device, host, disk] are
/// >= 0 and sum to 1. Throws UsageError.
std::vector<offload::Tier> spread(std::size_t blocks, const std::array<double, 3>& fractions);
/// The same by bytes: in every prefix each tier has its fraction of the bytes to within the largest buffer.
std::vector<offload::Tier> spread(std::span<const std::size_t> block_bytes, const std::array<double, 3>& fractions);

/// The budget of a run on each tier, and whether buffers may have their home on the host.
struct Allowance {
  Budgets budgets;
  bool host = true;
};
/// The user's budgets; `free`, the machine's free memory, for those that the user left open. `on_host_memory`: the
/// device is the host's memory. Then the host tier stays empty unless the user placed something there, in which case
/// the two tiers share the free memory.
Allowance allowance(const PartialPolicy& partial, const Budgets& free, bool on_host_memory);

/// Completes the user's policy: fills the fastest tiers first and takes the largest block that fits. Throws a
/// CapacityError that names the tier, the bytes and the largest block that fits. `free` and `on_host_memory` as for
/// allowance().
Policy complete(const PartialPolicy& partial, const ModelSpec& model, const std::vector<Unit>& units,
                const Workload& workload, const SizingInputs& sizing, const Budgets& free, bool on_host_memory);

}  // namespace weft::policy
