// runtime/job/job_options.h: what a job is to do, and what its resume accepts.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "runtime/engine/machine_options.h"
#include "runtime/requests/journal.h"
#include "runtime/requests/requests.h"
#include "runtime/requests/shard.h"

namespace weft::runtime {

/// Whether an output is continued, and what is then accepted that otherwise is refused.
struct Resume {
  bool on = false;
  bool force = false;   ///< another model, other requests or settings than it was begun with
  bool adopt = false;   ///< no record of what it was begun with
  bool repair = false;  ///< lines that are no answers: they are moved to OUTPUT.bad
  /// "", "true" for the flag alone, or what is accepted, separated by commas. Throws UsageError.
  static Resume from_text(const std::string& text);
};

/// How often to save: "10m", "90s", "1.5h"; nothing for "off". Throws UsageError.
std::optional<std::chrono::duration<double>> interval_from_text(const std::string& text);

struct JobOptions {
  RequestKind kind = RequestKind::generate;
  std::string model, weights, dtype = "auto";
  bool verify_crc = true;                    ///< Checkpoint::verify()
  std::string input, output, report, trace;  ///< the last two may be empty
  std::int64_t max_tokens = 128;
  Resume resume;
  Durability durability = Durability::process;
  std::optional<std::chrono::duration<double>> save_every{std::chrono::minutes(10)};  ///< what is in flight; or never
  bool save_seldom = true;  ///< less often where that costs more than a small share of the time
  bool ordered = false;     ///< at the end also STEM.sorted.jsonl, in the order of the requests
  bool quiet = false;
  bool verbose = false;  ///< say what is decided and why
  Shard shard;           ///< of the requests, all of which are checked
  OnBadRequest on_bad_request = OnBadRequest::fail;
  std::vector<std::string> served_names;  ///< what OpenAI lines may call the model; empty: model_names()
  bool strict_openai = false;
  std::string chat_template;  ///< ChatTemplate::load_as(); empty: the model's own
  policy::PartialPolicy policy;
  std::string machine_file;                   ///< what the job is planned for; empty: this machine, briefly measured
  std::vector<policy::Retention> retentions;  ///< that would do as well as the policy's
  std::vector<policy::KvFormat> kv_formats;   ///< likewise
  std::vector<std::optional<policy::WeightFormat>> weight_formats;  ///< likewise
  MachineOptions machine;
};

}  // namespace weft::runtime
