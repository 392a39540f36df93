#include <CLI/CLI.hpp>
#include <array>
#include <filesystem>
#include <memory>

#include "kernels/error.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/cli/commands.h"
#include "runtime/model/model_source.h"
#include "runtime/serve/batch_server.h"

namespace weft::runtime {
namespace {

constexpr std::array kSetHere{"--model",
                              "--input",
                              "--output",
                              "--resume",
                              "--on-bad-request",
                              "--served-model-name",
                              "--shard",
                              "--ordered",
                              "--strict-openai",
                              "--report",
                              "--trace",
                              "--dry-run",
                              "--quiet",
                              "--verbose",
                              "-v",
                              "--help",
                              "-h",
                              "--prompt-column",
                              "--prompt-template"};

/// Throws UsageError for a flag of weft generate that each batch has its own of.
void check_flags(const std::vector<std::string>& flags) {
  for (const std::string& flag : flags)
    for (const char* const own : kSetHere)
      if (flag == own || flag.starts_with(std::string(own) + "="))
        throw UsageError("behind --: " + std::string(own) + " is set by serve-batches; leave it out");
}

int run_serve(ServeOptions options, const std::atomic<bool>& stop) {
  if (!can_serve()) return serve(options, stop);  // says why not
  if (options.port < 1 || options.port > 65535)
    throw UsageError("--port must be from 1 to 65535, got " + std::to_string(options.port));
  check_flags(options.command.flags);
  options.model_names = options.command.served_names.empty() ? model_names(ModelFiles::open(options.command.model))
                                                             : options.command.served_names;
  return serve(options, stop);
}

}  // namespace

void add_serve_batches(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("serve-batches", "Answer batches that clients of OpenAI's batch API upload, on this machine");
  const auto options = std::make_shared<ServeOptions>();
  command->add_option("--model", options->command.model, kModelHelp)->required();
  command->add_option("--dir", options->folder, "Folder of files and batches; it is made if it is missing")->required();
  command->add_option("--port", options->port, "Port on 127.0.0.1")->capture_default_str();
  command
      ->add_option("--api-key", options->api_key, "Key that clients must send; the variable WEFT_API_KEY sets it too")
      ->envname("WEFT_API_KEY");
  command
      ->add_option("--served-model-name", options->command.served_names,
                   "Model name that requests use, in place of the folder's name; may be repeated")
      ->allow_extra_args(false);
  command->add_option("flags", options->command.flags, "Behind --: flags of weft generate, for every batch");
  command->footer("Example:\n  weft serve-batches --model models/demo --dir batches -- --retention h2o:0.1:0.1");
  command->callback([options, &chosen] {
    chosen.run = [options](const std::atomic<bool>& stop) { return run_serve(*options, stop); };
  });
}

}  // namespace weft::runtime
