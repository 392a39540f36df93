#include "runtime/job/spill_space.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/base/stop.h"
#include "runtime/planning/log.h"

namespace weft::runtime {

offload::OnFullDisk wait_for_spill_space(const std::atomic<bool>& stop) {
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds patience{60}, pause{5};
  static constexpr std::chrono::milliseconds between{200};  // tries
  struct Full {
    std::mutex mutex;
    Clock::time_point since, said;
  };
  return [&stop, full = std::make_shared<Full>()](const std::string& what) {
    const auto now = Clock::now();
    {
      const std::lock_guard lock(full->mutex);
      if (now - full->said > 2 * pause) full->since = now;  // there was space in between
      if (now - full->since > patience) return false;
      if (now - full->said >= pause) {
        full->said = now;
        log_warn("{}; trying again for {} s", what,
                 std::chrono::ceil<std::chrono::seconds>(patience - (now - full->since)).count());
      }
    }
    while (Clock::now() < now + between) {
      if (stop) throw Interrupted{};
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return true;
  };
}

}  // namespace weft::runtime
