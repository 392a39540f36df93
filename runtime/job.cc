#include "runtime/job.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/answers.h"
#include "runtime/files.h"
#include "runtime/job_plan.h"
#include "runtime/journal.h"
#include "runtime/progress.h"
#include "runtime/report.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

/// One choice of a request: what takes a place.
struct WorkItem {
  std::uint32_t request, choice;
};

/// Runs sequences in the places of one block after another, or of one that is refilled.
class Block {
 public:
  Block(Session& session, const RequestFile& requests, Answers& answers)
      : session_(session), requests_(requests), answers_(answers) {}

  /// todo[first, last): as many as the block has places; those behind take the places of finished ones until `end`.
  void run(const std::vector<WorkItem>& todo, std::size_t first, std::size_t last, std::size_t end) {
    places_.assign(last - first, {});
    for (std::size_t i = first; i < last; ++i) fill(places_[i - first], todo[i]);
    const Waiting waiting{.count = static_cast<std::int64_t>(end - last),
                          .next = [&](Sequence& sequence) { fill(sequence, todo[last++]); }};
    session_.executor().run(
        places_, [&](Sequence& sequence) { answers_.token(sequence); }, waiting);
  }

 private:
  void fill(Sequence& place, const WorkItem& work) {
    if (work.choice == 0 || !request_) request_ = requests_.read(work.request);  // choices are neighbours
    place = answers_.begin(work.request, static_cast<std::int32_t>(work.choice), *request_, session_);
  }

  Session& session_;
  const RequestFile& requests_;
  Answers& answers_;
  std::vector<Sequence> places_;
  std::optional<Request> request_;  // the last that was read
};

/// Blocks that run to their end take the requests in the order of the file. Where places are refilled the longest go
/// first, so that at the end few places are empty for long, and neighbours, which share a batch, are of a length.
/// Continuations to be scored are short and their prompts are not: there equal prompts, whose prefill is shared, become
/// neighbours, the longest first.
void put_in_order(std::vector<std::size_t>& indices, const RequestFile& requests) {
  const auto key = [&](std::size_t index) {
    const RequestFile::Entry& entry = requests.entry(index);
    return requests.kind() == RequestKind::score ? std::pair{entry.prompt_tokens, entry.prompt_hash}
                                                 : std::pair{entry.max_tokens, std::uint32_t{0}};
  };
  std::stable_sort(indices.begin(), indices.end(), [&](std::size_t a, std::size_t b) { return key(a) > key(b); });
}

/// Everything; false if it was interrupted.
bool run_requests(Session& session, const RequestFile& requests, std::vector<std::size_t> indices, Answers& answers,
                  Progress& progress) {
  const bool refills = session.policy().refills();
  if (refills) put_in_order(indices, requests);
  std::vector<WorkItem> todo;
  for (const std::size_t index : indices)
    for (std::uint32_t choice = 0; choice < requests.entry(index).n; ++choice)
      todo.push_back({static_cast<std::uint32_t>(index), choice});
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
  for (const auto& [flag, path] : {std::pair{"--input", &options.input},
                                   {"--output", &options.output},
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
  require_folder("--disk-dir", options.machine.disk_directory);
  if (!options.report.empty()) require_writable("--report", options.report);
  if (!options.trace.empty()) require_writable("--trace", options.trace);
}

/// The requests of this shard that have no answer yet. Throws UsageError if one of another shard has.
std::vector<std::size_t> still_to_do(const std::vector<bool>& done, const JobOptions& options) {
  std::vector<std::size_t> todo;
  for (std::size_t i = 0; i < done.size(); ++i) {
    if (done[i] && !options.shard.has(i))
      throw UsageError(options.output + ": answers a request of another shard than " + options.shard.text() +
                       "; --resume needs the output of this one");
    if (!done[i] && options.shard.has(i)) todo.push_back(i);
  }
  return todo;
}

}  // namespace

int run_job(const JobOptions& options, const std::atomic<bool>& stop) {
  if (options.quiet) spdlog::set_level(spdlog::level::warn);
  check_files(options);
  if (options.max_tokens < 1)
    throw UsageError("--max-tokens must be at least 1, got " + std::to_string(options.max_tokens));
  const auto source = open_model(options.model, options.dtype, options.weights);
  Journal journal(options.output, options.resume);
  const RequestFile requests(options.input, options.kind, source->tokenizer.get(), source->spec, options.max_tokens);
  const std::vector<bool> done = journal.recover(requests);
  if (journal.torn_bytes() > 0)
    spdlog::info("{}: cut a torn last line of {} bytes", options.output, journal.torn_bytes());
  const std::vector<std::size_t> todo = still_to_do(done, options);
  const std::size_t mine = options.shard.size(requests.size());
  if (todo.empty()) {
    if (mine == 0) journal.open();  // weft merge wants a file of every shard
    spdlog::info("all {} requests are already answered in {}{}", mine, options.output,
                 options.report.empty() ? "" : "; nothing ran, so no report is written");
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
  journal.open();
  Progress progress(mine, mine - todo.size(), options.quiet);
  Answers answers(*source, journal, progress);
  const bool complete = run_requests(*session, requests, todo, answers, progress);
  journal.finish();
  progress.clear();
  if (!complete) {
    spdlog::warn("stopped; {} of {} requests are answered; run the same command with --resume to continue",
                 progress.answered(), mine);
    return 130;
  }
  ordered_json report = make_report(*session);
  if (const auto& predicted = plan.predict(*session)) report["predicted"] = prediction_report(*predicted);
  if (!options.report.empty()) write_file_atomically(options.report, policy::to_pretty(report) + "\n");
  if (!options.quiet) std::fputs(table(report).c_str(), stderr);
  return 0;
}

}  // namespace weft::runtime
