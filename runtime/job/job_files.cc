#include "runtime/job/job_files.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/measure/report.h"
#include "runtime/requests/request_checks.h"
#include "runtime/results/result_lines.h"
#include "runtime/results/run_record.h"
#include "runtime/results/snapshot.h"

namespace weft::runtime {
namespace {

/// Whether two paths name one file.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code ignored;  // set if one does not exist
  return std::filesystem::equivalent(a, b, ignored);
}

/// Throws UsageError if an option needs the answers to be a file.
void check_pipe(const JobOptions& options) {
  const char* const flag = options.resume.on                         ? "--resume"
                           : options.ordered                         ? "--ordered"
                           : options.durability == Durability::power ? "--durability power"
                                                                     : nullptr;
  if (flag) throw UsageError(std::string("--output -: ") + flag + " needs an output that is a file; give its name");
  std::vector<std::string> others = options.input.paths;
  others.insert(others.end(), {options.report, options.trace});
  for (const std::string& path : others)
    if (std::filesystem::is_regular_file(path) && same_file(path, "/dev/stdout"))
      throw UsageError("--output -: standard output is " + path + ", which is another file of this job");
}

/// Checks all files before any work. One that cannot be written would otherwise be noticed only at the end.
void check_files(const JobOptions& options) {
  const bool pipe = options.output == kPipe;
  if (pipe) check_pipe(options);
  options.input.require();
  std::vector<std::pair<const char*, std::filesystem::path>> seen;
  const std::string none, record = pipe ? none : RunRecord::place(options.output).string();
  const std::string in_flight = pipe ? none : Snapshot::place(options.output).string();
  const std::string sorted = options.ordered ? sorted_place(options.output).string() : "";
  std::vector<std::pair<const char*, const std::string*>> files;
  for (const std::string& path : options.input.paths) files.emplace_back("--input", path == kPipe ? &none : &path);
  for (const auto& file : {std::pair{"--output", pipe ? &none : &options.output},
                           {"--output's record", &record},
                           {"--checkpoint-every", &in_flight},
                           {"--ordered", &sorted},
                           {"--report", &options.report},
                           {"--trace", &options.trace}})
    files.emplace_back(file);
  for (const auto& [flag, path] : files) {
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
  if (options.save_every && !pipe) Snapshot::require_own(in_flight);
  if (options.ordered && !options.resume.on && std::filesystem::exists(sorted))
    throw UsageError("--ordered: " + sorted + " exists; remove it or give --output another name");
  require_folder("--disk-dir", options.machine.disk_directory);
  if (!options.report.empty()) require_own("--report", options.report, "machine");
  if (!options.trace.empty()) TraceFile::require_own(options.trace);
}

}  // namespace

void check_and_announce(const JobOptions& options) {
  check_files(options);
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens)
    throw UsageError("--max-tokens must be from 1 to " + std::to_string(kMostTokens) + ", got " +
                     std::to_string(options.max_tokens));
  options.defaults.check();
  if (options.input.is_pipe() && isatty(STDIN_FILENO) == 1)
    spdlog::info("requests are read from the terminal, one JSON object per line; Ctrl-D ends them");
  if (options.output == kPipe) spdlog::info("answers go to standard output; a run that is stopped cannot be resumed");
}

}  // namespace weft::runtime
