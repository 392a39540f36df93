#include "runtime/job/job.h"

#include <linux/magic.h>
#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
#include <sys/vfs.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/backend/kernel_kind.h"
#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy_text.h"
#include "runtime/base/duration.h"
#include "runtime/base/files.h"
#include "runtime/base/quote.h"
#include "runtime/base/standard_streams.h"
#include "runtime/job/answers.h"
#include "runtime/job/decisions.h"
#include "runtime/job/format_choice.h"
#include "runtime/job/in_flight.h"
#include "runtime/job/job_files.h"
#include "runtime/job/job_plan.h"
#include "runtime/job/job_record.h"
#include "runtime/job/length_classes.h"
#include "runtime/job/place_runner.h"
#include "runtime/job/progress.h"
#include "runtime/job/spill_space.h"
#include "runtime/job/work_list.h"
#include "runtime/measure/report.h"
#include "runtime/planning/log.h"
#include "runtime/results/journal.h"
#include "runtime/results/result_line.h"
#include "runtime/results/result_lines.h"
#include "runtime/results/result_sink.h"
#include "runtime/results/snapshot.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr int kSomeRefused = 1;  // the exit code of a job that is done

/// The requests of this shard that still need an answer.
struct Open {
  std::vector<std::uint32_t> todo, refused;  ///< `todo` will run; `refused` only get an error line
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

/// Takes what generation_config.json says of sampling if the job wants that, else says that it is there.
void take_suggestions(JobOptions& options, const ModelSource& source) {
  if (options.kind != RequestKind::generate) return;
  RequestDefaults suggested;
  try {
    suggested = suggested_by(source.files.texts());
  } catch (const DataError&) {
    if (options.generation_config) throw;
  }
  if (options.generation_config) {
    if (!options.max_tokens_given && suggested.max_tokens) options.max_tokens = *suggested.max_tokens;
    options.defaults.fill_from(suggested);
  } else if (const std::string text = suggested.text(); !text.empty()) {
    log_info(
        "generation_config.json suggests {}; --generation-config auto takes that for requests that say nothing "
        "else",
        text);
  }
}

/// Warns if the spill file or the packed copy is in memory, which is no disk.
void warn_of_memory(const Session& session, const std::string& disk_directory) {
  const std::uint64_t bytes = session.storage().buffers().spill_bytes() + session.copy_bytes();
  struct statfs status {};
  if (bytes == 0 || ::statfs(disk_directory.c_str(), &status) != 0 || status.f_type != TMPFS_MAGIC) return;
  log_warn("--disk-dir {}: is in memory (tmpfs), so the {} that lie there count as host memory; name a disk",
           disk_directory, policy::bytes_to_text(bytes));
}

/// Puts this run's kernels into the record. Warns if earlier ones round differently.
void name_kernels(LiveRecord& record, const Session& session, const std::string& output) {
  const auto format = session.policy().weight_format.value_or(policy::WeightFormat{});
  const std::string kind = kernels::kernel_kind(session.backend(), format.arithmetic);
  if (const std::string others = record.add_kernels(kind); !others.empty())
    log_warn(
        "{}: some answers were computed by {}, the rest will be by {}, which rounds differently: a request may "
        "get other tokens than it would have got there",
        output, in_quotes(others), in_quotes(kind));
}

/// The tokens of all choices if none ends early.
std::uint64_t most_tokens(const RequestFile& requests, const std::vector<std::uint32_t>& todo) {
  std::uint64_t tokens = 0;
  for (const std::uint32_t index : todo)
    tokens += std::uint64_t{requests.entry(index).max_tokens} * requests.entry(index).n;
  return tokens;
}

Forecast forecast_of(const std::optional<policy::Candidate>& predicted, double later) {
  if (!predicted) return {};
  return {predicted->prediction.seconds, predicted->prediction.prefill.seconds, later};
}

/// Appends the lines of requests that will not run.
void append_refusals(const std::vector<std::uint32_t>& refused, const RequestFile& requests, ResultSink& results) {
  for (const std::uint32_t index : refused) results.append(refusal_line(requests.refusal(index), requests.dialect()));
}

/// The state that all steps of a job share.
struct Job {
  const JobOptions& options;
  const std::atomic<bool>& stop;
  Progress& progress;
  const ModelSource& source;
  const RequestFile& requests;
  const Open& open;
  LiveRecord& record;
  ResultSink& results;
  const std::size_t mine;  ///< requests of this shard

  bool pipe() const { return options.output == kPipe; }
  std::string output_name() const { return pipe() ? "standard output" : options.output; }
};

std::unique_ptr<Journal> open_journal(const JobOptions& options, const std::atomic<bool>& stop) {
  const auto warn = [](const std::string& text) { log_warn("{}", text); };
  return std::make_unique<Journal>(options.output, options.resume.on,
                                   JournalOptions{.durability = options.durability, .stop = &stop, .warn = warn});
}

/// Opens the output. Requests that will not run are answered first.
void begin_results(Job& job, const policy::Retention& retention) {
  job.record.set("retention", retention_text(retention));
  begin_output(job.results, job.record);
  append_refusals(job.open.refused, job.requests, job.results);
}

/// Runs once every request has its line.
void tidy_up(const Job& job) {
  if (!job.pipe()) Snapshot::remove(Snapshot::place(job.options.output));
  if (job.options.ordered)
    write_sorted(job.options.output, sorted_place(job.options.output), job.requests, job.mine, &job.stop);
}

/// Tells of requests without an answer, and how to get one.
void warn_of_failures(const Job& job, std::size_t refused) {
  if (refused == 0) return;
  log_warn("{} of {} requests have no answer; each has a line that says why{}", refused, job.mine,
           job.pipe() ? "" : "; mend what it names and give --resume=force,retry to try them again");
}

int end_without_work(Job& job) {
  if (!job.results.held() || !job.open.refused.empty())
    begin_results(job, job.options.policy.retention.value_or(policy::Retention{}));
  const std::size_t refused = job.results.finish(job.requests, job.mine);
  job.progress.clear();
  log_info("{} of {} requests are answered in {}{}", job.mine - refused, job.mine, job.output_name(),
           job.options.report.empty() ? "; nothing is left to run" : "; nothing ran, so no report is written");
  tidy_up(job);
  warn_of_failures(job, refused);
  return refused > 0 ? kSomeRefused : 0;
}

void announce(const Session& session, const JobOptions& options) {
  if (!options.quiet) {
    const std::string shares = session.backend().core_shares();
    log_info("{}: {}; {}{}", session.backend().name(), session.backend().description(),
             shares.empty() ? "" : shares + "; ", session.disk().engine_line());
    log_info("{}", session.plan_line());
    for (const std::string& line : decisions(session)) log_debug("{}", line);
  }
  if (const std::string warning = session.backend().warning(); !warning.empty()) log_warn("{}", warning);
  if (!options.quiet) warn_of_memory(session, options.machine.disk_directory);
}

/// Returns null if a stop came first.
std::unique_ptr<Session> open_session(Job& job, JobPlan& plan, bool first) {
  const auto decide = [&](kernels::Backend& backend, const policy::Budgets& free) {
    job.progress.stage("planning");
    Decision decision = plan.decide(backend, free);
    job.progress.stage("loading weights");
    return decision;
  };
  try {
    MachineOptions machine = job.options.machine;
    machine.on_full_disk = wait_for_spill_space(job.stop);
    auto session = std::make_unique<Session>(job.source, decide, machine, job.stop,
                                             [&](double share) { job.progress.stage_share(share); });
    announce(*session, job.options);
    return session;
  } catch (const Interrupted&) {
    job.progress.clear();
    if (!first) job.results.finish();
    log_warn("stopped while the weights were loaded; run the same command again{}",
             first || job.pipe() ? "" : " with --resume");
    return nullptr;
  }
}

struct Ran {
  bool complete = false;
  std::string saved_words;
  ordered_json report;
};

/// Computes the requests of a class.
Ran run_class(Job& job, JobPlan& plan, const SavedWork& saved, const LengthClasses& classes, std::size_t index,
              Session& session) {
  const std::vector<std::uint32_t>& todo = classes.all[index].todo;
  const std::vector<std::uint32_t> later = classes.later(index);
  const auto& predicted = plan.predict(session);
  struct Leaving {  // before the session ends, because the progress asks it
    Progress& progress;
    ~Leaving() { progress.stage("ending"); }
  } const leaving{job.progress};
  job.progress.begin(
      job.mine, job.mine - job.open.todo.size(), most_tokens(job.requests, todo),
      forecast_of(predicted, classes.later_seconds(index)), [&] { return session.executor().prefill_share(); },
      [&] { return busiest_lane(session.executor().totals()); });
  Ran ran;
  ordered_json checkpoints;
  {
    Answers answers(session, job.results, job.progress, static_cast<std::size_t>(session.policy().block_size()));
    InFlight in_flight(job.options, saved, todo, later, session, answers);
    ran.complete = run_requests(session, job.requests, todo, answers, in_flight, job.options.prefix_sharing);
    ran.saved_words = in_flight.saved_words();
    checkpoints = in_flight.report();
  }
  session.require_weights();
  if (!ran.complete) return ran;
  ran.report = make_report(session);
  if (predicted) ran.report["predicted"] = prediction_report(*predicted);
  ran.report["checkpoints"] = std::move(checkpoints);
  return ran;
}

/// Writes the report, its table, and the last line of a complete run.
void summarise(Job& job, ordered_json report, std::size_t refused) {
  if (!job.options.report.empty()) write_file_atomically(job.options.report, policy::to_pretty(report) + "\n");
  if (!job.options.quiet) std::fputs(table(report, job.options.verbose).c_str(), stderr);
  const std::size_t earlier = job.mine - job.open.todo.size() - job.open.refused.size();
  log_info("{} of {} requests answered{}{}, in {}; {:.1f} tokens/s; the answers are in {}", job.mine - refused,
           job.mine, earlier > 0 ? fmt::format(" ({} of them by earlier runs)", earlier) : "",
           refused > 0 ? fmt::format(", {} without an answer", refused) : "", duration_text(job.progress.seconds()),
           report.at("tokens_per_second").at("total").get<double>(), job.output_name());
  warn_of_failures(job, refused);
}

int end_stopped(Job& job, const Ran& ran) {
  job.results.finish();
  job.progress.clear();
  log_warn("stopped; {} of {} requests are answered{}; {}", job.progress.answered(), job.mine, ran.saved_words,
           job.pipe() ? "the answers went to standard output, so no run can continue"
                      : "run the same command with --resume to continue");
  return 130;
}

/// Runs the classes one after another, each in a session of its own.
int run_classes(Job& job, const LengthClasses& classes, const SavedWork& saved) {
  std::optional<WeightsReader> reader;
  std::vector<ordered_json> reports;
  for (std::size_t i = 0; i < classes.all.size(); ++i) {
    JobPlan plan(job.options, job.source, job.requests, classes.all[i].todo, saved.snapshot().has_value(),
                 classes.machine);
    const std::unique_ptr<Session> session = open_session(job, plan, i == 0);
    if (!session) return 130;
    std::unique_ptr<TraceFile> trace;
    if (!job.options.trace.empty()) {
      trace = std::make_unique<TraceFile>(job.options.trace, session->footprint().shape, job.source.units);
      session->executor().set_trace([&](const policy::Schedule& s, const policy::Trace& t) { trace->add(s, t); });
    }
    if (i == 0) {
      name_kernels(job.record, *session, job.options.output);
      if (job.source.checkpoint && !job.pipe()) read_small_weights(*job.source.checkpoint, job.record, job.stop);
      begin_results(job, session->policy().retention);
      if (job.source.checkpoint && !job.pipe()) reader.emplace(*job.source.checkpoint, job.record);
    }
    Ran ran = run_class(job, plan, saved, classes, i, *session);
    if (!ran.complete) return end_stopped(job, ran);
    reports.push_back(std::move(ran.report));
    if (classes.all.size() > 1) reports.back()["requests"] = classes.all[i].todo.size();
  }
  job.progress.stage("checking the answers");
  const std::size_t refused = job.results.finish(job.requests, job.mine);
  job.progress.clear();
  tidy_up(job);
  summarise(job, joined_report(std::move(reports)), refused);
  return refused > 0 ? kSomeRefused : 0;
}

void say_what_would_run(const Job& job) {
  job.progress.clear();
  std::uint64_t prompts = 0;
  for (const std::uint32_t index : job.open.todo) prompts += job.requests.entry(index).prompt_tokens;
  log_info("dry run: {} of {} requests would run{}: {} prompt tokens, at most {} generated", job.open.todo.size(),
           job.mine, job.open.refused.empty() ? "" : fmt::format(", {} are refused", job.open.refused.size()), prompts,
           most_tokens(job.requests, job.open.todo));
}

/// Plans what would run, and computes nothing.
int end_dry_run(Job& job, const LengthClasses& classes) {
  say_what_would_run(job);
  const auto backend = make_backend(job.options.machine);
  double seconds = 0;
  for (const LengthClasses::One& one : classes.all) {
    JobPlan plan(job.options, job.source, job.requests, one.todo, false, classes.machine);
    const Planned planned = plan.choose(*backend, free_bytes(*backend, job.options.machine.disk_directory));
    const policy::Candidate& best = planned.best();
    seconds += best.prediction.seconds;
    log_info("dry run: {}; {} of {} device memory; {:.1f} tokens/s predicted", policy_line(best.policy),
             policy::bytes_to_text(best.prediction.bytes[0]),
             policy::bytes_to_text(best.policy.budgets[policy::Tier::device]), best.prediction.tokens_per_second());
  }
  log_info("dry run: {} predicted in all, without the time that loading takes; nothing was computed",
           duration_text(seconds));
  return 0;
}

}  // namespace

int run_job(const JobOptions& asked, const std::atomic<bool>& stop) {
  JobOptions options = asked;  // changed below: a resume keeps the settings of the run that it continues
  if (options.quiet) spdlog::set_level(spdlog::level::warn);
  if (options.verbose) spdlog::set_level(spdlog::level::debug);
  check_and_announce(options);
  Progress progress(options.quiet);
  const auto opened = open_model(options.model, options.dtype, options.weights, options.policy.weight_format);
  for (const std::string& note : opened->notes) log_info("{}", note);
  take_suggestions(options, *opened);
  const bool pipe = options.output == kPipe;
  if (pipe) options.save_every.reset();  // no resume could continue from a pipe
  const std::unique_ptr<Journal> journal = pipe ? nullptr : open_journal(options, stop);
  ResultPipe to_pipe(&stop);
  progress.stage(options.input.is_pipe() ? "reading and checking requests" : "checking requests");
  const RequestFile requests = checked_requests(options, *opened, stop);
  const FormatChoice choice = choose_formats(options, *opened, requests);
  ModelSource& source = choice.source ? *choice.source : *opened;
  source.verify_crc = options.verify_crc;
  source.packing = packing_lines();
  source.warn = warning_lines();
  source.quantises_slowly = quantising_line(source);
  progress.stage("comparing with the earlier run");
  RunRecord begun = record_of(options, source, requests);
  const auto done =
      journal ? answered(*journal, begun, source, requests, options, stop) : std::vector<bool>(requests.size(), false);
  const Open open = still_open(done, requests, options);
  const SavedWork saved(options, begun);
  LiveRecord record(std::move(begun), options.output);
  Job job{.options = options,
          .stop = stop,
          .progress = progress,
          .source = source,
          .requests = requests,
          .open = open,
          .record = record,
          .results = pipe ? static_cast<ResultSink&>(to_pipe) : *journal,
          .mine = options.shard.size(requests.size())};
  if (open.todo.empty() && options.dry_run) return say_what_would_run(job), 0;
  if (open.todo.empty()) return end_without_work(job);
  struct Clearing {
    Progress& progress;
    ~Clearing() { progress.clear(); }
  } const clearing{progress};
  progress.stage("planning");
  const LengthClasses classes =
      length_classes(options, source, requests, open.todo, saved.snapshot().has_value(), choice.machine);
  return options.dry_run ? end_dry_run(job, classes) : run_classes(job, classes, saved);
}

}  // namespace weft::runtime
