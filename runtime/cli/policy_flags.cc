#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/cli/policy_flags.h"

namespace weft::runtime {
namespace {

int checked_size(int value, const char* flag) {
  if (value < 1 || value > policy::kMostSequences)
    throw UsageError(std::string(flag) + " must be from 1 to " + std::to_string(policy::kMostSequences) + ", got " +
                     std::to_string(value));
  return value;
}

}  // namespace

void PolicyFlags::add_to(CLI::App& app) {
  app.add_option("--policy", policy_file, "Policy, a JSON file; a flag overrides what it says")->group("Policy");
  app.add_option("--percent", percent,
                 "FlexGen's six percentages: weights, KV cache and activations, each on device and host; the rest is "
                 "on disk")
      ->expected(6)
      ->excludes("--policy")
      ->group("Policy");
  app.add_option("--gpu-batch-size", gpu_batch_size, "Sequences that one compute op works on")->group("Policy");
  app.add_option("--num-gpu-batches", num_gpu_batches, "Gpu batches that share one pass over the weights")
      ->group("Policy");
  app.add_option("--retention", retention,
                 "What stays in the KV cache: full, h2o:HEAVY:RECENT, recent:N, heavy:N, h2o-flexgen:HEAVY:RECENT or "
                 "random:HEAVY:RECENT; 12 is a number of tokens, 0.1 a share of them")
      ->group("Policy");
  app.add_option("--attention", attention,
                 "Where KV that is not on the device is attended: device, host, or the host's share, such as 0.6")
      ->group("Policy");
  app.add_option("--schedule", schedule,
                 "continuous: a finished sequence gives its place to the next request; static: a block runs to its end")
      ->group("Policy");
  app.add_flag("--no-overlap", no_overlap, "Run one op at a time, to see what overlap gains")->group("Policy");

  app.add_option("--backend", machine.backend, "auto, cpu or cuda")->capture_default_str()->group("Machine");
  app.add_option("--threads", machine.threads, "CPU threads; 0: one per core")->capture_default_str()->group("Machine");
  app.add_option("--device-memory", device_memory, "Device memory that the run may use, such as 4GiB")
      ->group("Machine");
  app.add_option("--host-memory", host_memory, "Host memory that the run may use")->group("Machine");
  app.add_option("--disk-memory", disk_memory, "Disk space that the run may use")->group("Machine");
  app.add_option("--disk-dir", machine.disk_directory, "Folder for spilled buffers; by default the output's folder")
      ->group("Machine");
  app.add_option("--disk-engine", machine.disk_engine, "auto, io_uring, threads or buffered")
      ->capture_default_str()
      ->group("Machine");
}

policy::PartialPolicy PolicyFlags::policy() const {
  policy::PartialPolicy file, flags;
  if (!policy_file.empty()) {
    file = policy::PartialPolicy::from_json(read_json("--policy", policy_file), policy_file);
  }
  if (!percent.empty()) flags.set_percent({percent[0], percent[1], percent[2], percent[3], percent[4], percent[5]});
  if (gpu_batch_size) flags.gpu_batch_size = checked_size(*gpu_batch_size, "--gpu-batch-size");
  if (num_gpu_batches) flags.num_gpu_batches = checked_size(*num_gpu_batches, "--num-gpu-batches");
  if (!retention.empty()) flags.retention = policy::Retention::from_text(retention);
  if (!attention.empty()) flags.attention_on_host = policy::attention_from_text(attention, "--attention");
  if (!schedule.empty()) flags.continuous = policy::continuous_from_text(schedule, "--schedule");
  if (no_overlap) flags.overlap = false;
  flags.budgets = memory();
  return flags.over(file);
}

std::array<std::optional<std::uint64_t>, 3> PolicyFlags::memory() const {
  const std::array<std::pair<const char*, const std::string*>, 3> flags{
      {{"--device-memory", &device_memory}, {"--host-memory", &host_memory}, {"--disk-memory", &disk_memory}}};
  std::array<std::optional<std::uint64_t>, 3> bytes;
  for (std::size_t tier = 0; tier < flags.size(); ++tier)
    if (!flags[tier].second->empty()) bytes[tier] = policy::bytes_from_text(*flags[tier].second, flags[tier].first);
  return bytes;
}

MachineOptions PolicyFlags::machine_options() const {
  MachineOptions options = machine;
  options.memory = memory();
  return options;
}

}  // namespace weft::runtime
