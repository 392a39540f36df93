// policy/schedule/schedule_shape.cc: what follows from the shape of a run: spaces, sides, the slots of windows.
#include <algorithm>

#include "policy/schedule/schedule.h"

namespace weft::policy {

bool ScheduleShape::any_attended_on_host() const {
  return std::find(host_attends.begin(), host_attends.end(), true) != host_attends.end();
}
std::size_t ScheduleShape::unpacked_space(std::uint32_t sublayer) const {
  const Sublayer& sub = sublayers[sublayer];
  return sub.kind == Sublayer::Kind::attention && any_attended_on_host() ? 1 + static_cast<std::size_t>(sub.layer) % 2
                                                                         : 0;
}

bool ScheduleShape::computed_on_host(std::uint32_t sublayer, bool prefill) const {
  const Sublayer& sub = sublayers[sublayer];
  return !prefill && sub.kind == Sublayer::Kind::experts && is_of_host(static_cast<std::size_t>(sub.unit));
}

bool ScheduleShape::sends_rows(std::uint32_t sublayer, bool prefill) const {
  if (prefill || host_computes.empty() || sublayers[sublayer].kind != Sublayer::Kind::mlp) return false;
  for (std::uint32_t s = sublayer + 1; s < sublayers.size() && sublayers[s].kind == Sublayer::Kind::experts; ++s)
    if (computed_on_host(s, prefill)) return true;
  return false;
}

WindowSlots ScheduleShape::slots_needed(std::uint32_t ahead) const {
  const auto streams = [](const std::vector<Tier>& homes, Tier tier) {
    return std::find(homes.begin(), homes.end(), tier) != homes.end();
  };
  bool unit_host = false, unit_disk = false;
  for (const Sublayer& sub : sublayers) {
    if (sub.unit < 0) continue;
    unit_host |= unit_home[static_cast<std::size_t>(sub.unit)] == Tier::host;
    unit_disk |= unit_home[static_cast<std::size_t>(sub.unit)] == Tier::disk;
  }
  bool host_from_disk = false;
  for (std::size_t buffer = 0; buffer < kv_home.size(); ++buffer)
    host_from_disk |= host_attends[buffer] && kv_home[buffer] == Tier::disk;
  const bool kv_disk = streams(kv_home, Tier::disk), kv_host = streams(kv_home, Tier::host);
  const bool act_disk = streams(activation_home, Tier::disk), act_host = streams(activation_home, Tier::host);
  const auto slots_if = [&](bool used) { return used ? 1 + ahead : 0; };
  const std::uint32_t overlapping =
      any_attended_on_host() ? 2 : 0;  // more units in use at once, see Generator::layers_of_batches()
  return {.unit = unit_host || unit_disk ? slots_if(true) + overlapping : 0,
          .kv = slots_if(kv_host || kv_disk),
          .activation = slots_if(act_host || act_disk),
          .unit_staging = slots_if(unit_disk && !disk_reads_device),
          .kv_staging = slots_if(kv_disk && !disk_reads_device),
          .activation_staging = slots_if(act_disk && !disk_reads_device),
          .host_kv = slots_if(host_from_disk)};
}

}  // namespace weft::policy
