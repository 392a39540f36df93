#include <spdlog/fmt/fmt.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/base/stop.h"
#include "runtime/cli/commands.h"
#include "runtime/measure/analysis.h"

namespace weft::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kSaid{10};  // between two lines of progress
constexpr std::string_view kPageMark = "<!-- weft analyze -->";

struct Flags {
  AnalysisOptions analysis;
  std::string output, page, retention, divide;
};

/// Only a page that Weft wrote is replaced.
void require_own_page(const std::string& page) {
  if (!std::filesystem::exists(std::filesystem::symlink_status(page))) return require_writable("--page", page);
  constexpr std::size_t kLargestPage = 64 << 20;
  if (!std::filesystem::is_regular_file(page) || read_file(page, kLargestPage).find(kPageMark) != 0)
    throw UsageError("--page " + page + ": is there, and weft analyze did not write it; give another name");
}

int run(const Flags& flags, const std::atomic<bool>& stop) {
  AnalysisOptions options = flags.analysis;
  require_input("--input", options.input);
  require_folder("--disk-dir", options.machine.disk_directory);
  options.machine.backend = "cpu";
  if (!flags.output.empty()) require_own("--output", flags.output, "layers");
  if (!flags.page.empty()) require_own_page(flags.page);
  if (!flags.retention.empty()) require_own("--save-retention", flags.retention, "retention");
  if (options.budget && flags.retention.empty())
    throw UsageError(
        "--budget divides a KV budget among layers or heads; say with --save-retention where the policy goes");
  if (!options.budget && !flags.retention.empty())
    throw UsageError("--save-retention needs --budget, the share of all tokens that is kept on average");
  if (!flags.divide.empty() && !options.budget)
    throw UsageError("--divide says among what --budget is divided; give that too");
  using Divide = AnalysisOptions::Divide;
  if (!flags.divide.empty())
    options.divide = flags.divide == "both" ? Divide::both : flags.divide == "heads" ? Divide::heads : Divide::layers;
  nlohmann::ordered_json report;
  try {
    report = run_analysis(options, stop, [said = Clock::now()](std::int64_t tokens) mutable {
      if (Clock::now() - said < kSaid) return;
      said = Clock::now();
      spdlog::info("{} tokens read", tokens);
    });
  } catch (const Interrupted&) {
    spdlog::warn("stopped; nothing was written");
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
  const auto flags = std::make_shared<Flags>();
  AnalysisOptions& analysis = flags->analysis;
  command->add_option("--model", analysis.model, "Hugging Face checkpoint folder")->required();
  command->add_option("--input", analysis.input, "{\"text\": ...} or {\"ids\": [...]}, one JSON object per line")
      ->required();
  command->add_option("--output", flags->output, "Write the figures of every layer and head to this file, as JSON");
  command->add_option("--page", flags->page, "Write them as pictures to this file, one HTML page that loads nothing");
  command->add_option("--save-retention", flags->retention,
                      "Write a policy to this file that divides --budget so that it costs little (--divide says among "
                      "what); generate and score take it as --policy");
  command->add_option("--budget", analysis.budget,
                      "The share of all tokens that is kept on average, half of it recent tokens");
  command
      ->add_option("--divide", flags->divide,
                   "Among what --budget is divided: layers, as by default; the KV heads of each layer, so that they "
                   "keep the most "
                   "attention, which is quickly found; or both")
      ->transform(CLI::IsMember({"layers", "heads", "both"}));
  command->add_option(
      "--window", analysis.window,
      "Tokens that are read at a time, by default 2048 or what the context holds; what is left of a line at "
      "its end is left out");
  command->add_option(
      "--queries", analysis.queries,
      "Of the second half of each window, how many tokens' attention is looked at, evenly spaced; by default 64");
  command->add_option("--max-tokens", analysis.most_tokens, "Stop after so many tokens of the input; 0: read all of it")
      ->capture_default_str();
  command->add_option("--dtype", analysis.dtype, kDtypeHelp)->capture_default_str();
  command->add_option("--threads", analysis.machine.threads, "CPU threads; 0: one per core")->capture_default_str();
  command->add_option("--disk-dir", analysis.machine.disk_directory, "Where what does not fit in memory goes")
      ->capture_default_str();
  command->footer(
      "Example:\n  weft analyze --model models/demo --input texts.jsonl --window 512 --page analysis.html\n\n"
      "Computes on the CPU. Columns: the share of weights below 1 % of their row's largest; the attention on the best\n"
      "50, 20, 10 and 5 % of a window's tokens, chosen anew for each query; of the attention that the second half of "
      "a\n"
      "window pays to the first, the share on so many of its tokens that had the most at the middle; the power law of\n"
      "the accumulated scores, the share of their best fifth, and how many of the first half's best fifth stay among\n"
      "the best. The last line is what attention that is spread evenly would give.");
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return run(*flags, stop); }; });
}

}  // namespace weft::runtime
