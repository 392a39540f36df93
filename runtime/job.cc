#include "runtime/job.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/answers.h"
#include "runtime/files.h"
#include "runtime/job_plan.h"
#include "runtime/journal.h"
#include "runtime/progress.h"
#include "runtime/report.h"
#include "runtime/result_line.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr int kSomeRefused = 1;  // the exit code of a job that is done

/// Runs sequences in the places of one block after another, or of one that is refilled.
class Block {
 public:
  Block(Session& session, const RequestFile& requests, Answers& answers)
      : session_(session), requests_(requests), answers_(answers) {}

  /// todo[first, last): as many as the block has places; those behind take the places of finished ones until `end`.
  void run(const std::vector<std::size_t>& todo, std::size_t first, std::size_t last, std::size_t end) {
    places_.assign(last - first, {});
    to_.assign(places_.size(), {});
    for (std::size_t i = first; i < last; ++i) fill(i - first, todo[i]);
    const auto place_of = [this](const Sequence& sequence) {
      return static_cast<std::size_t>(&sequence - places_.data());
    };
    const Waiting waiting{.count = static_cast<std::int64_t>(end - last),
                          .next = [&](Sequence& sequence) { fill(place_of(sequence), todo[last++]); }};
    session_.executor().run(
        places_, [&](Sequence& sequence) { answers_.token(sequence, to_[place_of(sequence)]); }, waiting);
  }

 private:
  void fill(std::size_t place, std::size_t index) {
    const Request request = requests_.read(index);
    places_[place] = answers_.begin(index, request, session_);
    to_[place] = Recipient::of(request);
  }

  Session& session_;
  const RequestFile& requests_;
  Answers& answers_;
  std::vector<Sequence> places_;
  std::vector<Recipient> to_;  // of the requests in the places
};

/// Everything; false if it was interrupted. Blocks that run to their end take the requests in the order of the file.
/// Where places are refilled the longest go first, so that at the end few places are empty for long, and neighbours,
/// which share a batch, are of a length.
bool run_requests(Session& session, const RequestFile& requests, std::vector<std::size_t> todo, Answers& answers,
                  Progress& progress) {
  const bool refills = session.policy().refills();
  if (refills)
    std::stable_sort(todo.begin(), todo.end(), [&](std::size_t a, std::size_t b) {
      return requests.entry(a).max_tokens > requests.entry(b).max_tokens;
    });
  const auto size = static_cast<std::size_t>(session.policy().block_size());
  Block block(session, requests, answers);
  try {
    for (std::size_t first = 0; first < todo.size(); first += refills ? todo.size() : size) {
      const std::size_t last = std::min(todo.size(), first + size);
      block.run(todo, first, last, refills ? todo.size() : last);
      progress.note(busiest_lane(session.executor().totals()));
    }
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

/// All files are looked at before any work: one that cannot be written would be noticed only at the end.
void check_files(const JobOptions& options) {
  require_input("--input", options.input);
  std::vector<std::pair<const char*, std::filesystem::path>> seen;
  for (const auto& [flag, path] : {std::pair{"--input", &options.input},
                                   {"--output", &options.output},
                                   {"--report", &options.report},
                                   {"--trace", &options.trace}}) {
    if (path->empty()) continue;
    const auto place = std::filesystem::weakly_canonical(*path);
    for (const auto& [other, taken] : seen)
      if (taken == place || same_file(taken, place))
        throw UsageError(std::string(flag) + " " + *path + ": is also the file of " + other + "; give another name");
    seen.emplace_back(flag, place);
  }
  require_writable("--output", options.output);
  require_folder("--disk-dir", options.machine.disk_directory);
  if (!options.report.empty()) require_writable("--report", options.report);
  if (!options.trace.empty()) require_writable("--trace", options.trace);
}

RequestFile open_requests(const JobOptions& options, const ModelSource& source) {
  OpenAiRules openai{.model_names = options.served_names.empty() ? model_names(options.model) : options.served_names,
                     .model_folder = std::filesystem::is_directory(options.model) ? options.model : "",
                     .chat = {},
                     .strict = options.strict_openai};
  RequestFile requests(options.input, options.kind, source.tokenizer.get(), source.spec, options.max_tokens,
                       std::move(openai), options.on_bad_request);
  if (requests.dialect() == Dialect::native && !options.served_names.empty())
    throw UsageError(options.input +
                     ": holds Weft's own request lines, which name no model; leave out "
                     "--served-model-name");
  return requests;
}

/// Opens the journal and puts down the requests that will not run.
void write_refusals(const std::vector<std::size_t>& refused, const RequestFile& requests, Journal& journal) {
  journal.open();
  for (const std::size_t index : refused) journal.append(refusal_line(requests.refusal(index), requests.dialect()));
  if (!refused.empty()) journal.finish();
}

}  // namespace

int run_job(const JobOptions& options, const std::atomic<bool>& stop) {
  if (options.quiet) spdlog::set_level(spdlog::level::warn);
  check_files(options);
  if (options.max_tokens < 1)
    throw UsageError("--max-tokens must be at least 1, got " + std::to_string(options.max_tokens));
  const auto source = open_model(options.model, options.dtype, options.weights);
  Journal journal(options.output, options.resume);
  const RequestFile requests = open_requests(options, *source);
  const std::vector<bool> done = journal.recover(requests);
  if (journal.torn_bytes() > 0)
    spdlog::info("{}: cut a torn last line of {} bytes", options.output, journal.torn_bytes());
  std::vector<std::size_t> todo, refused;
  std::size_t bad = 0;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    bad += requests.refused(i);
    if (!done[i]) (requests.refused(i) ? refused : todo).push_back(i);
  }
  const int complete_code = bad > 0 ? kSomeRefused : 0;
  if (todo.empty()) {
    write_refusals(refused, requests, journal);
    spdlog::info("{} of {} requests are answered in {}{}", requests.size() - bad, requests.size(), options.output,
                 options.report.empty() ? "; nothing is left to run" : "; nothing ran, so no report is written");
    return complete_code;
  }

  JobPlan plan(options, *source, requests, todo);
  std::unique_ptr<Session> session;
  try {
    session = std::make_unique<Session>(
        *source, [&](kernels::Backend& backend, const policy::Budgets& free) { return plan.decide(backend, free); },
        options.machine, stop);
  } catch (const Interrupted&) {
    spdlog::warn("stopped while the weights were loaded; run the same command again");
    return 130;
  }
  if (!options.quiet) {
    spdlog::info("{}: {}; {}", session->backend().name(), session->backend().description(),
                 session->disk().engine_line());
    spdlog::info("{}", session->plan_line());
  }
  std::unique_ptr<TraceFile> trace;
  if (!options.trace.empty()) {
    trace = std::make_unique<TraceFile>(options.trace, session->footprint().shape);
    session->executor().set_trace([&](const policy::Schedule& s, const policy::Trace& t) { trace->add(s, t); });
  }
  write_refusals(refused, requests, journal);
  Progress progress(requests.size(), requests.size() - todo.size(), options.quiet);
  Answers answers(*source, journal, progress);
  const bool complete = run_requests(*session, requests, todo, answers, progress);
  journal.finish();
  progress.clear();
  if (!complete) {
    spdlog::warn("stopped; {} of {} requests are answered; run the same command with --resume to continue",
                 progress.answered(), requests.size());
    return 130;
  }
  ordered_json report = make_report(*session);
  if (const auto& predicted = plan.predict(*session)) report["predicted"] = prediction_report(*predicted);
  if (!options.report.empty()) write_file_atomically(options.report, policy::to_pretty(report) + "\n");
  if (!options.quiet) std::fputs(table(report).c_str(), stderr);
  if (bad > 0) spdlog::warn("{} of {} requests are refused; each has a line that says why", bad, requests.size());
  return complete_code;
}

}  // namespace weft::runtime
