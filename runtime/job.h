// runtime/job.h: a request file answered to its end: block after block, resumable at any moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "policy/policy.h"
#include "runtime/requests.h"
#include "runtime/session.h"
#include "runtime/shard.h"

namespace weft::runtime {

struct JobOptions {
  RequestKind kind = RequestKind::generate;
  std::string model, weights, dtype = "auto";
  std::string input, output, report, trace;  ///< the last two may be empty
  std::int64_t max_tokens = 128;
  bool resume = false, quiet = false;
  policy::PartialPolicy policy;
  std::string machine_file;                   ///< what the job is planned for; empty: this machine, briefly measured
  std::vector<policy::Retention> retentions;  ///< that would do as well as the policy's
  MachineOptions machine;
  Shard shard;  ///< of the requests, all of which are checked
};

/// Returns the exit code: 0, or 130 if `stop` was set; then the same call with `resume` continues. Throws the typed
/// errors.
int run_job(const JobOptions& options, const std::atomic<bool>& stop);

}  // namespace weft::runtime
