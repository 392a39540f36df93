#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/analyze/analysis.h"
#include "runtime/base/files.h"
#include "runtime/base/stop.h"
#include "runtime/cli/commands.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSaid{10};  // between two lines of progress
constexpr std::string_view kPageMark = "<!-- weft analyze -->";

struct AnalyzeFlags {
  AnalysisOptions analysis;
  std::string output, page, retention, divide;
};

/// Throws UsageError if `page` exists and Weft did not write it.
void require_own_page(const std::string& page) {
  refuse_pipe("--page", page);
  if (!std::filesystem::exists(std::filesystem::symlink_status(page))) return require_writable("--page", page);
  constexpr std::size_t kLargestPage = 64 << 20;
  if (!std::filesystem::is_regular_file(page) || read_file(page, kLargestPage).find(kPageMark) != 0)
    throw UsageError("--page " + page + ": is there, and weft analyze did not write it; give another name");
}

int run_analyze(const AnalyzeFlags& flags, const std::atomic<bool>& stop) {
  AnalysisOptions options = flags.analysis;
  require_input("--input", options.input);
  require_folder("--disk-dir", options.machine.disk_directory);
  options.machine.backend = "cpu";
  require_different({{"--output", flags.output}, {"--page", flags.page}, {"--save-retention", flags.retention}});
  if (!flags.output.empty()) require_own("--output", flags.output, "layers");
  if (!flags.page.empty()) require_own_page(flags.page);
  if (!flags.retention.empty()) require_own("--save-retention", flags.retention, "retention");
  if (options.budget && flags.retention.empty())
    throw UsageError(
        "--budget divides a KV budget among layers or heads; name a file for the policy with --save-retention");
  if (!options.budget && !flags.retention.empty())
    throw UsageError("--save-retention needs --budget, the share of all tokens that is kept on average");
  if (!flags.divide.empty() && !options.budget)
    throw UsageError("--divide needs --budget, the share of all tokens that is divided");
  using Divide = AnalysisOptions::Divide;
  if (!flags.divide.empty())
    options.divide = flags.divide == "both" ? Divide::both : flags.divide == "heads" ? Divide::heads : Divide::layers;
  nlohmann::ordered_json report;
  try {
    report = run_analysis(options, stop, [said = Clock::now()](std::int64_t tokens) mutable {
      if (Clock::now() - said < kSaid) return;
      said = Clock::now();
      log_info("{} tokens read", tokens);
    });
  } catch (const Interrupted&) {
    log_warn("stopped; nothing was written");
    return 130;
  }
  if (!flags.output.empty()) write_file_atomically(flags.output, policy::to_pretty(report) + "\n");
  if (!flags.page.empty()) write_file_atomically(flags.page, std::string(kPageMark) + "\n" + analysis_page(report));
  if (!flags.retention.empty()) {
    const nlohmann::ordered_json policy{{"retention", report.at("by_layer").at("retention")}};
    write_file_atomically(flags.retention, policy::to_pretty(policy) + "\n");
  }
  std::fputs(analysis_table(report).c_str(), stdout);
  return 0;
}

}  // namespace

void add_analyze(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("analyze", "Show what a model's attention looks like on given text, layer by layer");
  const auto flags = std::make_shared<AnalyzeFlags>();
  AnalysisOptions& analysis = flags->analysis;
  command->add_option("--model", analysis.model, kModelHelp)->required();
  command->add_option("--input", analysis.input, "{\"text\": ...} or {\"ids\": [...]}, one JSON object per line")
      ->required();
  command->add_option("--output", flags->output, "Write the figures of every layer and head to this file, as JSON");
  command->add_option("--page", flags->page,
                      "Write the figures as charts to this file, an HTML page that loads nothing");
  command->add_option("--save-retention", flags->retention,
                      "Write a policy to this file that divides --budget so that little is lost (see --divide); "
                      "generate and score take it as --policy");
  command->add_option("--budget", analysis.budget,
                      "Share of all tokens to keep on average; half of it goes to recent tokens");
  command
      ->add_option("--divide", flags->divide,
                   "Divide --budget among layers (the default); heads, the KV heads of each layer, so that they keep "
                   "the most attention, which is quick to find; or both")
      ->transform(CLI::IsMember({"layers", "heads", "both"}));
  command->add_option(
      "--window", analysis.window,
      "Tokens to read at a time, by default 2048 or what the context holds; the rest of a line is left out");
  command->add_option(
      "--queries", analysis.queries,
      "Number of tokens in the second half of each window whose attention is looked at, evenly spaced; by default 64");
  command
      ->add_option("--max-tokens", analysis.most_tokens, "Stop after this many tokens of the input; 0: read all of it")
      ->capture_default_str();
  command->add_option("--dtype", analysis.dtype, kDtypeHelp)->capture_default_str();
  command->add_option("--threads", analysis.machine.threads, "CPU threads; 0: one per core")->capture_default_str();
  command->add_option("--disk-dir", analysis.machine.disk_directory, "Folder for what does not fit in memory")
      ->capture_default_str();
  command->footer(
      "Example:\n  weft analyze --model models/demo --input texts.jsonl --window 512 --page analysis.html\n\n"
      "Computes on the CPU. The columns are, from left to right:\n"
      "  the share of weights that are below 1 % of the largest in their row\n"
      "  the attention on the best 50, 20, 10 and 5 % of a window's tokens, chosen for each query by itself\n"
      "  the share of the second half's attention to the first half that goes to the best 50, 20, 10 and 5 % of the\n"
      "    first half's tokens, chosen at the middle of the window\n"
      "  the exponent of the power law of accumulated scores\n"
      "  the share of all attention that the fifth with the highest scores gets\n"
      "  how much of the first half's best fifth is still among the best at the end\n"
      "The last line shows the figures of attention that is spread evenly.");
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return run_analyze(*flags, stop); }; });
}

}  // namespace weft::runtime
