// runtime/cli/commands.h: the subcommands. Each adds itself to the command line, and program.cc runs the chosen one.
#pragma once

#include <atomic>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace CLI {
class App;
}

namespace weft::runtime {

/// The subcommand that program.cc runs once the command line is parsed. Commands hold their flags in a shared_ptr,
/// because CLI11 copies the callbacks that hold them.
struct Command {
  std::function<int(const std::atomic<bool>& stop)> run;  ///< empty until a subcommand is chosen; returns the exit code
  bool ends_at_once = false;  ///< a stop ends the process: nothing is written before its end
};

/// Throws UsageError, "FLAG excludes OTHER: WHY", if `flag` is given beside another that is not among `allowed`, as
/// that would be ignored.
void refuse_beside(const CLI::App& command, const std::string& flag, std::initializer_list<std::string_view> allowed,
                   const std::string& why);

/// Help that several commands share.
constexpr const char* kModelHelp = "Hugging Face checkpoint folder or ORG/NAME in the Hub's cache, or a GGUF file";
constexpr const char* kModelOrShapeHelp =
    "Hugging Face checkpoint folder or ORG/NAME in the Hub's cache, a GGUF file, or a config.json together "
    "with --weights";
constexpr const char* kDtypeHelp = "Type to compute in: auto (the checkpoint's), float16, bfloat16 or float32";
constexpr const char* kNoVerifyCrcHelp = "Accept a PyTorch .bin whose data does not match its own checksums";

void add_generate(CLI::App& app, Command& chosen);
void add_score(CLI::App& app, Command& chosen);
void add_tokenize(CLI::App& app, Command& chosen);
void add_convert(CLI::App& app, Command& chosen);
void add_merge(CLI::App& app, Command& chosen);
void add_inspect(CLI::App& app, Command& chosen);
void add_plan(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_analyze(CLI::App& app, Command& chosen);
void add_serve_batches(CLI::App& app, Command& chosen);

}  // namespace weft::runtime
