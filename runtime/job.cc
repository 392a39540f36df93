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
#include "runtime/job_record.h"
#include "runtime/journal.h"
#include "runtime/progress.h"
#include "runtime/report.h"
#include "runtime/result_lines.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

/// Runs sequences in the places of one block after another, or of one that is refilled.
class Block {
 public:
  Block(Session& session, const RequestFile& requests, Answers& answers)
      : session_(session), requests_(requests), answers_(answers) {}

  /// todo[first, last): as many as the block has places; those behind take the places of finished ones until `end`.
  void run(const std::vector<std::size_t>& todo, std::size_t first, std::size_t last, std::size_t end) {
    places_.assign(last - first, {});
    ids_.assign(places_.size(), {});
    for (std::size_t i = first; i < last; ++i) fill(i - first, todo[i]);
    const auto place_of = [this](const Sequence& sequence) {
      return static_cast<std::size_t>(&sequence - places_.data());
    };
    const Waiting waiting{.count = static_cast<std::int64_t>(end - last),
                          .next = [&](Sequence& sequence) { fill(place_of(sequence), todo[last++]); }};
    session_.executor().run(
        places_, [&](Sequence& sequence) { answers_.token(sequence, ids_[place_of(sequence)]); }, waiting);
  }

 private:
  void fill(std::size_t place, std::size_t index) {
    const Request request = requests_.read(index);
    places_[place] = answers_.begin(index, request, session_);
    ids_[place] = request.id;
  }

  Session& session_;
  const RequestFile& requests_;
  Answers& answers_;
  std::vector<Sequence> places_;
  std::vector<std::string> ids_;  // of the requests in the places
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

/// All files are looked at before any work: one that cannot be written would be noticed only at the end.
void check_files(const JobOptions& options) {
  require_input("--input", options.input);
  std::vector<std::pair<const char*, std::filesystem::path>> seen;
  const std::string record = RunRecord::place(options.output);
  const std::string sorted = options.ordered ? sorted_place(options.output).string() : "";
  for (const auto& [flag, path] : {std::pair{"--input", &options.input},
                                   {"--output", &options.output},
                                   {"--output's record", &record},
                                   {"--ordered", &sorted},
                                   {"--report", &options.report},
                                   {"--trace", &options.trace}}) {
    if (path->empty()) continue;
    const auto place = std::filesystem::weakly_canonical(*path);
    for (const auto& [other, taken] : seen)
      if (taken == place)
        throw UsageError(std::string(flag) + " " + *path + ": is also the file of " + other + "; give another name");
    seen.emplace_back(flag, place);
  }
  require_writable("--output", options.output);
  require_writable("--output's record", record);
  if (options.ordered) require_writable("--ordered", sorted);
  if (options.ordered && !options.resume.on && std::filesystem::exists(sorted))
    throw UsageError("--ordered: " + sorted + " exists; remove it or give --output another name");
  require_folder("--disk-dir", options.machine.disk_directory);
  if (!options.report.empty()) require_writable("--report", options.report);
  if (!options.trace.empty()) require_writable("--trace", options.trace);
}

}  // namespace

int run_job(const JobOptions& asked, const std::atomic<bool>& stop) {
  JobOptions options = asked;  // a resume keeps to what the run was begun with
  if (options.quiet) spdlog::set_level(spdlog::level::warn);
  check_files(options);
  if (options.max_tokens < 1)
    throw UsageError("--max-tokens must be at least 1, got " + std::to_string(options.max_tokens));
  const auto source = open_model(options.model, options.dtype, options.weights);
  Journal journal(options.output, options.resume.on,
                  {.durability = options.durability, .stop = &stop, .warn = [](const std::string& text) {
                     spdlog::warn("{}", text);
                   }});
  const RequestFile requests(options.input, options.kind, source->tokenizer.get(), source->spec, options.max_tokens);
  RunRecord record = record_of(options, *source, requests);
  const std::vector<std::size_t> todo = unanswered(journal, record, requests, options);
  if (todo.empty()) {
    journal.finish(requests.size());
    spdlog::info("all {} requests are already answered in {}{}", requests.size(), options.output,
                 options.report.empty() ? "" : "; nothing ran, so no report is written");
    if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests);
    return 0;
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
  record.set("retention", retention_text(session->policy().retention));
  begin_output(journal, record, options.output);
  Progress progress(requests.size(), requests.size() - todo.size(), options.quiet);
  Answers answers(*source, journal, progress);
  const bool complete = run_requests(*session, requests, todo, answers, progress);
  journal.finish(complete ? requests.size() : 0);
  progress.clear();
  if (!complete) {
    spdlog::warn("stopped; {} of {} requests are answered; run the same command with --resume to continue",
                 progress.answered(), requests.size());
    return 130;
  }
  if (options.ordered) write_sorted(options.output, sorted_place(options.output), requests);
  ordered_json report = make_report(*session);
  if (const auto& predicted = plan.predict(*session)) report["predicted"] = prediction_report(*predicted);
  if (!options.report.empty()) write_file_atomically(options.report, policy::to_pretty(report) + "\n");
  if (!options.quiet) std::fputs(table(report).c_str(), stderr);
  return 0;
}

}  // namespace weft::runtime
