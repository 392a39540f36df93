
#include <CLI/CLI.hpp>
#include <memory>

#include "kernels/error.h"
#include "policy/layout/policy.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/engine/storage.h"
#include "runtime/measure/report.h"
#include "runtime/model/convert.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

struct ConvertFlags {
  std::string model, output, dtype = "auto", weight_dtype = "auto";
  std::optional<int> weight_group;
  bool no_verify_crc = false;
};

std::optional<policy::WeightFormat> format_of(const ConvertFlags& flags) {
  auto format = policy::weight_format_from_text(flags.weight_dtype, "--weight-dtype");
  if (flags.weight_group && !(format && format->quantised()))
    throw UsageError("--weight-group: is only for --weight-dtype int8 and int4");
  if (flags.weight_group) policy::set_group(*format, *flags.weight_group, "--weight-group");
  return format;
}

int convert(const ConvertFlags& flags, const std::atomic<bool>& stop) {
  refuse_pipe("--output", flags.output);
  try {
    const Converted done = convert_checkpoint(flags.model, flags.output, flags.dtype, stop, !flags.no_verify_crc,
                                              format_of(flags), packing_lines());
    log_info(
        "{}: {} tensors, {}{}", flags.output, done.tensors, policy::bytes_to_text(done.bytes),
        done.left_out ? "; " + std::to_string(done.left_out) + " that are not part of the model were left out" : "");
    return 0;
  } catch (const Interrupted&) {
    log_warn("stopped; {} was not written", flags.output);
    return 130;
  }
}

}  // namespace

void add_convert(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("convert", "Pack a checkpoint so that each weight unit is one read from disk");
  const auto flags = std::make_shared<ConvertFlags>();
  command->add_option("--model", flags->model, kModelHelp)->required();
  command->add_option("--output", flags->output, "Folder to create")->required();
  command->add_option("--dtype", flags->dtype, kDtypeHelp)->capture_default_str();
  command
      ->add_option("--weight-dtype", flags->weight_dtype,
                   "auto, float16, bfloat16, float32, int8 or int4; int8 and int4 quantise the matrices of the layers, "
                   "and only Weft reads the copy")
      ->capture_default_str();
  command->add_option("--weight-group", flags->weight_group,
                      "Group size for int8 and int4: 16, 32, 64 (default) or 128 numbers of a row share a scale");
  command->add_flag("--no-verify-crc", flags->no_verify_crc, kNoVerifyCrcHelp);
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return convert(*flags, stop); }; });
}

}  // namespace weft::runtime
