#include "runtime/job/job_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "policy/layout/retention.h"
#include "policy/layout/rolling.h"
#include "policy/model/model.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/measure/report.h"
#include "runtime/planning/log.h"
#include "runtime/requests/request_checks.h"
#include "runtime/results/result_lines.h"
#include "runtime/results/run_record.h"
#include "runtime/results/snapshot.h"

namespace weft::runtime {
namespace {

/// Whether two paths name one file.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;  // set if one does not exist
  return std::filesystem::equivalent(a, b, ignored);
}

/// Throws UsageError if an option needs the answers to be a file.
void check_pipe(const JobOptions& options) {
  const char* const flag = options.resume.on                         ? "--resume"
                           : options.ordered                         ? "--ordered"
                           : options.durability == Durability::power ? "--durability power"
                                                                     : nullptr;
  if (flag) throw UsageError(std::string("--output -: ") + flag + " needs an output that is a file; give its name");
  std::vector<std::string> others = options.input.paths;
  others.insert(others.end(), {options.report, options.trace});
  for (const std::string& path : others)
    if (std::filesystem::is_regular_file(path) && same_file(path, "/dev/stdout"))
      throw UsageError("--output -: standard output is " + path + ", which is another file of this job");
}

/// Checks all files before any work. One that cannot be written would otherwise be noticed only at the end.
void check_files(const JobOptions& options) {
  const bool pipe = options.output == kPipe;
  if (pipe) check_pipe(options);
  options.input.require();
  const std::string none, record = pipe ? none : RunRecord::place(options.output).string();
  const std::string in_flight = pipe ? none : Snapshot::place(options.output).string();
  const std::string sorted = options.ordered ? sorted_place(options.output).string() : "";
  std::vector<NamedFile> files;
  for (const std::string& path : options.input.paths) files.push_back({"--input", path == kPipe ? none : path});
  for (const NamedFile& file : {NamedFile{"--output", pipe ? none : options.output},
                                {"--output's record", record},
                                {"--checkpoint-every", in_flight},
                                {"--ordered", sorted},
                                {"--report", options.report},
                                {"--trace", options.trace}})
    files.push_back(file);
  require_different(files);
  if (!pipe) require_writable("--output", options.output);
  if (!pipe) require_writable("--output's record", record);
  if (options.ordered) require_writable("--ordered", sorted);
  if (options.save_every && !pipe) Snapshot::require_own(in_flight);
  if (options.ordered && !options.resume.on && std::filesystem::exists(sorted))
    throw UsageError("--ordered: " + sorted + " exists; remove it or give --output another name");
  require_folder("--disk-dir", options.machine.disk_directory);
  if (!options.report.empty()) require_own("--report", options.report, "machine");
  if (!options.trace.empty()) TraceFile::require_own(options.trace);
}

/// The retentions that the job allows. Throws UsageError if one does not fit the model.
std::vector<policy::Retention> allowed_retentions(const JobOptions& options, const policy::ModelSpec& model) {
  std::vector<policy::Retention> all{options.policy.retention.value_or(policy::Retention{})};
  all.insert(all.end(), options.retentions.begin(), options.retentions.end());
  for (const policy::Retention& retention : all) {
    retention.require_layers(policy::kv_heads_of_layers(model));
    policy::check_positions(retention, model, "retention");
  }
  return all;
}

}  // namespace

void check_and_announce(const JobOptions& options) {
  check_files(options);
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens)
    throw UsageError("--max-tokens must be from 1 to " + std::to_string(kMostTokens) + ", got " +
                     std::to_string(options.max_tokens));
  options.defaults.check();
  if (options.shard.count > 1 &&
      (!options.retentions.empty() || !options.kv_formats.empty() || !options.weight_formats.empty()))
    throw UsageError("--shard: each shard would choose by itself among " +
                     std::string(!options.retentions.empty()   ? "--or-retention"
                                 : !options.kv_formats.empty() ? "--or-kv-dtype"
                                                               : "--or-weight-dtype") +
                     ", and outputs of unlike choices cannot be merged; give the one that weft plan chooses");
  if (options.input.is_pipe() && isatty(STDIN_FILENO) == 1)
    log_info("requests are read from the terminal, one JSON object per line; Ctrl-D ends them");
  if (options.output == kPipe) log_info("answers go to standard output; a run that is stopped cannot be resumed");
}

RequestFile checked_requests(const JobOptions& options, const ModelSource& source, const std::atomic<bool>& stop) {
  if (!options.defaults.stop.empty() && !source.tokenizer)
    throw NoTokenizer(options.input.name(), "--stop", &source.files.texts(), "'stop_token_ids' in the requests");
  OpenAiRules openai{.model_names = options.served_names.empty() ? model_names(source.files) : options.served_names,
                     .files = source.files.may_have_weights() ? &source.files.texts() : nullptr,
                     .chat_template = options.chat_template,
                     .chat = {},
                     .strict = options.strict_openai};
  OpenedRequests opened = open_requests(options.input, stop);
  RequestFile requests(std::move(opened.file), options.kind, source.tokenizer.get(), source.spec, options.max_tokens,
                       std::move(openai), options.on_bad_request, &stop, allowed_retentions(options, source.spec),
                       std::move(opened.origins), options.defaults);
  if (requests.dialect() == Dialect::native && !options.served_names.empty())
    throw UsageError(requests.path().string() +
                     ": holds Weft's own request lines, which name no model; leave out --served-model-name");
  if (!requests.has_conversations() && !options.chat_template.empty())
    throw UsageError(requests.path().string() + ": has no line with messages; leave out --chat-template");
  if (!requests.has_conversations() && !options.defaults.system_prompt.empty())
    throw UsageError(requests.path().string() + ": has no conversation; leave out --system-prompt, or add --chat");
  if (options.defaults.reasoning != Reasoning::whole && !requests.has_conversations())
    throw UsageError(requests.path().string() + ": has no conversation; leave out --reasoning-parser, or add --chat");
  if (const std::size_t doubled = requests.doubled_first_tokens())
    log_warn(
        "{}: {} of {} prompts begin with {}, which the tokenizer puts in front anyway, so the model reads it twice; "
        "give such requests \"add_special_tokens\": false",
        requests.path().string(), doubled, requests.size(),
        source.tokenizer->shown_piece(*source.tokenizer->first_token()));
  return requests;
}

}  // namespace weft::runtime
