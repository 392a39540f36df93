#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/measure/bench.h"
#include "runtime/measure/measure_lanes.h"
#include "runtime/measure/measure_machine.h"

namespace weft::runtime {
namespace {

struct Flags {
  BenchOptions bench;
  PolicyFlags policy;
  std::string report, save, name;
  bool lanes = false, quick = false, no_warm_up = false;
};

/// What --lanes shows: the ceilings, or the machine as plans need it, for a file.
nlohmann::ordered_json measure(const Flags& flags, const MachineOptions& options) {
  if (flags.save.empty()) return measure_lanes(options, flags.quick);
  require_writable("--save", flags.save);
  policy::Machine machine = measure_machine(options, flags.quick ? Effort::brief : Effort::full);
  machine.source =
      std::string("measured by weft bench --lanes --save") + (flags.quick ? " --quick" : "") + " on " + machine.name;
  if (!flags.name.empty()) machine.name = flags.name;
  write_file_atomically(flags.save, policy::to_rows(machine.to_json()) + "\n");
  return machine.to_json();
}

int run(const Flags& flags, const std::atomic<bool>& stop) {
  BenchOptions options = flags.bench;
  options.policy = flags.policy.policy();
  options.machine = flags.policy.machine;
  if (options.machine.disk_directory.empty()) options.machine.disk_directory = ".";
  require_folder("--disk-dir", options.machine.disk_directory);
  options.warm_up = !flags.no_warm_up;
  if (!flags.lanes && options.model.empty()) throw UsageError("bench: --model or --lanes is required");
  nlohmann::ordered_json report;
  try {
    report = flags.lanes ? measure(flags, options.machine) : run_bench(options, stop);
  } catch (const Interrupted&) {
    return 130;
  }
  const std::string text = policy::to_pretty(report) + "\n";
  if (!flags.report.empty()) write_file_atomically(flags.report, text);
  std::fputs(text.c_str(), stdout);
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("bench", "Time a policy on a made-up workload, or the machine itself");
  const auto flags = std::make_shared<Flags>();
  BenchOptions& bench = flags->bench;
  CLI::Option* const lanes = command->add_flag(
      "--lanes", flags->lanes, "The machine's ceilings: disk, memory, matrix products, attention, the GPU");
  command->add_flag("--quick", flags->quick, "With --lanes: in seconds, with figures that caches flatter")
      ->needs(lanes);
  CLI::Option* const save = command->add_option(
      "--save", flags->save,
      "With --lanes: measure, instead of the ceilings, how fast the machine does what runs do, in under a minute, and "
      "write it to this file, which plans are made for (weft plan --machine)");
  save->needs(lanes);
  command->add_option("--name", flags->name, "What the file of --save calls the machine; else what it is")->needs(save);
  command->add_option("--model", bench.model, "Hugging Face checkpoint folder, or a config.json with --weights");
  command->add_option("--weights", bench.weights, "random:SEED runs a shape without a checkpoint");
  command->add_option("--dtype", bench.dtype, "auto, float16, bfloat16 or float32")->capture_default_str();
  command->add_option("--prompt-len", bench.prompt, "Tokens per prompt")->capture_default_str();
  command->add_option("--gen-len", bench.generation, "Tokens to generate for each")->capture_default_str();
  command->add_option("--requests", bench.requests, "Number of requests; 0 is one block")->capture_default_str();
  command->add_option("--repetitions", bench.repetitions, "Median, least and most are reported")->capture_default_str();
  command->add_option("--project", bench.project_sweeps,
                      "Time this many decode sweeps at the beginning, the middle and the end, and project the rest");
  command->add_flag("--skip-prefill", bench.skip_prefill,
                    "Fill the KV cache with random keys and values; times decode only");
  command->add_flag("--no-warm-up", flags->no_warm_up, "Count the first run too");
  command
      ->add_option("--machine", bench.machine_file,
                   "Machine file of --save: plan what the policy leaves open, and report what is predicted")
      ->excludes("--skip-prefill")
      ->excludes(lanes);
  command->add_option("--ceilings", bench.ceilings,
                      "Report of --lanes; adds how fast the busiest lane could have been, and what share was reached");
  command->add_option("--report", flags->report, "Write the result to this file too");
  flags->policy.add_to(*command);
  command->remove_option(command->get_option("--schedule"));  // its sequences are all alike and end together
  command->callback(
      [flags, &chosen] { chosen = [flags](const std::atomic<bool>& stop) { return run(*flags, stop); }; });
}

}  // namespace weft::runtime
