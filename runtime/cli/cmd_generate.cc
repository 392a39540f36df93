#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>

#include "kernels/error.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/input_flags.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/job/job.h"
#include "runtime/text/named_templates.h"

namespace weft::runtime {
namespace {

struct GenerateFlags {
  JobOptions job;
  std::string on_bad_request = "fail";
  std::vector<std::string> retentions;
  std::string shard, resume, checkpoint_every = "10m", durability = "process";
  bool no_verify_crc = false;
  std::string generation_config = "none", reasoning;
  PolicyFlags policy;
};

OnBadRequest on_bad_request_named(const std::string& name) {
  if (name == "fail") return OnBadRequest::fail;
  if (name == "record") return OnBadRequest::record;
  throw UsageError("--on-bad-request must be fail or record, got '" + name.substr(0, 40) + "'");
}

/// The flags that stand for fields of requests without them.
void add_defaults(CLI::App& command, GenerateFlags& flags) {
  constexpr const char* kGroup = "What requests get that do not say otherwise";
  RequestDefaults& defaults = flags.job.defaults;
  const auto add = [&](const char* name, auto& value, const char* help) {
    command.add_option(name, value, help)->group(kGroup);
  };
  command.add_option("--max-tokens", flags.job.max_tokens, "Longest answer, in tokens")
      ->capture_default_str()
      ->group(kGroup);
  add("--temperature", defaults.temperature, "0 is greedy. Without this flag: 0 for Weft's own lines, 1 for OpenAI's");
  add("--top-p", defaults.top_p, "Cut to the likeliest tokens that have this probability together; 1 cuts nothing");
  add("--top-k", defaults.top_k, "Cut to so many likeliest tokens; 0 cuts nothing");
  add("--min-p", defaults.min_p,
      "Cut tokens less likely than this share of the likeliest's probability; 0 cuts nothing");
  add("--seed", defaults.seed, "Random numbers come of it and of the request's id");
  add("--stop", defaults.stop, "A text that ends an answer; may be repeated");
  command.add_flag("--chat", defaults.chat, "In Weft's own lines \"prompt\" is the message of a user")->group(kGroup);
  add("--system-prompt", defaults.system_prompt, "The first message of each conversation that has none of the system");
  add("--reasoning-parser", flags.reasoning,
      "deepseek_r1 or qwen3: an answer to a conversation has what comes before </think> in a field of its own");
  command
      .add_option("--generation-config", flags.generation_config,
                  "auto: take the model's generation_config.json for what no flag says: temperature, top_p, top_k, "
                  "min_p, repetition_penalty, max_new_tokens; none: do not")
      ->capture_default_str()
      ->group(kGroup);
}

bool takes_generation_config(const std::string& word) {
  if (word != "auto" && word != "none")
    throw UsageError("--generation-config must be auto or none, got '" + word.substr(0, 40) + "'");
  return word == "auto";
}

void add_job(CLI::App& app, const char* name, const char* what, RequestKind kind, Command& chosen) {
  CLI::App* command = app.add_subcommand(name, what);
  const auto flags = std::make_shared<GenerateFlags>();
  flags->job.kind = kind;
  JobOptions& job = flags->job;
  const bool generates = kind == RequestKind::generate;
  command->add_option("--model", job.model, kModelOrShapeHelp)->required()->group("Model");
  command->add_option("--weights", job.weights, "random:SEED runs the shape of a config.json without a checkpoint")
      ->group("Model");
  command->add_option("--dtype", job.dtype, kDtypeHelp)->capture_default_str()->group("Model");
  command->add_flag("--no-verify-crc", flags->no_verify_crc, kNoVerifyCrcHelp)->group("Model");

  constexpr const char* kRequests = "Requests and answers";
  add_input_flags(*command, job.input, kRequests, !generates, true);
  command->add_option("--output", job.output, "Answers, one JSON object per line; -: standard output, without --resume")
      ->required()
      ->group(kRequests);
  command
      ->add_option(
          "--on-bad-request", flags->on_bad_request,
          "fail: run nothing if a request is refused; record: run the others, and write a line with the reason "
          "for each refused one")
      ->capture_default_str()
      ->group(kRequests);
  command
      ->add_option("--shard", flags->shard,
                   "K/N: answer only every N-th request, starting with the K-th (from 1); weft merge joins the "
                   "outputs of 1/N to N/N")
      ->group(kRequests);
  command
      ->add_flag("!--no-prefix-sharing", job.prefix_sharing,
                 "Compute each prompt by itself; else tokens with which several prompts begin are computed once, where "
                 "that changes no answer")
      ->group(kRequests);
  command
      ->add_flag("--ordered", job.ordered,
                 "At the end also write the answers in the order of the requests, to NAME.sorted.jsonl")
      ->group(kRequests);
  if (generates) {
    command
        ->add_option("--served-model-name", job.served_names,
                     "Model name that OpenAI request lines use, in place of the folder's name; may be repeated")
        ->group(kRequests);
    command
        ->add_option("--chat-template", job.chat_template,
                     "Chat template for conversations, in place of the model's own: " + template_names() +
                         ", or a file with one in Jinja")
        ->group(kRequests);
    command
        ->add_flag("--strict-openai", job.strict_openai,
                   "Enforce OpenAI's limits on its request lines: 50000 requests, 200 MB, ids of 64 characters")
        ->group(kRequests);
  }
  if (generates) add_defaults(*command, *flags);

  CLI::Option* const dry =
      command
          ->add_flag("--dry-run", job.dry_run,
                     "Check all requests, plan, and say what would run and how long it would take; compute nothing")
          ->group(kRequests);

  CLI::Option* const resume =
      command
          ->add_option("--resume", flags->resume,
                       "Continue an output that an earlier run began. --resume=force: even with another model, other "
                       "requests or other settings; =adopt: even without its .run.json; =repair: move damaged lines to "
                       "OUTPUT.bad; =retry: move lines of requests that failed there too, and try these again")
          ->expected(0, 1)
          ->type_name("[force|adopt|repair|retry]")
          ->group("Interruption");
  dry->excludes(resume);
  CLI::Option* const save =
      command
          ->add_option(
              "--checkpoint-every", flags->checkpoint_every,
              "How often to save unfinished answers to OUTPUT.inflight, so that --resume continues in the middle "
              "of them: 10m, 90s, 1.5h, or off. Without this flag: every ten minutes, or less often if that "
              "would take more than 3 % of the time")
          ->capture_default_str()
          ->group("Interruption");
  command
      ->add_option("--durability", flags->durability,
                   "process: a finished answer survives a kill; power: it survives a power cut too")
      ->capture_default_str()
      ->group("Interruption");

  CLI::Option* quiet =
      command->add_flag("--quiet", job.quiet, "Print only warnings and errors")->group("Progress and reports");
  command->add_flag("-v,--verbose", job.verbose, "Also print what the run decides, and why")
      ->excludes(quiet)
      ->group("Progress and reports");
  dry->excludes(command->add_option("--report", job.report, "Write a report of the run to this file, as JSON")
                    ->group("Progress and reports"));
  dry->excludes(command->add_option("--trace", job.trace, "Write a Perfetto trace to this file, one track per lane")
                    ->group("Progress and reports"));

  flags->policy.add_to(*command);
  flags->policy.add_choices_to(*command);
  command
      ->add_option("--or-retention", flags->retentions,
                   "Another acceptable --retention; the plan takes the fastest; may be repeated")
      ->group("Policy");
  command
      ->add_option("--machine", job.machine_file,
                   "Machine file to plan for (weft bench --lanes --save); without it, this machine is measured briefly "
                   "if the policy leaves something open")
      ->group("Machine");
  if (generates)
    command->footer(
        "Example:\n  weft generate --model models/demo --input configs/examples/prompts.jsonl --output answers.jsonl");
  else
    command->footer(
        "Example:\n  weft score --model models/demo --input pairs.jsonl --output scores.jsonl\n"
        "A line of pairs.jsonl is {\"id\": 1, \"prompt\": \"...\", \"continuation\": \"...\"}");
  command->callback([flags, command, save, generates, &chosen] {
    if (generates) flags->job.max_tokens_given = command->count("--max-tokens") > 0;
    if (command->count("--resume") > 0 && flags->resume.empty()) flags->resume = "true";
    chosen.run = [flags, save](const std::atomic<bool>& stop) {
      JobOptions options = flags->job;
      if (!flags->reasoning.empty()) options.defaults.reasoning = reasoning_from_text(flags->reasoning);
      options.generation_config = takes_generation_config(flags->generation_config);
      options.on_bad_request = on_bad_request_named(flags->on_bad_request);
      options.resume = Resume::from_text(flags->resume);
      options.save_every = interval_from_text(flags->checkpoint_every);
      options.save_seldom = save->count() == 0;
      options.durability = durability_from_text(flags->durability);
      options.verify_crc = !flags->no_verify_crc;
      options.policy = flags->policy.policy(options.model, options.dtype);
      for (const std::string& text : flags->retentions)
        options.retentions.push_back(policy::Retention::from_text(text, "--or-retention"));
      options.kv_formats = flags->policy.other_kv_formats();
      options.weight_formats = flags->policy.other_weight_formats();
      if (!flags->shard.empty()) options.shard = Shard::from_text(flags->shard);
      options.machine = flags->policy.machine_options();
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
  add_job(app, "score", "Compute the log-probabilities of given continuations", RequestKind::score, chosen);
}

}  // namespace weft::runtime
