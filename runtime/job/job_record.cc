#include "runtime/job/job_record.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/engine/fingerprint.h"
#include "runtime/requests/result_lines.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

/// Pins the retention that the run was begun with, where it is one of those that the job allows.
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

/// Holds `now` against the record of an output that has something in it.
void continue_run(Journal& journal, RunRecord& now, JobOptions& options) {
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
                       "; choose another output, or go on nevertheless with --resume=force");
    spdlog::warn("{}: belongs to another run: {}; going on nevertheless", options.output, words);
  }
  now.created = before->created;
  now.durable_bytes = before->durable_bytes;
  if (!now.durable_bytes || options.durability != Durability::power) return;
  spdlog::warn("{}: a flush to disk failed; its answers after byte {} are computed again", options.output,
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
                                              : nullptr;
    if (!accepted)
      throw UsageError(
          "--resume stands alone or is force, adopt or repair, or several of them separated by commas; got '" +
          word.substr(0, 40) + "'");
    *accepted = true;
    begin = end + 1;
  }
  return resume;
}

std::string retention_text(const policy::Retention& retention) { return policy::to_line(retention.to_json()); }

RunRecord record_of(const JobOptions& options, const ModelSource& source, const RequestFile& requests) {
  RunRecord record;
  record.created = utc_time();
  record.set("program", "weft " WEFT_VERSION);
  record.set("job", options.kind == RequestKind::score ? "score" : "generate");
  record.set("requests", std::to_string(requests.size()) + ", " + to_hex(requests.fingerprint()));
  record.set("dtype", name_of(source.type));
  if (options.shard.count > 1) record.set("shard", options.shard.text());
  if (options.kind == RequestKind::generate) record.set("max_tokens", std::to_string(options.max_tokens));
  if (!options.weights.empty()) record.set("weights", options.weights);
  for (const auto& [name, value] : fingerprints(source)) record.set("model/" + name, value);
  return record;
}

std::vector<bool> answered(Journal& journal, RunRecord& now, const RequestFile& requests, JobOptions& options) {
  if (journal.held())
    for (const auto& path : {fs::path(options.output), RunRecord::place(options.output), sorted_place(options.output)})
      remove_half_written(path);
  if (!journal.empty()) continue_run(journal, now, options);
  std::vector<bool> done = journal.recover(requests, options.resume.repair);
  if (journal.torn_bytes() > 0)
    spdlog::info("{}: cut a torn last line of {} bytes", options.output, journal.torn_bytes());
  if (journal.set_aside() > 0)
    spdlog::warn("{0}: {1} damaged lines are now in {0}.bad", options.output, journal.set_aside());
  return done;
}

void begin_output(Journal& journal, RunRecord& record, const std::string& output) {
  journal.open([&record, output](std::uint64_t durable) {
    record.durable_bytes = durable;
    try {
      record.write(output);
    } catch (const IoError& also) {  // the failed flush is what matters
      spdlog::warn("{}", also.what());
    }
  });
  record.write(output);
}

}  // namespace weft::runtime
