// policy/layout/host_experts.h: the experts that the host computes, and the host memory that this takes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/model/steps.h"
#include "policy/schedule/schedule.h"

namespace weft::policy {

/// Host memory for experts that the host computes, shared by all layers: what they read, what they make, and room for
/// one of them at work.
struct HostExpertsLayout {
  std::int64_t rows = 0;     ///< most rows of a batch in a sweep after the first
  std::int64_t made = 0;     ///< most rows that the experts of a layer make, over all batches
  std::int64_t at_once = 0;  ///< rows that an expert works on at once
  std::uint64_t input = 0;   ///< offset of [batches, rows, hidden] in Types::product
  std::uint64_t output = 0;  ///< offset of [made, hidden] f32
  std::uint64_t work = 0;    ///< offset of the work space
  std::uint64_t bytes = 0;   ///< 0: the host computes no experts
};

/// The types of an expert's values on the host, whose products read f32.
Types host_types(const Types& types);

/// The units of experts of which the host may compute a share.
std::size_t units_for_host(const std::vector<Unit>& units);

/// ScheduleShape::host_computes for a share of the experts. Units that also have what follows their layer's last expert
/// stay with the device. Throws UsageError if there is a share and the model has no experts for it.
std::vector<bool> host_computes(const ModelSpec& model, const std::vector<Unit>& units,
                                std::span<const std::uint64_t> unit_bytes, double share);

/// `rows`: as in the layout. `shape` has host_computes, `piece` is Workspace::piece_tokens.
HostExpertsLayout host_experts_layout(const ModelSpec& model, const ScheduleShape& shape, const Types& types,
                                      std::int64_t rows, std::int64_t piece);

}  // namespace weft::policy
