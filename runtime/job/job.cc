#include "runtime/job/job.h"

#include <linux/magic.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <thread>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/duration.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/job/answers.h"
#include "runtime/job/decisions.h"
#include "runtime/job/in_flight.h"
#include "runtime/job/job_plan.h"
#include "runtime/job/job_record.h"
#include "runtime/job/place_runner.h"
#include "runtime/job/progress.h"
#include "runtime/job/work_list.h"
#include "runtime/measure/report.h"
#include "runtime/requests/journal.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/result_line.h"
#include "runtime/requests/result_lines.h"
#include "runtime/requests/result_sink.h"
#include "runtime/requests/snapshot.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr int kSomeRefused = 1;  // the exit code of a job that is done

/// Two names of one file.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;  // where one is not there
  return std::filesystem::equivalent(a, b, ignored);
}

/// What needs the answers to be a file.
void check_pipe(const JobOptions& options) {
  const char* const flag = options.resume.on                         ? "--resume"
                           : options.ordered                         ? "--ordered"
                           : options.durability == Durability::power ? "--durability power"
                                                                     : nullptr;
  if (flag) throw UsageError(std::string("--output -: ") + flag + " needs an output that is a file; give its name");
  for (const std::string* path : {&options.input, &options.report, &options.trace})
    if (std::filesystem::is_regular_file(*path) && same_file(*path, "/dev/stdout"))
      throw UsageError("--output -: standard output is " + *path + ", which is another file of this job");
}

/// All files are looked at before any work: one that cannot be written would be noticed only at the end.
void check_files(const JobOptions& options) {
  const bool pipe = options.output == kPipe;
  if (pipe) check_pipe(options);
  if (options.input != kPipe) require_input("--input", options.input);
  std::vector<std::pair<const char*, std::filesystem::path>> seen;
  const std::string none, record = pipe ? none : RunRecord::place(options.output).string();
  const std::string in_flight = pipe ? none : Snapshot::place(options.output).string();
  const std::string sorted = options.ordered ? sorted_place(options.output).string() : "";
  for (const auto& [flag, path] : {std::pair{"--input", options.input == kPipe ? &none : &options.input},
                                   {"--output", pipe ? &none : &options.output},
                                   {"--output's record", &record},
                                   {"--checkpoint-every", &in_flight},
                                   {"--ordered", &sorted},
                                   {"--report", &options.report},
                                   {"--trace", &options.trace}}) {
    if (path->empty()) continue;
    const auto place = std::filesystem::weakly_canonical(*path);
    for (const auto& [other, taken] : seen)
      if (taken == place || same_file(taken, place))
        throw UsageError(std::string(flag) + " " + *path + ": is also the file of " + other + "; give another name");
    seen.emplace_back(flag, place);
  }
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

/// What of this shard has no answer yet.
struct Open {
  std::vector<std::uint32_t> todo, refused;  ///< to run; to be put down as refused
};

/// Throws UsageError if a request of another shard is answered.
Open still_open(const std::vector<bool>& done, const RequestFile& requests, const JobOptions& options) {
  Open open;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (done[i] && !options.shard.has(i))
      throw UsageError(options.output + ": answers a request of another shard than " + options.shard.text() +
                       "; --resume needs the output of this one");
    if (!options.shard.has(i)) continue;
    if (!done[i]) (requests.refused(i) ? open.refused : open.todo).push_back(static_cast<std::uint32_t>(i));
  }
  return open;
}

RequestFile open_requests(const JobOptions& options, const ModelSource& source, const std::atomic<bool>& stop) {
  OpenAiRules openai{.model_names = options.served_names.empty() ? model_names(options.model) : options.served_names,
                     .model_folder = std::filesystem::is_directory(options.model) ? options.model : "",
                     .chat_template = options.chat_template,
                     .chat = {},
                     .strict = options.strict_openai};
  RequestFile requests(open_input(options.input, stop), options.kind, source.tokenizer.get(), source.spec,
                       options.max_tokens, std::move(openai), options.on_bad_request, &stop);
  if (requests.dialect() == Dialect::native && !options.served_names.empty())
    throw UsageError(requests.path().string() +
                     ": holds Weft's own request lines, which name no model; leave out --served-model-name");
  if (requests.dialect() == Dialect::native && !options.chat_template.empty())
    throw UsageError(requests.path().string() +
                     ": holds Weft's own request lines, which have no conversations; leave out --chat-template");
  return requests;
}

/// A spill file in memory would be no disk.
void warn_of_memory(const Session& session, const std::string& disk_directory) {
  const std::uint64_t bytes = session.storage().buffers().spill_bytes();
  struct statfs status {};
  if (bytes == 0 || ::statfs(disk_directory.c_str(), &status) != 0 || status.f_type != TMPFS_MAGIC) return;
  spdlog::warn("--disk-dir {}: is in memory (tmpfs), so the {} that spill there count as host memory; name a disk",
               disk_directory, policy::bytes_to_text(bytes));
}

/// Of all choices, if none ends early.
std::uint64_t most_tokens(const RequestFile& requests, const std::vector<std::uint32_t>& todo) {
  std::uint64_t tokens = 0;
  for (const std::uint32_t index : todo)
    tokens += std::uint64_t{requests.entry(index).max_tokens} * requests.entry(index).n;
  return tokens;
}

Forecast forecast_of(const std::optional<policy::Candidate>& predicted) {
  if (!predicted) return {};
  return {predicted->prediction.seconds, predicted->prediction.prefill.seconds};
}

/// The requests that will not run.
void append_refusals(const std::vector<std::uint32_t>& refused, const RequestFile& requests, ResultSink& results) {
  for (const std::uint32_t index : refused) results.append(refusal_line(requests.refusal(index), requests.dialect()));
}

}  // namespace

int run_job(const JobOptions& asked, const std::atomic<bool>& stop) {
  JobOptions options = asked;  // a resume keeps to what the run was begun with
  if (options.quiet) spdlog::set_level(spdlog::level::warn);
  if (options.verbose) spdlog::set_level(spdlog::level::debug);
  check_files(options);
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens)
    throw UsageError("--max-tokens must be from 1 to " + std::to_string(kMostTokens) + ", got " +
                     std::to_string(options.max_tokens));
  if (options.input == kPipe && isatty(STDIN_FILENO) == 1)
    spdlog::info("requests are read from the terminal, one JSON object per line; Ctrl-D ends them");
  if (options.output == kPipe) spdlog::info("answers go to standard output; a run that is stopped cannot be resumed");
  Progress progress(options.quiet);
  const auto source = open_model(options.model, options.dtype, options.weights, options.policy.weight_format);
  source->verify_crc = options.verify_crc;
  source->packing = packing_lines();
  const bool pipe = options.output == kPipe;
  if (pipe) options.save_every.reset();  // there is nothing that a resume could go on with
  const std::string output_name = pipe ? "standard output" : options.output;
  std::unique_ptr<Journal> journal;
  ResultPipe to_pipe(&stop);
  if (!pipe)
    journal = std::make_unique<Journal>(
        options.output, options.resume.on,
        JournalOptions{.durability = options.durability, .stop = &stop, .warn = [](const std::string& text) {
                         spdlog::warn("{}", text);
                       }});
  ResultSink& results = pipe ? static_cast<ResultSink&>(to_pipe) : *journal;
  progress.stage(options.input == kPipe ? "reading and checking requests" : "checking requests");
  const RequestFile requests = open_requests(options, *source, stop);
  progress.stage("comparing with the earlier run");
  RunRecord begun = record_of(options, *source, requests);
  const Open open = still_open(
      journal ? answered(*journal, begun, *source, requests, options, stop) : std::vector<bool>(requests.size(), false),
      requests, options);
  const SavedWork saved(options, begun);
  LiveRecord record(std::move(begun), options.output);
  const std::vector<std::uint32_t>& todo = open.todo;
  const std::size_t mine = options.shard.size(requests.size());
  if (todo.empty()) {
    if (!results.held() || !open.refused.empty()) {
      record.set("retention", retention_text(options.policy.retention.value_or(policy::Retention{})));
      begin_output(results, record);
      append_refusals(open.refused, requests, results);
    }
    const std::size_t refused = results.finish(requests, mine);
    progress.clear();
    spdlog::info("{} of {} requests are answered in {}{}", mine - refused, mine, output_name,
                 options.report.empty() ? "; nothing is left to run" : "; nothing ran, so no report is written");
    if (!pipe) Snapshot::remove(Snapshot::place(options.output));
    if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests, mine, &stop);
    return refused > 0 ? kSomeRefused : 0;
  }

  JobPlan plan(options, *source, requests, todo, saved.snapshot().has_value());
  std::unique_ptr<Session> session;
  try {
    session = std::make_unique<Session>(
        *source,
        [&](kernels::Backend& backend, const policy::Budgets& free) {
          progress.stage("planning");
          Decision decision = plan.decide(backend, free);
          progress.stage("loading weights");
          return decision;
        },
        options.machine, stop, [&](double share) { progress.stage_share(share); });
  } catch (const Interrupted&) {
    progress.clear();
    spdlog::warn("stopped while the weights were loaded; run the same command again");
    return 130;
  }
  if (!options.quiet) {
    spdlog::info("{}: {}; {}", session->backend().name(), session->backend().description(),
                 session->disk().engine_line());
    spdlog::info("{}", session->plan_line());
    for (const std::string& line : decisions(*session)) spdlog::debug("{}", line);
  }
  if (const std::string warning = session->backend().warning(); !warning.empty()) spdlog::warn("{}", warning);
  if (!options.quiet) warn_of_memory(*session, options.machine.disk_directory);
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    trace = std::make_unique<TraceFile>(options.trace, session->footprint().shape, source->units);
    session->executor().set_trace([&](const policy::Schedule& s, const policy::Trace& t) { trace->add(s, t); });
  }
  record.set("retention", retention_text(session->policy().retention));
  begin_output(results, record);
  append_refusals(open.refused, requests, results);
  std::optional<WeightsReader> reader;
  if (source->checkpoint && !pipe) reader.emplace(*source->checkpoint, record);
  progress.begin(
      mine, mine - todo.size(), most_tokens(requests, todo), forecast_of(plan.predict(*session)),
      [&] { return session->executor().prefill_share(); }, [&] { return busiest_lane(session->executor().totals()); });
  struct Clearing {  // before the session goes, which the progress asks
    Progress& progress;
    ~Clearing() { progress.clear(); }
  } const clearing{progress};
  bool complete = false;
  std::string saved_words;
  ordered_json checkpoints;
  {
    Answers answers(*session, results, progress, static_cast<std::size_t>(session->policy().block_size()));
    InFlight in_flight(options, saved, *session, answers);
    complete = run_requests(*session, requests, todo, answers, in_flight);
    saved_words = in_flight.saved_words();
    checkpoints = in_flight.report();
  }
  session->require_weights();
  progress.stage("checking the answers");
  if (!complete) results.finish();
  const std::size_t refused = complete ? results.finish(requests, mine) : 0;
  progress.clear();
  if (!complete) {
    spdlog::warn("stopped; {} of {} requests are answered{}; {}", progress.answered(), mine, saved_words,
                 pipe ? "the answers went to standard output, so no run can continue"
                      : "run the same command with --resume to continue");
    return 130;
  }
  if (!pipe) Snapshot::remove(Snapshot::place(options.output));
  if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests, mine, &stop);
  ordered_json report = make_report(*session);
  if (const auto& predicted = plan.predict(*session)) report["predicted"] = prediction_report(*predicted);
  report["checkpoints"] = std::move(checkpoints);
  if (!options.report.empty()) write_file_atomically(options.report, policy::to_pretty(report) + "\n");
  if (!options.quiet) std::fputs(table(report).c_str(), stderr);
  const std::size_t earlier = mine - todo.size() - open.refused.size();
  spdlog::info("{} of {} requests answered{}{}, in {}; {:.1f} tokens/s; the answers are in {}", mine - refused, mine,
               earlier > 0 ? fmt::format(" ({} of them by earlier runs)", earlier) : "",
               refused > 0 ? fmt::format(", {} without an answer", refused) : "", duration_text(progress.seconds()),
               report.at("tokens_per_second").at("total").get<double>(), output_name);
  if (refused > 0) spdlog::warn("{} of {} requests have no answer; each has a line that says why", refused, mine);
  return refused > 0 ? kSomeRefused : 0;
}

}  // namespace weft::runtime
