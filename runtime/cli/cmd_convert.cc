#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "kernels/error.h"
#include "policy/policy.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/engine/convert.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {
namespace {

struct Flags {
  std::string model, output, dtype = "auto";
  bool no_verify_crc = false;
};

int convert(const Flags& flags, const std::atomic<bool>& stop) {
  refuse_pipe("--output", flags.output);
  try {
    const Converted done = convert_checkpoint(flags.model, flags.output, flags.dtype, stop, !flags.no_verify_crc);
    spdlog::info("{}: {} tensors, {}{}", flags.output, done.tensors, policy::bytes_to_text(done.bytes),
                 done.left_out ? "; " + std::to_string(done.left_out) + " that are not the model's were left out" : "");
    return 0;
  } catch (const Interrupted&) {
    spdlog::warn("stopped; {} was not written", flags.output);
    return 130;
  }
}

}  // namespace

void add_convert(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("convert", "Pack a checkpoint, so that each weight unit is one read from the disk");
  const auto flags = std::make_shared<Flags>();
  command->add_option("--model", flags->model, "Hugging Face checkpoint folder")->required();
  command->add_option("--output", flags->output, "Folder to create")->required();
  command->add_option("--dtype", flags->dtype, kDtypeHelp)->capture_default_str();
  command->add_flag("--no-verify-crc", flags->no_verify_crc, kNoVerifyCrcHelp);
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return convert(*flags, stop); }; });
}

}  // namespace weft::runtime
