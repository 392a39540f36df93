// runtime/job/job_options.h: the options of a job and of its resume.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/layout/policy.h"
#include "runtime/engine/machine_options.h"
#include "runtime/inputs/request_input.h"
#include "runtime/requests/requests.h"
#include "runtime/requests/shard.h"
#include "runtime/results/journal.h"

namespace weft::runtime {

/// Whether an output is continued, and what a resume then accepts that it would otherwise refuse.
struct Resume {
  bool on = false;
  bool force = false;   ///< another model, other requests or settings than those of the run
  bool adopt = false;   ///< no record of the run's settings
  bool repair = false;  ///< lines that are not answers; they are moved to OUTPUT.bad
  bool retry = false;   ///< lines of requests that failed; they are moved there too, and the requests run again
  /// Parses "", "true" (the flag alone), or a list of what is accepted, separated by commas. Throws UsageError.
  static Resume from_text(const std::string& text);
};

/// Parses how often to save: "10m", "90s", "1.5h". Returns nothing for "off". Throws UsageError.
std::optional<std::chrono::duration<double>> interval_from_text(const std::string& text);

struct JobOptions {
  RequestKind kind = RequestKind::generate;
  std::string model, weights, dtype = "auto";
  bool verify_crc = true;  ///< Checkpoint::verify()
  RequestInput input;
  std::string output, report, trace;  ///< report and trace may be empty
  std::int64_t max_tokens = 128;
  bool max_tokens_given = true;    ///< else generation_config.json may replace it
  bool generation_config = false;  ///< take what it says of sampling
  RequestDefaults defaults;
  Resume resume;
  Durability durability = Durability::process;
  std::optional<std::chrono::duration<double>> save_every{
      std::chrono::minutes(10)};  ///< sequences in flight; empty: never
  bool save_seldom = true;        ///< less often if saving takes more than a small share of the time
  bool ordered = false;           ///< at the end also write STEM.sorted.jsonl, in the order of the requests
  bool dry_run = false;           ///< check the requests and plan, and compute nothing
  bool quiet = false;
  bool verbose = false;  ///< log what is decided, and why
  Shard shard;           ///< the requests that are answered; all are checked
  OnBadRequest on_bad_request = OnBadRequest::fail;
  std::vector<std::string> served_names;  ///< names of the model in OpenAI lines; empty: model_names()
  bool strict_openai = false;
  bool prefix_sharing = true;  ///< tokens with which several prompts begin are computed once
  std::string chat_template;   ///< argument of ChatTemplate::load_as(); empty: the model's own
  policy::PartialPolicy policy;
  std::string machine_file;                   ///< machine to plan for; empty: this one, measured briefly
  std::vector<policy::Retention> retentions;  ///< allowed in place of the policy's
  std::vector<policy::KvFormat> kv_formats;   ///< likewise
  std::vector<std::optional<policy::WeightFormat>> weight_formats;  ///< likewise
  MachineOptions machine;
};

}  // namespace weft::runtime
