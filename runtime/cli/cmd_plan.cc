#include <spdlog/fmt/fmt.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/job/progress.h"
#include "runtime/measure/measure_machine.h"
#include "runtime/measure/report.h"
#include "runtime/planning/compare.h"
#include "runtime/planning/log.h"
#include "runtime/planning/machine_file.h"
#include "runtime/planning/plan.h"

namespace weft::runtime {
namespace {

struct PlanFlags {
  std::string model, weights, dtype = "auto", machine, output, report, trace, sweep, published;
  std::vector<std::string> retentions;
  std::int64_t prompt = 512, generation = 32, requests = 0;
  bool explain = false;
  PolicyFlags policy;
};

/// Throws UsageError if `path` exists and no sweep wrote it.
void require_own_sweep(const std::filesystem::path& path) {
  constexpr std::size_t kLargest = 64 << 20;
  if (!std::filesystem::exists(std::filesystem::symlink_status(path))) return;
  const bool own = std::filesystem::is_regular_file(path) && is_sweep(read_file(path, kLargest));
  if (!own) throw UsageError("--sweep: " + path.string() + " is there, and no sweep wrote it; give another folder");
}

void check(const PlanFlags& flags, const policy::ModelSpec& spec, const policy::PartialPolicy& policy) {
  if (flags.requests < 0) throw UsageError("--requests must be 0 or more, got " + std::to_string(flags.requests));
  check_lengths(flags.prompt, flags.generation, spec, policy.retention.value_or(policy::Retention{}));
  for (const std::string& text : flags.retentions)
    check_lengths(flags.prompt, flags.generation, spec, policy::Retention::from_text(text, "--or-retention"));
  require_different({{"--output", flags.output}, {"--report", flags.report}, {"--trace", flags.trace}});
  if (!flags.output.empty()) require_own("--output", flags.output, "gpu_batch_size");
  if (!flags.report.empty()) require_own("--report", flags.report, "machine");
  if (!flags.trace.empty()) TraceFile::require_own(flags.trace);
  if (flags.sweep.empty()) return;
  if (std::filesystem::exists(flags.sweep) && !std::filesystem::is_directory(flags.sweep))
    throw UsageError("--sweep " + flags.sweep + ": is a file; give the name of a folder");
  refuse_pipe("--sweep", flags.sweep);
  for (const char* name : {"sweep.csv", "sweep.svg"}) require_own_sweep(std::filesystem::path(flags.sweep) / name);
}

policy::Workload work_of(const PlanFlags& flags, const policy::Retention& retention, const std::vector<int>& windows) {
  return policy::alike(flags.requests > 0 ? std::optional(flags.requests) : std::nullopt, flags.prompt,
                       flags.generation, retention, windows);
}

/// Measures this machine.
policy::Machine measured(const MachineOptions& options, const ModelSource& source) {
  const auto backend = make_backend(options);
  require_memory(options, *backend);
  return measure_machine(
      *backend, options, Effort::brief,
      {.weights = weight_bytes_of(source), .kv = UINT64_MAX, .weight_files = weight_files_of(source)});
}

/// Writes the simulated sweeps of the chosen policy, one after another.
void write_trace(const std::string& path, const Planned& planned, const policy::Machine& machine) {
  const ModelSource& source = *planned.source;
  const policy::Policy& policy = planned.best().policy;
  const policy::Problem problem{source.spec, source.units, planned.work, planned.sizing, machine};
  const policy::Footprint footprint =
      policy::footprint(source.spec, source.units, policy, planned.work, planned.sizing);
  TraceFile file(path, footprint.shape, source.units);
  double begin = 0;
  for (policy::SimulatedSweeps& sweeps : policy::simulate_block(problem, policy, footprint)) {
    const double seconds = sweeps.trace.seconds();
    for (policy::Trace::Span& span : sweeps.trace.spans) span.begin += begin, span.end += begin;
    file.add(sweeps.schedule, sweeps.trace);
    begin += seconds;
  }
}

void sweep(const PlanFlags& flags, const PlanRequest& request, const std::string& title) {
  const std::array<Curve, 2> curves{sweep_block_size(request), sweep_kv_budget(request)};
  for (const Curve& curve : curves) {
    fmt::print("\n{:>12} {:>12}  {}\n", "", "tokens/s", "over the " + curve.name);
    for (const Curve::Point& point : curve.points)
      fmt::print("{:>12g} {:>12.2f}  {}\n", point.x, point.tokens_per_second, point.bottleneck);
  }
  const std::filesystem::path folder(flags.sweep);
  std::filesystem::create_directories(folder);
  write_file_atomically((folder / "sweep.csv").string(), to_csv(curves));
  write_file_atomically((folder / "sweep.svg").string(), to_svg(curves, title));
  fmt::print("\nwrote {} and sweep.svg\n", (folder / "sweep.csv").string());
}

/// Prints published figures, the results of FlexGen's arithmetic for the same runs, and this planner's predictions for
/// the same machine. The folders of the models and the machine are next to that of the figures.
int show_published(const PlanFlags& flags) {
  require_folder("--published", flags.published);
  const auto configs = std::filesystem::weakly_canonical(flags.published).parent_path();
  const auto results = simulate_published(
      flags.published, read_flexgen_machine(configs / "machines" / "t4-flexgen.json"), configs / "models");
  const policy::Machine machine =
      read_machine(flags.machine.empty() ? (configs / "machines" / "t4.json").string() : flags.machine);
  fmt::print("{}\n{}", published_table(results), comparison_table(results, machine));
  return 0;
}

int run_plan(const PlanFlags& flags) {
  if (!flags.published.empty()) return show_published(flags);
  if (flags.model.empty()) throw UsageError("plan: --model or --published is required");
  MachineOptions options = flags.policy.machine_options();
  if (options.disk_directory.empty()) options.disk_directory = ".";
  require_folder("--disk-dir", options.disk_directory);
  // A shape alone has no weights, and none are needed.
  const ModelFiles files = ModelFiles::open(flags.model);
  const bool folder = std::filesystem::is_directory(files.path());
  const bool shape_only =
      flags.weights.empty() && (!files.may_have_weights() || (folder && !Checkpoint::present(files.path())));
  if (shape_only && folder) log_info("{}: holds no weights; the plan is for what config.json says", flags.model);
  Progress progress(!is_drawn_on(STDERR_FILENO));
  const policy::PartialPolicy policy = flags.policy.policy(flags.model, flags.dtype);
  const std::string weights = shape_only ? "random:1" : flags.weights;
  const auto source = open_model(flags.model, flags.dtype, weights, policy.weight_format);
  for (const std::string& note : source->notes) log_info("{}", note);
  check(flags, source->spec, policy);
  if (flags.machine.empty()) progress.stage("measuring this machine");
  const policy::Machine machine = flags.machine.empty() ? measured(options, *source) : read_machine(flags.machine);
  PlanRequest request{
      .source = *source,
      .machine = machine,
      .policy = policy,
      .free = {machine.bytes},
      .work = [&](const policy::Retention& retention) { return work_of(flags, retention, source->spec.windows); },
      .retentions = {},
      .kv_formats = flags.policy.other_kv_formats()};
  std::vector<std::unique_ptr<ModelSource>> others;
  for (const auto& format : flags.policy.other_weight_formats()) {
    others.push_back(open_model(flags.model, flags.dtype, weights, format));
    request.sources.push_back(others.back().get());
  }
  for (const std::string& text : flags.retentions)
    request.retentions.push_back(policy::Retention::from_text(text, "--or-retention"));
  progress.stage("planning");
  const Planned planned = make_plan(request);
  const std::vector<Gain> gains = what_would_help(request, planned);
  progress.clear();
  const std::string title =
      fmt::format("{}, {} + {} tokens, {}", shown_name(flags.model), flags.prompt, flags.generation, machine.name);
  fmt::print("{}\n{}", printable(title), plan_table(request, planned, gains, flags.explain));
  if (flags.machine.empty())
    fmt::print("the rates are those of a brief measurement; weft bench --lanes --save FILE measures more exactly\n");
  const std::string text = policy::to_pretty(planned.best().policy.to_json()) + "\n";
  if (!flags.output.empty()) write_file_atomically(flags.output, text);
  else fmt::print("{}", text);
  if (!flags.report.empty())
    write_file_atomically(flags.report, policy::to_pretty(plan_report(request, planned, gains)) + "\n");
  if (!flags.trace.empty()) write_trace(flags.trace, planned, machine);
  if (!flags.sweep.empty()) sweep(flags, request, title);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("plan", "Find the fastest policy for a model, a machine and a job, and predict what it does");
  const auto flags = std::make_shared<PlanFlags>();
  command
      ->add_option("--model", flags->model,
                   "Hugging Face checkpoint folder or ORG/NAME in the Hub's cache, a GGUF file, or a config.json")
      ->group("Model");
  command->add_option("--weights", flags->weights, "random:SEED: random weights in place of a checkpoint's")
      ->group("Model");
  command->add_option("--dtype", flags->dtype, kDtypeHelp)->capture_default_str()->group("Model");
  command->add_option("--prompt-len", flags->prompt, "Tokens per prompt")->capture_default_str()->group("Job");
  command->add_option("--gen-len", flags->generation, "Tokens to generate per prompt")
      ->capture_default_str()
      ->group("Job");
  command->add_option("--requests", flags->requests, "Number of requests; 0: as many as fill a block")
      ->capture_default_str()
      ->group("Job");
  command->add_flag("--explain", flags->explain, "Also show the runners-up, and why they are slower")->group("Results");
  command
      ->add_option("--sweep", flags->sweep,
                   "Show tokens/s over block size and over KV budget, and write sweep.csv and sweep.svg to this folder")
      ->group("Results");
  command->add_option("--output", flags->output, "Write the policy to this file")->group("Results");
  command->add_option("--report", flags->report, "Write the policy, the prediction and the runners-up as JSON")
      ->group("Results");
  command
      ->add_option(
          "--trace", flags->trace,
          "Write the simulated timeline of a block's first sweep and of some decode sweeps, for ui.perfetto.dev")
      ->group("Results");
  command
      ->add_option("--published", flags->published,
                   "Simulate the published figures of other systems (configs/published), and predict the best "
                   "policy on the same machine; takes no other option but --machine")
      ->group("Results");
  flags->policy.add_to(*command);
  flags->policy.add_choices_to(*command);
  command
      ->add_option("--or-retention", flags->retentions,
                   "Another acceptable --retention; the plan takes the fastest; may be repeated")
      ->group("Policy");
  command
      ->add_option(
          "--machine", flags->machine,
          "Machine file to plan for (configs/machines, or weft bench --lanes --save); without it, this machine is "
          "measured briefly")
      ->group("Machine");
  command->footer(
      "Example:\n  weft plan --model configs/models/opt-30b.json --machine configs/machines/t4.json --retention "
      "h2o:0.1:0.1");
  // PlanFlags that would be ignored are refused: a machine file has what these would measure, and published rows bring
  // their own.
  for (const char* measured : {"--backend", "--threads", "--deterministic", "--disk-engine"})
    command->get_option("--machine")->excludes(command->get_option(measured));
  command->callback([flags, command, &chosen] {
    refuse_beside(*command, "--published", {"--machine"}, "it takes no other option but --machine");
    chosen = {.run = [flags](const std::atomic<bool>&) { return run_plan(*flags); }, .ends_at_once = true};
  });
}

}  // namespace weft::runtime
