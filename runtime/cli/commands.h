// runtime/cli/commands.h: the subcommands; each adds itself to the command line and runs when it was chosen.
#pragma once

#include <atomic>
#include <functional>

namespace CLI {
class App;
}

namespace weft::runtime {

/// What main runs once the command line is parsed; empty until a subcommand was chosen. Returns the exit code.
using Command = std::function<int(const std::atomic<bool>& stop)>;

/// The help of --no-verify-crc.
constexpr const char* kNoVerifyCrc = "Take a PyTorch .bin whose bytes do not have the checksums that it states";

void add_generate(CLI::App& app, Command& chosen);
void add_score(CLI::App& app, Command& chosen);
void add_tokenize(CLI::App& app, Command& chosen);
void add_convert(CLI::App& app, Command& chosen);
void add_merge(CLI::App& app, Command& chosen);
void add_inspect(CLI::App& app, Command& chosen);
void add_plan(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);

}  // namespace weft::runtime
