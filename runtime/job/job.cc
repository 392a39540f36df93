#include "runtime/job/job.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>
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
#include "runtime/job/job_plan.h"
#include "runtime/job/job_record.h"
#include "runtime/job/progress.h"
#include "runtime/job/work_list.h"
#include "runtime/measure/report.h"
#include "runtime/requests/journal.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/result_line.h"
#include "runtime/requests/result_lines.h"
#include "runtime/requests/result_sink.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr int kSomeRefused = 1;  // the exit code of a job that is done
constexpr int kMostLost = 3;     // times that a job goes on after its spill file has lost something

/// Reads requests ahead of their turn, on a thread of its own: lines are parsed and texts are tokenized while the
/// device is busy. References must outlive it.
class ReadAhead {
 public:
  /// First `again`, then `count` items from `walk` on.
  ReadAhead(std::span<const WorkItem> again, const WorkList::Walk& walk, std::size_t count, const RequestFile& requests,
            Answers& answers)
      : again_(again), walk_(walk), count_(count), requests_(requests), answers_(answers), begun_(kAhead),
        reader_([this] { read(); }) {}
  ~ReadAhead() {
    begun_.close();
    reader_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The sequence of the next item. Throws what reading its request threw.
  Sequence next() {
    std::optional<Sequence> sequence = begun_.pop();
    if (!sequence) std::rethrow_exception(error_);
    return *std::move(sequence);
  }

 private:
  static constexpr std::size_t kAhead = 32;

  void read() try {
    std::optional<Request> request;
    std::uint32_t held = 0;
    for (std::size_t i = 0; i < again_.size() + count_; ++i) {
      const WorkItem item = i < again_.size() ? again_[i] : walk_.next();
      if (!request || held != item.request) request = requests_.read(item.request);  // choices are neighbours
      held = item.request;
      if (!begun_.push(answers_.begin(item.request, static_cast<std::int32_t>(item.choice), *request))) return;
    }
  } catch (...) {
    error_ = std::current_exception();
    begun_.close();
  }

  const std::span<const WorkItem> again_;
  WorkList::Walk walk_;
  const std::size_t count_;
  const RequestFile& requests_;
  Answers& answers_;
  Handover<Sequence> begun_;
  std::exception_ptr error_;  // set before begun_ is closed
  std::thread reader_;
};

/// Runs sequences in the places of one block after another, or of one that is refilled.
class PlaceRunner {
 public:
  PlaceRunner(Session& session, const WorkList& list, const RequestFile& requests, Answers& answers)
      : session_(session), requests_(requests), answers_(answers), walk_(list) {}

  std::size_t left() const { return walk_.left(); }

  /// The next `count` items: the first take the block's places, the others take those of finished sequences. A sequence
  /// whose KV cache the spill file has lost begins again with its prompt.
  void run(std::size_t count) {
    std::vector<WorkItem> again;
    while (!again.empty() || count > 0) {
      try {
        return run_once(again, count);
      } catch (const offload::LostPage& lost) {
        if (++lost_ > kMostLost) throw;
        spdlog::warn("{}; what was computed with it is computed again", lost.what());
      }
      const std::size_t of_again = std::min(taken_, again.size());
      count -= taken_ - of_again;
      std::vector<WorkItem> rest;
      for (const Sequence& place : places_)
        if (place.finish == Finish::none)
          rest.push_back({static_cast<std::uint32_t>(place.request), static_cast<std::uint32_t>(place.choice)});
      rest.insert(rest.end(), again.begin() + static_cast<std::ptrdiff_t>(of_again), again.end());
      again = std::move(rest);
    }
  }

 private:
  void run_once(std::span<const WorkItem> again, std::size_t count) {
    const std::size_t all = again.size() + count;
    const std::size_t places = std::min(all, static_cast<std::size_t>(session_.policy().block_size()));
    places_.assign(places, {});
    taken_ = 0;
    ReadAhead ahead(again, walk_, count, requests_, answers_);
    const auto fill = [&](Sequence& place) {
      place = ahead.next();
      if (taken_++ >= again.size()) walk_.next();
    };
    for (Sequence& place : places_) fill(place);
    session_.executor().run(places_, [&](Sequence& sequence) { answers_.token(sequence); },
                            {.count = static_cast<std::int64_t>(all - places), .next = fill});
  }

  Session& session_;
  const RequestFile& requests_;
  Answers& answers_;
  std::vector<Sequence> places_;
  WorkList::Walk walk_;    // behind what was ever taken
  std::size_t taken_ = 0;  // by this run_once()
  int lost_ = 0;
};

/// Blocks that run to their end take the requests in the order of the file. Where places are refilled the longest go
/// first, so that at the end few places are empty for long, and neighbours, which share a batch, are of a length.
/// Continuations to be scored are short and their prompts are not: there equal prompts, whose prefill is shared, become
/// neighbours, the longest first.
void put_in_order(std::vector<std::uint32_t>& indices, const RequestFile& requests) {
  const auto key = [&](std::uint32_t index) {
    const RequestFile::Entry& entry = requests.entry(index);
    return requests.kind() == RequestKind::score ? std::pair{entry.prompt_tokens, entry.prompt_hash}
                                                 : std::pair{entry.max_tokens, std::uint32_t{0}};
  };
  std::stable_sort(indices.begin(), indices.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) > key(b); });
}

/// Everything; false if it was interrupted.
bool run_requests(Session& session, const RequestFile& requests, std::vector<std::uint32_t> indices, Answers& answers) {
  const bool continuous = session.policy().continuous;
  if (continuous) put_in_order(indices, requests);
  const WorkList list(std::move(indices), requests);
  PlaceRunner places(session, list, requests, answers);
  const std::size_t size = continuous ? places.left() : static_cast<std::size_t>(session.policy().block_size());
  try {
    while (places.left() > 0) places.run(std::min(size, places.left()));
    answers.finish();
  } catch (const Interrupted&) {
    return false;
  }
  return true;
}

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
  const std::string sorted = options.ordered ? sorted_place(options.output).string() : "";
  for (const auto& [flag, path] : {std::pair{"--input", options.input == kPipe ? &none : &options.input},
                                   {"--output", pipe ? &none : &options.output},
                                   {"--output's record", &record},
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
    if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests, mine, &stop);
    return refused > 0 ? kSomeRefused : 0;
  }

  JobPlan plan(options, *source, requests, todo);
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
  {
    Answers answers(*session, results, progress, static_cast<std::size_t>(session->policy().block_size()));
    complete = run_requests(*session, requests, todo, answers);
  }
  session->require_weights();
  progress.stage("checking the answers");
  if (!complete) results.finish();
  const std::size_t refused = complete ? results.finish(requests, mine) : 0;
  progress.clear();
  if (!complete) {
    spdlog::warn("stopped; {} of {} requests are answered; {}", progress.answered(), mine,
                 pipe ? "the answers went to standard output, so no run can continue"
                      : "run the same command with --resume to continue");
    return 130;
  }
  if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests, mine, &stop);
  ordered_json report = make_report(*session);
  if (const auto& predicted = plan.predict(*session)) report["predicted"] = prediction_report(*predicted);
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
