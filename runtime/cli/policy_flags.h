// runtime/cli/policy_flags.h: the flags that say how a run is laid out; generate, score, bench and plan share them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "runtime/engine/machine_options.h"

namespace CLI {
class App;
}

namespace weft::runtime {

struct PolicyFlags {
  std::string policy_file, retention, attention, schedule;
  std::string device_memory, host_memory, disk_memory;
  std::vector<double> percent;
  std::optional<int> gpu_batch_size, num_gpu_batches;
  bool no_overlap = false;
  MachineOptions machine{.disk_directory = ""};

  void add_to(CLI::App& app);
  /// The policy file under the flags: a flag beats the file. Throws UsageError.
  policy::PartialPolicy policy() const;
};

}  // namespace weft::runtime
