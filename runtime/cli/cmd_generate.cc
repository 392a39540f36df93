#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "kernels/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/job/job.h"

namespace weft::runtime {
namespace {

struct Flags {
  JobOptions job;
  std::string on_bad_request = "fail";
  std::vector<std::string> retentions;
  std::string shard, resume, durability = "process";
  PolicyFlags policy;
};

OnBadRequest on_bad_request_named(const std::string& name) {
  if (name == "fail") return OnBadRequest::fail;
  if (name == "record") return OnBadRequest::record;
  throw UsageError("--on-bad-request must be fail or record, got '" + name.substr(0, 40) + "'");
}

void add_job(CLI::App& app, const char* name, const char* what, RequestKind kind, Command& chosen) {
  CLI::App* command = app.add_subcommand(name, what);
  const auto flags = std::make_shared<Flags>();
  flags->job.kind = kind;
  JobOptions& job = flags->job;
  command->add_option("--model", job.model, "Hugging Face checkpoint folder, or a config.json with --weights")
      ->required();
  command->add_option("--input", job.input, "Requests, one JSON object a line")->required();
  command->add_option("--output", job.output, "Results, one JSON object a line")->required();
  command->add_option("--dtype", job.dtype, "auto, float16, bfloat16 or float32")->capture_default_str();
  command->add_option("--weights", job.weights, "random:SEED runs a shape without a checkpoint");
  command->add_flag("!--no-verify-crc", job.verify_crc, kNoVerifyCrc);
  command
      ->add_option("--on-bad-request", flags->on_bad_request,
                   "fail: nothing runs if a request is refused; record: the others run, and a refused one gets a line "
                   "that says why")
      ->capture_default_str();
  if (kind == RequestKind::generate) {
    command->add_option("--max-tokens", job.max_tokens, "For requests that do not say")->capture_default_str();
    command->add_option("--served-model-name", job.served_names,
                        "What OpenAI's request lines call the model, in place of its folder's name; may be repeated");
    command->add_flag("--strict-openai", job.strict_openai,
                      "Hold OpenAI's request lines to its limits: 50000 requests, 200 MB, ids of 64 characters");
  }
  command->add_option("--shard", flags->shard,
                      "K/N: answer only every N-th request, beginning with the K-th, which counts from 1; weft merge "
                      "joins the outputs of 1/N to N/N");
  command->add_flag(
      "--resume", flags->resume,
      "Continue an output that an earlier run began. --resume=force: with another model, other requests or "
      "settings; =adopt: without its .run.json; =repair: move lines that are no answers to OUTPUT.bad");
  command
      ->add_option("--durability", flags->durability,
                   "What a finished answer survives: process, a kill; power, a power cut too")
      ->capture_default_str();
  command->add_flag("--ordered", job.ordered,
                    "At the end also write the answers in the order of the requests, to NAME.sorted.jsonl");
  command->add_option("--report", job.report, "Write what the run did as JSON");
  command->add_option("--trace", job.trace, "Write a Perfetto trace, one track per lane");
  command->add_flag("--quiet", job.quiet, "Only warnings and errors");
  command->add_option("--machine", job.machine_file,
                      "Plan for this machine file (weft bench --lanes --save); unless said, this machine is measured "
                      "briefly where the policy leaves something open");
  command->add_option("--or-retention", flags->retentions,
                      "A retention that would do as well as --retention; the plan takes the fastest; may be repeated");
  flags->policy.add_to(*command);
  command->callback([flags, &chosen] {
    chosen = [flags](const std::atomic<bool>& stop) {
      JobOptions options = flags->job;
      options.on_bad_request = on_bad_request_named(flags->on_bad_request);
      options.resume = Resume::from_text(flags->resume);
      options.durability = durability_from_text(flags->durability);
      options.policy = flags->policy.policy();
      for (const std::string& text : flags->retentions)
        options.retentions.push_back(policy::Retention::from_text(text));
      if (!flags->shard.empty()) options.shard = Shard::from_text(flags->shard);
      options.machine = flags->policy.machine;
      if (options.machine.disk_directory.empty()) {
        const auto folder = std::filesystem::path(options.output).parent_path();
        options.machine.disk_directory = folder.empty() ? "." : folder.string();
      }
      return run_job(options, stop);
    };
  });
}

}  // namespace

void add_generate(CLI::App& app, Command& chosen) {
  add_job(app, "generate", "Answer a file of requests", RequestKind::generate, chosen);
}

void add_score(CLI::App& app, Command& chosen) {
  add_job(app, "score", "Log-probabilities of given continuations", RequestKind::score, chosen);
}

}  // namespace weft::runtime
