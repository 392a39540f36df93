// offload/tier.h: the tiers, which hold bytes, and the lanes, on which bytes move or are computed with.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace weft::offload {

enum class Tier : std::uint8_t { device, host, disk };
inline constexpr std::array kTiers{Tier::device, Tier::host, Tier::disk};
constexpr const char* name_of(Tier tier) {
  constexpr std::array names{"device", "host", "disk"};
  return names[static_cast<std::size_t>(tier)];
}

/// One per direction of a link and one per compute engine; the ops of one lane run in order.
enum class Lane : std::uint8_t { disk_read, disk_write, host_to_device, device_to_host, device_compute, host_compute };
inline constexpr std::array kLanes{Lane::disk_read,      Lane::disk_write,     Lane::host_to_device,
                                   Lane::device_to_host, Lane::device_compute, Lane::host_compute};
constexpr const char* name_of(Lane lane) {
  constexpr std::array names{"disk_read",      "disk_write",     "host_to_device",
                             "device_to_host", "device_compute", "host_compute"};
  return names[static_cast<std::size_t>(lane)];
}
constexpr std::size_t index(Lane lane) { return static_cast<std::size_t>(lane); }

}  // namespace weft::offload
