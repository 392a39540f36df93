#include "runtime/serve/batch_worker.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/stop.h"
#include "runtime/planning/log.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostErrors = 20, kReadBytes = 1 << 20;
constexpr int kMostTries = 5;          // of a job that gets no further
constexpr double kLook = 0.2;          // seconds between looks at a job
constexpr double kBetweenTries = 2.0;  // seconds
constexpr int kDone = 0, kSomeRefused = 1;

/// Whether a line of the output is an answer, and not the reason why there is none.
bool is_answer(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return false;
  const auto response = json.find("response");
  return response != json.end() && response->is_object() && response->value("status_code", 0) == 200;
}

/// What is wrong with a line of a batch for `endpoint`; nothing if it is weft generate's to judge.
std::optional<BatchError> error_of(std::string_view line, std::size_t number, const std::string& endpoint) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (!json.is_object()) return BatchError{"invalid_json_line", "this line is not a JSON object", number};
  const auto url = json.find("url");
  if (url == json.end() || !url->is_string() || *url != endpoint)
    return BatchError{"mismatched_endpoint", "'url' must be that of the batch, " + endpoint, number};
  return {};
}

/// Calls `line(text, offset after it)` for each line that has its newline, from an offset at which one begins.
void for_each_line_from(const InputFile& file, std::uint64_t from,
                        const std::function<void(std::string_view, std::uint64_t)>& line) {
  std::string text;
  std::uint64_t begin = from;  // of `text`
  while (begin + text.size() < file.size()) {
    const std::size_t had = text.size();
    text.resize(had + std::min<std::uint64_t>(kReadBytes, file.size() - begin - had));
    file.read(begin + had, std::as_writable_bytes(std::span(text).subspan(had)));
    std::size_t done = 0;
    for (std::size_t end = text.find('\n', had); end != std::string::npos; end = text.find('\n', done)) {
      line(std::string_view(text).substr(done, end - done), begin + end + 1);
      done = end + 1;
    }
    text.erase(0, done);
    begin += done;
  }
}

bool may_succeed(int code) { return code < 0 || code == 5 || code == 6 || code == 130; }

}  // namespace

std::vector<std::string> JobCommand::arguments(const std::string& input, const std::string& output) const {
  std::vector<std::string> all{"generate", "--model",          model,    "--input", input, "--output",
                               output,     "--on-bad-request", "record", "--quiet"};
  for (const std::string& name : served_names) all.insert(all.end(), {"--served-model-name", name});
  all.insert(all.end(), flags.begin(), flags.end());
  return all;
}

fs::path BatchWorker::output_of(const Batch& batch) const { return store_.work_folder(batch.id) / "output.jsonl"; }

void BatchWorker::wake() {
  const std::lock_guard lock(mutex_);
  wake_ = true;
  woken_.notify_all();
}

void BatchWorker::sleep(double seconds) {
  std::unique_lock lock(mutex_);
  woken_.wait_for(lock, std::chrono::duration<double>(seconds), [this] { return wake_; });
  wake_ = false;
}

void BatchWorker::run(const std::atomic<bool>& stop) {
  while (!stop) {
    try {
      if (const auto batch = store_.next()) work_on(*batch, stop);
      else sleep(kLook);
    } catch (const Error& error) {  // a full disk; what was begun is done again
      log_warn("{}", error.what());
      sleep(kBetweenTries);
    }
  }
}

/// Takes a batch as far as it goes, from whatever status a process that is gone has left it in.
void BatchWorker::work_on(const Batch& batch, const std::atomic<bool>& stop) {
  if (batch.status == BatchStatus::validating && !validate(batch, stop)) return;
  if (stop) return;
  const Batch now = *store_.batch(batch.id);
  if (now.status == BatchStatus::in_progress) answer(now, stop);
  if (const Batch then = *store_.batch(batch.id);
      then.status == BatchStatus::finalizing || then.status == BatchStatus::cancelling)
    finalise(then);
}

void BatchWorker::move_to(const Batch& batch, BatchStatus status) {
  store_.update(batch.id, [&](Batch& changed) {
    if (changed.status == BatchStatus::cancelling || is_over(changed.status)) return;  // a cancel came between
    changed.status = status;
    changed.time_of(status) = seconds_now();
  });
}

void BatchWorker::fail(const Batch& batch, std::vector<BatchError> errors) {
  store_.update(batch.id, [&](Batch& changed) {
    if (is_over(changed.status)) return;
    changed.status = BatchStatus::failed;
    changed.time_of(BatchStatus::failed) = seconds_now();
    changed.errors = std::move(errors);
  });
  store_.remove_work_folder(batch.id);
}

/// Counts the requests, and refuses lines that OpenAI refuses before a batch begins. Returns whether it can begin.
bool BatchWorker::validate(const Batch& batch, const std::atomic<bool>& stop) {
  std::uint64_t total = 0;
  std::vector<BatchError> errors;
  try {
    const InputFile input(store_.contents(batch.input_file_id));
    for_each_line(input, [&](std::string_view line, std::uint64_t, std::size_t number) {
      if (stop) throw Interrupted{};
      if (line.find_first_not_of(" \t") == std::string_view::npos) return;
      ++total;
      if (errors.size() == kMostErrors) return;
      if (auto error = error_of(line, number, batch.endpoint)) errors.push_back(std::move(*error));
    });
  } catch (const Interrupted&) {
    return false;
  } catch (const Error& error) {  // the file is gone, or a line is too long
    errors = {{"invalid_file", error.what(), 0}};
  }
  if (total == 0 && errors.empty()) errors.push_back({"empty_file", "the input file has no requests", 0});
  store_.update(batch.id, [&](Batch& changed) { changed.total = total; });
  if (errors.empty()) return move_to(batch, BatchStatus::in_progress), true;
  fail(batch, std::move(errors));
  return false;
}

/// Runs weft generate until it is done, the batch is cancelled or `stop` is set.
void BatchWorker::answer(const Batch& batch, const std::atomic<bool>& stop) {
  counted_bytes_ = completed_ = failed_ = 0;
  auto arguments = command_.arguments(store_.contents(batch.input_file_id), output_of(batch));
  arguments.push_back("--resume");
  std::uint64_t before = 0;
  for (int tries = 0; !stop; ++tries) {
    Child job(arguments, store_.work_folder(batch.id) / "said.txt");
    for (bool asked = false; !job.ended(); sleep(kLook)) {
      count_lines(batch);
      if (asked || (!stop && store_.batch(batch.id)->status != BatchStatus::cancelling)) continue;
      job.stop();
      asked = true;
    }
    count_lines(batch);
    if (store_.batch(batch.id)->status == BatchStatus::cancelling) return;
    const int code = *job.ended();
    if (code == kDone || code == kSomeRefused) return move_to(batch, BatchStatus::finalizing);
    if (stop) return;
    if (std::exchange(before, completed_ + failed_) < completed_ + failed_) tries = 0;
    if (!may_succeed(code) || tries + 1 >= kMostTries) return fail(batch, {{"job_failed", job.error(), 0}});
    sleep(kBetweenTries);
  }
}

/// Counts the lines that the job has written since.
void BatchWorker::count_lines(const Batch& batch) {
  const fs::path path = output_of(batch);
  std::error_code absent;
  if (const auto bytes = fs::file_size(path, absent); absent || bytes <= counted_bytes_) return;
  try {
    const InputFile output(path);
    for_each_line_from(output, counted_bytes_, [&](std::string_view line, std::uint64_t end) {
      ++(is_answer(line) ? completed_ : failed_);
      counted_bytes_ = end;
    });
  } catch (const Error&) {  // a resume has cut a torn line meanwhile; the next look sees the file as it is then
  }
  store_.count(batch.id, completed_, failed_);
}

/// Divides the output into answers and errors. The names of both files follow from the batch, so that what a process
/// that is gone has begun is written again and not twice.
void BatchWorker::finalise(const Batch& batch) {
  const std::string tag = batch.id.substr(batch.id.find('_') + 1);
  const fs::path path = output_of(batch);
  std::optional<BatchStore::Writing> answers, errors;
  std::uint64_t completed = 0, failed = 0;
  if (fs::exists(path)) {
    const InputFile output(path);
    for_each_line_from(output, 0, [&](std::string_view line, std::uint64_t) {
      const bool answered = is_answer(line);
      ++(answered ? completed : failed);
      auto& file = answered ? answers : errors;
      if (!file) file.emplace(store_.write_file((answered ? "file-output-" : "file-error-") + tag));
      file->append(line);
      file->append("\n");
    });
  }
  const std::string output_id = answers ? answers->keep(batch.id + "_output.jsonl", "batch_output").id : "";
  const std::string error_id = errors ? errors->keep(batch.id + "_error.jsonl", "batch_output").id : "";
  const BatchStatus status = batch.status == BatchStatus::cancelling ? BatchStatus::cancelled : BatchStatus::completed;
  store_.update(batch.id, [&](Batch& changed) {
    changed.status = changed.status == BatchStatus::cancelling ? BatchStatus::cancelled : status;
    changed.time_of(changed.status) = seconds_now();
    changed.completed = completed;
    changed.failed = failed;
    changed.output_file_id = output_id;
    changed.error_file_id = error_id;
  });
  store_.remove_work_folder(batch.id);
}

}  // namespace weft::runtime
