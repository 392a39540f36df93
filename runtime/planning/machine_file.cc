// runtime/planning/machine_file.cc
#include "runtime/planning/machine_file.h"

#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/layout/rolling.h"
#include "runtime/base/files.h"

namespace weft::runtime {

policy::Machine read_machine(const std::string& path) {
  return policy::Machine::from_json(read_json("--machine", path), path);
}

void require_same_kind(const policy::Machine& machine, const std::string& path, const kernels::Backend& backend) {
  if (machine.device_is_host_memory == backend.device_is_host_memory()) return;
  throw UsageError("--machine " + path + ": is of a machine " +
                   (machine.device_is_host_memory ? "where the CPU plays the device" : "with a GPU") +
                   ", but this run is on " + backend.name() + "; measure this one by weft bench --lanes --save");
}

void check_lengths(std::int64_t prompt, std::int64_t generation, const policy::ModelSpec& spec,
                   const policy::Retention& retention) {
  retention.require_layers(kv_heads_of_layers(spec));
  policy::check_positions(retention, spec, "retention");
  constexpr std::int64_t most = std::int64_t{1} << 30;
  if (prompt < 1 || generation < 1 || prompt > most || generation > most)
    throw UsageError("--prompt-len and --gen-len must be from 1 to " + std::to_string(most));
  if (const auto why = policy::too_long(spec, retention, prompt, generation))
    throw UsageError("--prompt-len " + std::to_string(prompt) + " and --gen-len " + std::to_string(generation) +
                     " go beyond the model's context of " + policy::context_text(spec) + *why);
}

}  // namespace weft::runtime
