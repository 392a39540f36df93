#include "runtime/job/job_record.h"

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>

#include "kernels/backend/kernel_kind.h"
#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/stop.h"
#include "runtime/base/version.h"
#include "runtime/model/fingerprint.h"
#include "runtime/planning/log.h"
#include "runtime/results/result_lines.h"
#include "runtime/results/snapshot.h"
#include "runtime/text/chat_template.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kSmallWeights = std::uint64_t{32} << 20;  // read in hundredths of a second

/// Keeps the retention that the run began with, if the job allows it.
void keep_retention(const RunRecord& before, RunRecord& now, JobOptions& options) {
  std::vector<policy::Retention> allowed{options.policy.retention.value_or(policy::Retention{})};
  allowed.insert(allowed.end(), options.retentions.begin(), options.retentions.end());
  const std::string* was = before.find("retention");
  const auto same = std::find_if(allowed.begin(), allowed.end(),
                                 [&](const auto& retention) { return was && retention_text(retention) == *was; });
  now.set("retention", retention_text(same == allowed.end() ? allowed.front() : *same));
  if (same == allowed.end()) return;
  options.policy.retention = *same;
  options.retentions.clear();
}

/// Describes how a weights file differs from the one that the run began with; empty if it is the same. A copy keeps
/// size and time of modification, and its samples are compared with the other fields.
std::string weights_difference(const WeightsPin& was, WeightsPin& is, const Checkpoint& checkpoint, std::size_t file,
                               const std::atomic<bool>& stop) {
  is.checksum = was.checksum;
  if (was.state == is.state) return "";
  if (was.checksum) {
    log_info("{}: was copied, touched or changed; reading it whole to see which", is.name);
    return checkpoint.checksum(file, stop) == *was.checksum ? "" : "its contents have changed";
  }
  if (!was.state.same_file(is.state) && was.state.size == is.state.size && was.state.modified == is.state.modified)
    return "";
  return "it has been written to or touched since, and the run ended before its checksum was known";
}

/// Reads a weights file for its checksum. Returns false if the file was touched meanwhile.
bool take_checksum(const Checkpoint& checkpoint, std::size_t file, LiveRecord& record, const std::atomic<bool>& stop) {
  const std::uint32_t checksum = checkpoint.checksum(file, stop);
  if (!checkpoint.know(file, checksum)) return false;
  record.set_checksum(file, checksum);
  return true;
}

/// Compares the weights files with those of the record.
void require_same_weights(const RunRecord& before, RunRecord& now, const ModelSource& source, const JobOptions& options,
                          const std::atomic<bool>& stop) {
  for (std::size_t i = 0; i < now.weights.size(); ++i) {
    WeightsPin& is = now.weights[i];
    const auto was = std::find_if(before.weights.begin(), before.weights.end(),
                                  [&](const WeightsPin& pin) { return pin.name == is.name; });
    if (was == before.weights.end()) continue;
    const std::string words = weights_difference(*was, is, *source.checkpoint, i, stop);
    if (words.empty()) {
      if (is.checksum) source.checkpoint->know(i, *is.checksum);
      continue;
    }
    const std::string message =
        options.output + ": belongs to another run: " + source.checkpoint->files()[i].string() + ": " + words;
    if (!options.resume.force)
      throw UsageError(message + "; put the old file back, choose another output, or go on anyway with --resume=force");
    log_warn("{}; going on anyway, and what was in flight begins again", message);
    is.checksum.reset();
    Snapshot::remove(Snapshot::place(options.output));  // else answers would be of two models
  }
}

/// Compares `now` with the record of an output that has answers, or work in flight.
void continue_run(Journal& journal, RunRecord& now, const ModelSource& source, JobOptions& options,
                  const std::atomic<bool>& stop) {
  const auto before = RunRecord::read(options.output);
  if (!before) {
    if (options.resume.adopt) return;
    throw UsageError(options.output + ": there is no " + RunRecord::place(options.output).filename().string() +
                     " that says what it was begun with; --resume=adopt takes it as the output of this job");
  }
  keep_retention(*before, now, options);
  if (const std::string words = before->difference(now); !words.empty()) {
    if (!options.resume.force)
      throw UsageError(options.output + ": belongs to another run: " + words +
                       "; choose another output, or go on anyway with --resume=force" +
                       (options.resume.retry ? ",retry" : ""));
    log_warn("{}: belongs to another run: {}; going on anyway", options.output, words);
  }
  require_same_weights(*before, now, source, options, stop);
  now.created = before->created;
  now.kernels = before->kernels;
  now.durable_bytes = before->durable_bytes;
  if (!now.durable_bytes || options.durability != Durability::power) return;
  log_warn("{}: a flush to disk failed; its answers after byte {} are computed again", options.output,
           *before->durable_bytes);
  journal.cut(*now.durable_bytes);
  now.durable_bytes.reset();
}

}  // namespace

Resume Resume::from_text(const std::string& text) {
  Resume resume{.on = !text.empty()};
  if (text.empty() || text == "true") return resume;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    bool* const accepted = word == "force"    ? &resume.force
                           : word == "adopt"  ? &resume.adopt
                           : word == "repair" ? &resume.repair
                           : word == "retry"  ? &resume.retry
                                              : nullptr;
    if (!accepted)
      throw UsageError(
          "--resume stands alone or is force, adopt, repair or retry, or several of them separated by commas; got '" +
          word.substr(0, 40) + "'");
    *accepted = true;
    begin = end + 1;
  }
  return resume;
}

std::string retention_text(const policy::Retention& retention) { return policy::to_line(retention.to_json()); }

std::optional<std::string> weights_text(const ModelSource& source) {
  if (!source.weight_format) return {};
  const std::optional<DType>& head = source.spec.quantisation.head;
  return policy::to_text(*source.weight_format) + (head ? std::string(", head in ") + name_of(*head) : "");
}

std::optional<std::string> kv_text(const policy::KvFormat& format, DType model) {
  if (format.dtype.value_or(model) == model) return {};
  return policy::to_text(format, model);
}

RunRecord record_of(const JobOptions& options, const ModelSource& source, const RequestFile& requests) {
  RunRecord record;
  record.created = utc_time();
  record.set("program", program_version());
  record.set("job", options.kind == RequestKind::score ? "score" : "generate");
  record.set("requests", describe_requests(requests.size(), requests.fingerprint()));
  record.set("dtype", name_of(source.type));
  if (const auto text = weights_text(source)) record.set("weight_dtype", *text);
  if (const auto text = kv_text(options.policy.kv_format.value_or(policy::KvFormat{}), source.type))
    record.set("kv", *text);
  if (options.shard.count > 1) record.set("shard", options.shard.text());
  if (options.kind == RequestKind::generate) record.set("max_tokens", std::to_string(options.max_tokens));
  if (const std::string text = options.defaults.text(); !text.empty()) record.set("defaults", text);
  if (!options.chat_template.empty())
    record.set("chat_template", ChatTemplate::load_as(options.chat_template, source.files.texts()).identity());
  if (!options.weights.empty()) record.set("weights", options.weights);
  for (const auto& [name, value] : fingerprints(source)) record.set("model/" + name, value);
  if (source.checkpoint)
    for (std::size_t i = 0; i < source.checkpoint->files().size(); ++i)
      record.weights.push_back({source.checkpoint->files()[i].filename().string(), source.checkpoint->state(i)});
  return record;
}

std::vector<bool> answered(Journal& journal, RunRecord& now, const ModelSource& source, const RequestFile& requests,
                           JobOptions& options, const std::atomic<bool>& stop) {
  if (journal.held())
    for (const auto& path : {fs::path(options.output), RunRecord::place(options.output), sorted_place(options.output)})
      remove_half_written(path);
  // Without an answer there may still be hours of work in flight, and other settings would begin it again.
  const bool in_flight =
      options.resume.on && fs::exists(Snapshot::place(options.output)) && fs::exists(RunRecord::place(options.output));
  if (!journal.empty() || in_flight) continue_run(journal, now, source, options, stop);
  std::vector<bool> done = journal.recover(requests, options.resume.repair, options.resume.retry);
  if (journal.torn_bytes() > 0) log_info("{}: cut a torn last line of {} bytes", options.output, journal.torn_bytes());
  if (journal.set_aside() > 0)
    log_warn("{0}: {1} damaged lines are now in {0}.bad", options.output, journal.set_aside());
  if (journal.retried() > 0)
    log_info("{0}: {1} requests that failed are tried again; their lines are now in {0}.bad", options.output,
             journal.retried());
  return done;
}

void LiveRecord::set(const std::string& name, const std::string& value) {
  const std::lock_guard lock(mutex_);
  record_.set(name, value);
}

std::string LiveRecord::add_kernels(const std::string& name) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string>& all = record_.kernels;
  if (std::find(all.begin(), all.end(), name) == all.end()) all.push_back(name);
  const auto other =
      std::find_if(all.begin(), all.end(), [&](const std::string& one) { return !kernels::same_bits(one, name); });
  return other == all.end() ? "" : *other;
}

void LiveRecord::write() {
  const std::lock_guard lock(mutex_);
  record_.write(output_);
}

void LiveRecord::set_durable(std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  record_.durable_bytes = bytes;
  try {
    record_.write(output_);
  } catch (const IoError& also) {  // the failed flush is what matters
    log_warn("{}", also.what());
  }
}

void LiveRecord::set_checksum(std::size_t weights_file, std::uint32_t checksum) {
  const std::lock_guard lock(mutex_);
  record_.weights[weights_file].checksum = checksum;
}

RunRecord LiveRecord::copy() const {
  const std::lock_guard lock(mutex_);
  return record_;
}

void begin_output(ResultSink& results, LiveRecord& record) {
  results.open([&record] { record.write(); }, [&record](std::uint64_t durable) { record.set_durable(durable); });
}

void read_small_weights(const Checkpoint& checkpoint, LiveRecord& record, const std::atomic<bool>& stop) {
  const RunRecord before = record.copy();
  std::uint64_t bytes = 0;
  for (const WeightsPin& pin : before.weights) bytes += pin.state.size;
  if (bytes > kSmallWeights) return;
  for (std::size_t i = 0; i < before.weights.size(); ++i)
    if (!before.weights[i].checksum) take_checksum(checkpoint, i, record, stop);
}

WeightsReader::WeightsReader(const Checkpoint& checkpoint, LiveRecord& record)
    : thread_([this, &checkpoint, &record] {
        read(checkpoint, record);
        const std::lock_guard lock(mutex_);
        has_ended_ = true;
        ended_.notify_one();
      }) {}

WeightsReader::~WeightsReader() {
  {
    std::unique_lock lock(mutex_);
    ended_.wait_for(lock, std::chrono::milliseconds(250), [this] { return has_ended_; });
  }
  stop_ = true;
  thread_.join();
}

void WeightsReader::read(const Checkpoint& checkpoint, LiveRecord& record) try {
  constexpr int kThread = 1, kIdle = 3 << 13;  // for ioprio_set(), which has no header
  ::syscall(SYS_ioprio_set, kThread, 0, kIdle);
  ::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), 19);
  const RunRecord before = record.copy();
  bool any = false;
  for (std::size_t i = 0; i < before.weights.size(); ++i) {
    if (before.weights[i].checksum) continue;
    any |= take_checksum(checkpoint, i, record, stop_);
  }
  if (any) record.write();
} catch (const Interrupted&) {
} catch (const std::bad_alloc&) {
} catch (const std::exception& failed) {  // a resume then has less to compare
  log_warn("{}", failed.what());
}

}  // namespace weft::runtime
