
#include <CLI/CLI.hpp>
#include <memory>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/cli/commands.h"
#include "runtime/cli/input_flags.h"
#include "runtime/planning/log.h"
#include "runtime/results/merge.h"

namespace weft::runtime {
namespace {

struct MergeFlags {
  RequestInput input;
  std::string output;
  std::vector<std::filesystem::path> parts;
};

int run_merge(const MergeFlags& flags, const std::atomic<bool>& stop) {
  flags.input.require();
  for (const auto& part : flags.parts) require_input("part", part);
  if (flags.output != kPipe) {
    require_writable("--output", flags.output);
    if (std::filesystem::exists(flags.output))
      throw UsageError("--output " + flags.output + ": exists; give another name or remove it");
  }
  const std::size_t answers = merge(flags.input, flags.parts, flags.output, stop);
  if (answers == 0) {
    log_warn("stopped; nothing was written");
    return 130;
  }
  log_info("{}: {} answers of {} shards, in the order of {}", flags.output, answers, flags.parts.size(),
           flags.input.name());
  return 0;
}

}  // namespace

void add_merge(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("merge", "Join the outputs of all shards of a job");
  const auto flags = std::make_shared<MergeFlags>();
  add_input_flags(*command, flags->input, "Options", true, false);
  command->add_option("--output", flags->output, "All answers, in the order of the requests; -: standard output")
      ->required();
  command->add_option("parts", flags->parts, "Outputs of the shards")->required();
  command->footer("Example:\n  weft merge --input in.jsonl --output all.jsonl part1.jsonl part2.jsonl");
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return run_merge(*flags, stop); }; });
}

}  // namespace weft::runtime
