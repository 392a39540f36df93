// runtime/policy_flags.h: the flags that say how a run is laid out; generate, score, bench and plan share them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/machine.h"
#include "policy/policy.h"
#include "runtime/session.h"

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

/// A file of configs/machines. Throws UsageError, which names the file, the key, what was wanted and what was found.
policy::Machine read_machine(const std::string& path);

/// Throws UsageError if --prompt-len and --gen-len are not positive or go beyond the model's context.
void check_lengths(std::int64_t prompt, std::int64_t generation, const policy::ModelSpec& spec);

}  // namespace weft::runtime
