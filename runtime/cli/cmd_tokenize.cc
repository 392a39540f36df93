#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/standard_streams.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/cli/commands.h"
#include "runtime/requests/request_checks.h"
#include "runtime/requests/requests.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kWriteBytes = 1 << 20;

struct TokenizeFlags {
  std::string model, input, output;
  bool no_first_token = false;
};

nlohmann::ordered_json tokenize_line(const Tokenizer& tokenizer, std::string_view line, const std::string& where,
                                     std::size_t number, bool add_first_token) {
  const auto json =
      policy::parse_json(line, where, policy::Blame::usage, {.depth = 32, .byte_order_mark = number == 1});
  policy::Fields fields(json, where, policy::Blame::usage);
  const std::optional<std::string> id = id_of_line(json, number, Dialect::native, false);
  if (!id) fields.refuse_field("id", "an integer or a string of 1 to 512 bytes without control characters");
  fields.has("id");  // known
  const std::string text = fields.text("text");
  fields.refuse_unknown();
  return {{"id", nlohmann::ordered_json::parse(*id)}, {"ids", tokenizer.encode(text, add_first_token)}};
}

int tokenize(const TokenizeFlags& flags, const std::atomic<bool>& stop) {
  if (flags.input != kPipe) require_input("--input", flags.input);
  const Tokenizer tokenizer = Tokenizer::load(ModelFiles::open(flags.model).texts());
  const InputFile input = open_input(flags.input, stop);
  const auto each = [&](const auto& use) {
    for_each_line(input, [&](std::string_view line, std::uint64_t, std::size_t number) {
      if (line.find_first_not_of(" \t") == std::string_view::npos) return;
      if (stop) throw Interrupted{};
      use(tokenize_line(tokenizer, line, input.path().string() + ":" + std::to_string(number), number,
                        !flags.no_first_token));
    });
  };
  const auto write_to = [&](auto& output) {
    std::string text;
    each([&](const nlohmann::ordered_json& result) {
      text += policy::to_line(result) + "\n";
      if (text.size() < kWriteBytes) return;
      output.append(text);
      text.clear();
    });
    output.append(text);
  };
  if (flags.output == kPipe) {
    StandardOutput output(&stop);
    write_to(output);
    return 0;
  }
  if (std::filesystem::exists(std::filesystem::symlink_status(flags.output)))
    throw UsageError("--output " + flags.output + ": exists; give another name or remove it");
  AtomicFile output(flags.output, {.replace = false});
  write_to(output);
  output.commit();
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& app, Command& chosen) {
  CLI::App* command = app.add_subcommand("tokenize", "Turn texts into token ids");
  const auto flags = std::make_shared<TokenizeFlags>();
  command->add_option("--model", flags->model, "Folder with the tokenizer's files, or a GGUF file")->required();
  command
      ->add_option("--input", flags->input,
                   "{\"id\": ..., \"text\": ...}, one JSON object per line; the id defaults to the line's number, from "
                   "0; -: standard input")
      ->required();
  command
      ->add_option("--output", flags->output,
                   "{\"id\": ..., \"ids\": ...}, one JSON object per line; -: standard output")
      ->required();
  command->add_flag("--no-bos", flags->no_first_token,
                    "Leave out the token that the tokenizer puts before every prompt");
  command->callback(
      [flags, &chosen] { chosen.run = [flags](const std::atomic<bool>& stop) { return tokenize(*flags, stop); }; });
}

}  // namespace weft::runtime
