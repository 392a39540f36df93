#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/job/progress.h"
#include "runtime/measure/bench.h"
#include "runtime/measure/measure_lanes.h"
#include "runtime/measure/measure_machine.h"
#include "runtime/measure/report.h"

namespace weft::runtime {
namespace {

struct BenchFlags {
  BenchOptions bench;
  PolicyFlags policy;
  std::string report, save, name;
  bool lanes = false, quick = false, no_warm_up = false;
};

/// Measures for --lanes: the ceilings, or with --save the machine's rates, which are written to a file.
nlohmann::ordered_json measure(const BenchFlags& flags, const MachineOptions& options) {
  if (flags.save.empty()) return measure_lanes(options, flags.quick);
  require_own("--save", flags.save, "disk_rows_per_second");
  policy::Machine machine = measure_machine(options, flags.quick ? Effort::brief : Effort::full);
  machine.source =
      std::string("measured by weft bench --lanes --save") + (flags.quick ? " --quick" : "") + " on " + machine.name;
  if (!flags.name.empty()) machine.name = flags.name;
  write_file_atomically(flags.save, policy::to_rows(machine.to_json()) + "\n");
  return machine.to_json();
}

int run_bench(const BenchFlags& flags, const std::atomic<bool>& stop) {
  BenchOptions options = flags.bench;
  options.policy = flags.policy.policy(options.model, options.dtype);
  options.machine = flags.policy.machine_options();
  if (options.machine.disk_directory.empty()) options.machine.disk_directory = ".";
  require_folder("--disk-dir", options.machine.disk_directory);
  require_different({{"--save", flags.save}, {"--report", flags.report}, {"--trace", options.trace}});
  if (!options.ceilings.empty()) require_input("--ceilings", options.ceilings);
  options.warm_up = !flags.no_warm_up;
  if (!flags.lanes && options.model.empty()) throw UsageError("bench: --model or --lanes is required");
  if (!flags.report.empty()) require_own("--report", flags.report, "machine");
  if (!options.trace.empty()) TraceFile::require_own(options.trace);
  Progress progress(!is_drawn_on(STDERR_FILENO));  // on a terminal alone: the result goes to standard output
  progress.stage(flags.lanes ? "measuring the machine" : "timing the policy");
  const auto write = [&](const nlohmann::ordered_json& report) {
    progress.clear();
    const std::string text = policy::to_pretty(report) + "\n";
    if (!flags.report.empty()) write_file_atomically(flags.report, text);
    std::fputs(text.c_str(), stdout);
    std::fflush(stdout);
  };
  try {
    if (flags.lanes) write(measure(flags, options.machine));
    else run_bench(options, stop, write);
  } catch (const Interrupted&) {
    return 130;
  }
  return 0;
}

}  // namespace

void add_bench(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("bench", "Time a policy on a made-up job, or measure the machine");
  const auto flags = std::make_shared<BenchFlags>();
  BenchOptions& bench = flags->bench;
  constexpr const char *kMachine = "Measuring the machine", *kPolicy = "Timing a policy";
  CLI::Option* const lanes =
      command
          ->add_flag("--lanes", flags->lanes,
                     "Measure the machine's ceilings: disk, memory, matrix products, attention and the GPU")
          ->group(kMachine);
  command->add_flag("--quick", flags->quick, "With --lanes: take only seconds; caches make these figures too good")
      ->needs(lanes)
      ->group(kMachine);
  CLI::Option* const save =
      command
          ->add_option(
              "--save", flags->save,
              "With --lanes: measure the machine's rates for plans in place of its ceilings, in under a minute, "
              "and write them to this machine file (weft plan --machine)")
          ->needs(lanes)
          ->group(kMachine);
  command->add_option("--name", flags->name, "Name of the machine in the --save file; by default its processor")
      ->needs(save)
      ->group(kMachine);

  command->add_option("--model", bench.model, kModelOrShapeHelp)->group("Model");
  command->add_option("--weights", bench.weights, "random:SEED runs the shape of a config.json without a checkpoint")
      ->group("Model");
  command->add_option("--dtype", bench.dtype, kDtypeHelp)->capture_default_str()->group("Model");
  command->add_option("--prompt-len", bench.prompt, "Tokens per prompt")->capture_default_str()->group(kPolicy);
  command->add_option("--gen-len", bench.generation, "Tokens to generate per prompt")
      ->capture_default_str()
      ->group(kPolicy);
  command->add_option("--requests", bench.requests, "Number of requests; 0: one block")
      ->capture_default_str()
      ->group(kPolicy);
  command->add_option("--repetitions", bench.repetitions, "Number of runs; the report has their median, least and most")
      ->capture_default_str()
      ->group(kPolicy);
  command
      ->add_option("--project", bench.project_sweeps,
                   "Time this many decode sweeps at the beginning, the middle and the end, and project the rest")
      ->group(kPolicy);
  command
      ->add_flag("--skip-prefill", bench.skip_prefill,
                 "Fill the KV cache with random keys and values, and time decode only")
      ->group(kPolicy);
  command->add_flag("--no-warm-up", flags->no_warm_up, "Count the first run too")->group(kPolicy);
  command
      ->add_option(
          "--ceilings", bench.ceilings,
          "Report of --lanes; adds the best possible speed of the busiest lane, and the share that was reached")
      ->group(kPolicy);
  command->add_option("--report", flags->report, "Write the result to this file too")->group(kPolicy);
  command
      ->add_option(
          "--trace", bench.trace,
          "Write a Perfetto trace of the timed runs to this file, one track per lane; the report then says how "
          "long each lane stood still")
      ->group(kPolicy);
  flags->policy.add_to(*command);
  command
      ->add_option("--machine", bench.machine_file,
                   "Machine file (--save): plan what the policy leaves open, and report the prediction")
      ->excludes("--skip-prefill")
      ->group("Machine");
  command->remove_option(command->get_option("--schedule"));  // bench's sequences are all alike and end together
  command->callback([flags, command, &chosen] {
    refuse_beside(*command, "--lanes",
                  {"--quick", "--save", "--name", "--backend", "--threads", "--deterministic", "--disk-dir",
                   "--disk-engine", "--report"},
                  "it measures the machine alone");
    chosen = {.run = [flags](const std::atomic<bool>& stop) { return run_bench(*flags, stop); },
              .ends_at_once = flags->lanes};
  });
}

}  // namespace weft::runtime
