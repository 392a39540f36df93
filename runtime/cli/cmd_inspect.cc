#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <tuple>

#include "kernels/error.h"
#include "offload/kv_layout.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"
#include "runtime/base/files.h"
#include "runtime/cli/commands.h"
#include "runtime/model/model_source.h"
#include "runtime/model/packed_copy.h"
#include "runtime/text/chat_template.h"

namespace weft::runtime {
namespace {

using policy::bytes_to_text;

constexpr const char* kPerRun = "chosen per run";

/// The bytes of one token's keys and values in a layer.
std::uint64_t token_bytes(const policy::ModelSpec& spec, int layer, DType dtype, bool int8_keys) {
  const offload::KvShape shape{.sequences = 1,
                               .kv_heads = spec.kv_heads_of(layer),
                               .slots = 1,
                               .head_dim = spec.head_dim_of(layer),
                               .dtype = dtype,
                               .int8_keys = int8_keys};
  return (shape.key_bytes() + shape.value_bytes()) * static_cast<std::uint64_t>(shape.kv_heads);
}

/// The tokens that a layer keeps of a sequence as long as the context, times `parts`, if it keeps at most one of so
/// many parts of it.
std::uint64_t kept_tokens(const policy::ModelSpec& spec, int layer, std::int64_t parts) {
  return static_cast<std::uint64_t>(
      spec.window(layer) > 0 ? std::min<std::int64_t>(spec.window(layer) * parts, spec.positions) : spec.positions);
}

void print_kv_cache(const policy::ModelSpec& spec) {
  for (const auto& [name, dtype, int8_keys] : {std::tuple{"16 bits", DType::f16, false},
                                               {"int8", DType::i8, false},
                                               {"int4, keys int8", DType::i4, true},
                                               {"int4", DType::i4, false}}) {
    std::uint64_t token = 0, sequence = 0, own = 0, of_h2o = 0;  // all layers together
    for (int layer = 0; layer < spec.layers; ++layer) {
      const std::uint64_t bytes = token_bytes(spec, layer, dtype, int8_keys);
      token += bytes, sequence += bytes * kept_tokens(spec, layer, 1), of_h2o += bytes * kept_tokens(spec, layer, 5);
      if (!spec.shares_kv(layer)) own += bytes * kept_tokens(spec, layer, 1);
    }
    fmt::print("KV cache in {}: {} per token, {} for a sequence of {} tokens{}{}\n", name, bytes_to_text(token),
               bytes_to_text(sequence), spec.positions,
               dtype == DType::f16 ? fmt::format(", {} of it with h2o:0.1:0.1", bytes_to_text(of_h2o / 5)) : "",
               own < sequence ? fmt::format(", {} of it with all KV on the device", bytes_to_text(own)) : "");
  }
}

void print_shape(const policy::ModelSpec& spec) {
  fmt::print(
      "{}: {} layers, hidden {}, ffn {}, {} heads of {}{}, vocabulary {}, context {}, {}-norm, {} head, {:.1f} million "
      "parameters\n",
      spec.architecture, spec.layers, spec.hidden, spec.ffn, spec.heads, spec.head_dim,
      (spec.kv_heads == spec.heads ? "" : fmt::format(" over {} of keys and values", spec.kv_heads)) +
          (spec.global_head_dim > 0
               ? fmt::format(" ({} over {} in layers without a window)", spec.global_head_dim, spec.global_kv_heads)
               : ""),
      spec.vocab, policy::context_text(spec), spec.pre_norm ? "pre" : "post",
      spec.tied_head || spec.head_of_embedding ? "tied" : "untied", double(policy::parameters(spec)) / 1e6);
  if (const policy::Experts& experts = spec.experts; experts.count > 0)
    fmt::print("{} of {} layers have {} experts of width {}, of which a token passes {}{}\n",
               experts.sparse.empty() ? spec.layers : std::count(experts.sparse.begin(), experts.sparse.end(), true),
               spec.layers, experts.count, experts.ffn, experts.chosen,
               experts.shared_ffn > 0 ? fmt::format(" and a shared one of width {}", experts.shared_ffn) : "");
  if (!spec.windows.empty())
    fmt::print("{} of {} layers have a sliding window of {} tokens\n",
               std::count_if(spec.windows.begin(), spec.windows.end(), [](int window) { return window > 0; }),
               spec.layers, *std::max_element(spec.windows.begin(), spec.windows.end()));
  print_kv_cache(spec);
}

/// Prints the bytes that the weights would take in the quantised formats.
void print_quantised(const ModelSource& source) {
  std::string text;
  for (const DType dtype : {DType::i8, DType::i4}) {
    const Weights quantised(source.spec, source.units, 1, source.type, policy::WeightFormat{.dtype = dtype});
    const auto& bytes = quantised.unit_bytes();
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(dtype),
                        bytes_to_text(std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0})));
  }
  fmt::print("weights with --weight-dtype: {}\n", text);
}

/// "4 bits in groups of 32", "computed with as floats"
std::string form_of(const policy::Quantisation& how, const std::string& levels) {
  if (!how.keeps_levels()) return "computed with as floats";
  if (how.dtype == DType::f8) return "floats of 8 bits with scales";
  const char* const most = how.packing == policy::Quantisation::Packing::gguf ? "at most " : "";
  return levels + " in " +
         (how.whole_rows ? "whole rows" : fmt::format("groups of {}{}", most, how.group * how.repeats));
}

/// Prints the checkpoint's own quantisation, and how much of the model it covers.
void print_quantisation(const ModelSource& source) {
  const policy::Quantisation& how = source.spec.quantisation;
  if (!how.foreign()) {
    fmt::print("quantised: by weft convert, {}\n", form_of(how, name_of(how.dtype)));
    return;
  }
  std::size_t matrices = 0, others = 0;
  std::uint64_t bytes = 0, numbers = 0;
  std::set<std::string> seen;
  for (const policy::Unit& unit : source.units)
    for (const policy::TensorSpec& tensor : unit.tensors) {
      if (tensor.first_row != 0 || tensor.form == policy::Form::norm) continue;
      const StoredTensor stored = stored_tensor(source.spec, tensor, *source.checkpoint);
      if (!stored.matrix) {
        others += tensor.form == policy::Form::matrix || tensor.form == policy::Form::table;
        continue;
      }
      const std::int64_t rows = stored.matrix->rows(), cols = stored.matrix->cols();
      for (const TensorNeed& part : needs_of(source.spec, tensor, *source.checkpoint))
        if (seen.insert(part.name).second) bytes += source.checkpoint->find(part.name)->bytes;
      ++matrices, numbers += static_cast<std::uint64_t>(rows * cols);
    }
  const std::string levels = how.packing == policy::Quantisation::Packing::gguf  // each matrix has its own type
                                 ? "levels"
                                 : fmt::format("{} bits", bits_of(how.dtype));
  fmt::print("quantised: {}, {}{}: {} matrices, {}, {:.2f} bits a number; {} matrices and tables are not\n",
             name_of(how.packing), form_of(how, levels), how.reordered ? ", in an order of columns of their own" : "",
             matrices, bytes_to_text(bytes), numbers ? 8 * double(bytes) / double(numbers) : 0.0, others);
}

/// Prints what only a GGUF file has: its types by count, its vocabulary.
void print_gguf(const GgufModel& model, const ModelTexts& texts) {
  const Gguf& gguf = model.first();
  std::map<std::string, std::size_t> types;
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) ++types[tensor.format->name];
  std::string list;
  for (const auto& [name, count] : types) list += fmt::format("{}{} {}", list.empty() ? "" : ", ", count, name);
  fmt::print("GGUF: architecture {}, tensors by type: {}\n", gguf.text("general.architecture"), list);
  if (!Tokenizer::present(texts)) return;
  fmt::print("vocabulary: {}{}\n", gguf.text("tokenizer.ggml.model"),
             gguf.has("tokenizer.ggml.pre") ? ", cut by " + gguf.text("tokenizer.ggml.pre") : "");
}

/// Prints what a config.json says of the format of weights.
void print_format(const policy::Quantisation& how) {
  fmt::print("quantised: {}, {}{}\n", name_of(how.packing), form_of(how, how.dtype == DType::i8 ? "8 bits" : "4 bits"),
             how.reordered ? ", perhaps in an order of columns of their own, which is not read" : "");
}

void inspect_checkpoint(const std::string& path) {
  const auto source = open_model(path, "auto", "");
  print_shape(source->spec);
  const Checkpoint& checkpoint = *source->checkpoint;
  fmt::print("{} tensors, {} in {} file{}; computed in {}{}\n", checkpoint.size(),
             bytes_to_text(checkpoint.total_bytes()), checkpoint.files().size(),
             checkpoint.files().size() == 1 ? "" : "s", name_of(source->type),
             source->weights->converts() ? " (converted, which takes a copy of what is placed on disk)" : "");
  for (const std::string& note : source->notes) fmt::print("{}\n", note);
  if (source->files.gguf()) print_gguf(*source->files.gguf(), source->files.texts());
  fmt::print("tokenizer: {}\n",
             source->tokenizer ? fmt::format("{} tokens", source->tokenizer->size()) : "none; takes prompt_ids only");
  if (source->tokenizer) fmt::print("chat template: {}\n", ChatTemplate::load(source->files.texts()).description());
  std::uint64_t largest = 0;
  for (const std::uint64_t bytes : source->weights->unit_bytes()) largest = std::max(largest, bytes);
  fmt::print("weights: {} in {} units, the largest {}\n", bytes_to_text(source->weight_bytes()), source->units.size(),
             bytes_to_text(largest));
  if (source->spec.quantisation) print_quantisation(*source);
  else print_quantised(*source);
}

/// The contents of a policy file. What it leaves open is chosen once a run knows its model, requests and machine.
nlohmann::ordered_json shown(const policy::PartialPolicy& partial, const std::string& path) {
  const policy::Policy policy = partial.over(policy::Policy{});
  policy::check(policy.kv_format, path + ": kv");
  nlohmann::ordered_json json = policy.to_json();
  json.erase("budgets");  // replaced by those of the file
  for (const offload::Tier tier : offload::kTiers)
    if (const auto& bytes = partial.budgets[static_cast<std::size_t>(tier)])
      policy::object_at(json, "budgets")[name_of(tier)] = bytes_to_text(*bytes);
  if (!partial.gpu_batch_size) json["gpu_batch_size"] = kPerRun;
  if (!partial.num_gpu_batches) json["num_gpu_batches"] = kPerRun;
  if (partial.kv_share) json["retention"] = {{"rule", "auto"}, {"share", *partial.kv_share}};
  if (!partial.weights)
    json["weights"] =
        partial.weight_format ? policy::to_text(*partial.weight_format) + "; placement " + kPerRun : kPerRun;
  if (!partial.kv && policy.kv_format.dtype)
    for (const offload::Tier tier : offload::kTiers) json["kv"].erase(name_of(tier));
  else if (!partial.kv) json["kv"] = kPerRun;
  return json;
}

struct InspectFlags {
  std::string path, disk_directory;
  bool remove_packed = false;
};

/// Prints, and perhaps removes, the packed copies that runs have left in a folder.
void show_packed(const InspectFlags& flags) {
  const auto copies = packed_copies(flags.path, flags.disk_directory);
  if (copies.empty()) fmt::print("packed copies in {}: none\n", printable(flags.disk_directory));
  for (const FoundCopy& copy : copies) {
    if (flags.remove_packed) std::filesystem::remove(copy.file);
    fmt::print("packed copy: {}, {}{}\n", printable(copy.file.string()), bytes_to_text(copy.bytes),
               flags.remove_packed ? ", removed" : "");
  }
}

int inspect(InspectFlags flags) {
  const std::string& path = flags.path;
  if (!std::filesystem::exists(path)) flags.path = ModelFiles::open(path, "").path().string();  // ORG/NAME
  if (flags.remove_packed && flags.disk_directory.empty())
    throw UsageError("--remove-packed: name the folder of the packed copies, that of the outputs, with --disk-dir");
  if (!flags.disk_directory.empty()) {
    require_folder("--disk-dir", flags.disk_directory);
    if (!std::filesystem::is_directory(path) && !is_gguf(path))
      throw UsageError("--disk-dir: wants a model with weights, a folder or a GGUF file; " + path + " is neither");
  }
  if (flags.remove_packed) {
    show_packed(flags);
    return 0;
  }
  if (std::filesystem::is_directory(path) || is_gguf(path)) {
    inspect_checkpoint(path);
    if (!flags.disk_directory.empty()) show_packed(flags);
    return 0;
  }
  const auto json =
      policy::parse_json(read_file(path, 1 << 20), path, policy::Blame::usage, {.depth = 32, .large_integers = true});
  if (json.is_object() && json.contains("model_type")) {
    const policy::ModelSpec spec = read_model_spec(path);
    print_shape(spec);
    if (spec.quantisation) print_format(spec.quantisation);
    for (const std::string& note : spec.notes) fmt::print("{}\n", note);
    return 0;
  }
  fmt::print("{}\n", policy::to_pretty(shown(policy::PartialPolicy::from_json(json, path), path)));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Command& chosen) {
  CLI::App* command =
      app.add_subcommand("inspect", "Show what a checkpoint folder, a GGUF file, a config.json or a policy holds");
  const auto flags = std::make_shared<InspectFlags>();
  command->add_option("path", flags->path, "Folder, file, or ORG/NAME of a model in the Hub's cache")->required();
  command->add_option("--disk-dir", flags->disk_directory,
                      "Also list the packed copies of that model in this folder, which runs have left there");
  command->add_flag("--remove-packed", flags->remove_packed, "Remove these copies");
  command->callback([flags, &chosen] { chosen.run = [flags](const std::atomic<bool>&) { return inspect(*flags); }; });
}

}  // namespace weft::runtime
