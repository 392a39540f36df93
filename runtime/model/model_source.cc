#include "runtime/model/model_source.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/model/architecture.h"
#include "runtime/base/files.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/training_folder.h"
#include "runtime/model/kernel_terms.h"
#include "runtime/stored/stored_tensor.h"

namespace weft::runtime {
namespace {

float rounded_to(DType type, float number) {
  return type == DType::bf16  ? static_cast<float>(bf16(number))
         : type == DType::f16 ? static_cast<float>(f16(number))
                              : number;
}

namespace fs = std::filesystem;

std::uint64_t seed_from(const std::string& text) {
  const std::string prefix = "random:";
  std::uint64_t seed = 0;
  if (text.starts_with(prefix)) {
    const char *begin = text.data() + prefix.size(), *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, seed);
    if (error == std::errc{} && stop == end && begin != end) return seed;
  }
  throw UsageError("--weights must be random:SEED with a whole number, got '" + text.substr(0, 40) + "'");
}

nlohmann::json read_json(const ModelTexts& texts, const char* name) {
  return policy::parse_json(texts.read(name, kLargestConfig), texts.where(name), policy::Blame::data,
                            {.depth = 32, .large_integers = true});
}

/// Takes what ModelOpt says in a file of its own, if config.json does not say how the weights are quantised.
void apply_modelopt_config(policy::ModelSpec& spec, const ModelTexts& texts) {
  if (spec.quantisation || !spec.unread_quantisation.empty() || !texts.has(kModelOptConfig)) return;
  try {
    spec.quantisation =
        policy::quantisation_from_modelopt(read_json(texts, kModelOptConfig), texts.where(kModelOptConfig));
  } catch (const DataError& unread) {
    spec.unread_quantisation = unread.what();
  }
}

/// Takes the tokens that end a text from generation_config.json, if it has any. transformers generates by that file.
void apply_generation_config(policy::ModelSpec& spec, const ModelTexts& texts) {
  constexpr const char* kFile = "generation_config.json";
  if (!texts.has(kFile)) return;
  const nlohmann::json json = read_json(texts, kFile);
  policy::Fields fields(json, texts.where(kFile), policy::Blame::data);
  if (auto ids = policy::eos_ids(fields, spec.vocab, spec.notes); ids && !ids->empty()) spec.eos = *std::move(ids);
}

}  // namespace

DType dtype_named(const std::string& name, DType stored) {
  if (name == "auto") return stored == DType::f32 ? DType::f16 : stored;
  if (name == "float16" || name == "half") return DType::f16;
  if (name == "bfloat16") return DType::bf16;
  if (name == "float32" || name == "float") return DType::f32;
  throw UsageError("--dtype must be auto, float16, bfloat16 or float32, got '" + name.substr(0, 40) + "'");
}

std::uint64_t ModelSource::weight_bytes() const {
  const auto& bytes = weights->unit_bytes();
  return std::accumulate(bytes.begin(), bytes.end(), std::uint64_t{0});
}

namespace {

/// The path without a slash at the end.
fs::path whole_path(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(path);
  return whole.filename().empty() ? whole.parent_path() : whole;
}

}  // namespace

std::string hub_name(const fs::path& path) {
  const fs::path snapshots = whole_path(path).parent_path();
  std::string name = snapshots.parent_path().filename().string();
  constexpr std::string_view kBegin = "models--", kBetween = "--";
  if (snapshots.filename() != "snapshots" || !name.starts_with(kBegin)) return {};
  name.erase(0, kBegin.size());
  if (const auto at = name.find(kBetween); at != std::string::npos) name.replace(at, kBetween.size(), "/");
  return name;
}

std::string shown_name(const fs::path& path) {
  const std::string name = hub_name(path);
  return name.empty() ? path.string() : name;
}

std::vector<std::string> model_names(const ModelFiles& files) {
  const fs::path& path = files.path();
  const bool folder = files.texts().in_folder();
  const fs::path whole = whole_path(path);
  std::vector<std::string> names{(folder ? whole.filename() : whole.stem()).string(), path.string()};
  if (std::string hub = hub_name(path); !hub.empty()) names.insert(names.begin(), std::move(hub));
  const nlohmann::json config = read_json(files.texts(), "config.json");
  if (const auto name = config.find("_name_or_path"); name != config.end() && name->is_string())
    names.push_back(name->get<std::string>());
  return names;
}

namespace {

/// Lets the tokenizer's own end token end a text too, as in vLLM: chat templates end a turn with it, and config.json
/// may name another.
void apply_tokenizer_eos(ModelSource& source) {
  constexpr const char* kFile = "tokenizer_config.json";
  const ModelTexts& texts = source.files.texts();
  if (!texts.has(kFile)) return;
  const nlohmann::json json = read_json(texts, kFile);
  const auto found = json.is_object() ? json.find("eos_token") : json.end();
  if (found == json.end()) return;
  const nlohmann::json& value = found->is_object() ? found->value("content", nlohmann::json()) : *found;
  if (!value.is_string()) return;
  const auto id = source.tokenizer->special_token(value.get_ref<const std::string&>());
  std::vector<std::int32_t>& eos = source.spec.eos;
  if (!id || *id >= source.spec.vocab || std::find(eos.begin(), eos.end(), *id) != eos.end()) return;
  eos.push_back(*id);
  source.notes.push_back(
      value.get<std::string>() +
      " ends answers too: tokenizer_config.json names it as eos_token, the other configs name others");
}

/// The first GGUF file of the folder by name; "" if there is none.
std::string first_gguf(const fs::path& folder) {
  std::error_code ignored;
  std::string first;
  for (const fs::path& path : entries_of(folder, ignored)) {
    const std::string name = path.filename().string();
    if (path.extension() == ".gguf" && (first.empty() || name < first)) first = name;
  }
  return first.empty() ? first : in_quotes(first);
}

}  // namespace

policy::ModelSpec read_model_spec(const ModelFiles& files) {
  const ModelTexts& texts = files.texts();
  if (!texts.has("config.json")) {
    const std::string where = files.path().string() + ": ", found = found_instead_of_weights(files.path());
    if (!found.empty()) throw DataError(where + found);
    const std::string gguf = first_gguf(files.path());
    throw DataError(where + "there is no config.json in this folder; --model wants a Hugging Face checkpoint " +
                    (fs::is_directory(files.path() / "snapshots") ? "folder, here one of those in snapshots/"
                     : gguf.empty()                               ? "folder or a GGUF file"
                                                                  : "folder or a GGUF file, here " + gguf));
  }
  policy::ModelSpec spec = policy::model_from_config(read_json(texts, "config.json"), texts.where("config.json"));
  activation_named(spec.activation, texts.where("config.json"));
  apply_generation_config(spec, texts);
  apply_modelopt_config(spec, texts);
  if (!files.may_have_weights() && !spec.unread_quantisation.empty()) throw DataError(spec.unread_quantisation);
  if (const policy::Quantisation own = files.quantisation()) spec.quantisation = own;
  return spec;
}

policy::ModelSpec read_model_spec(const fs::path& path) { return read_model_spec(ModelFiles::open(path)); }

std::optional<policy::WeightFormat> format_of(const policy::Quantisation& stored,
                                              const std::optional<policy::WeightFormat>& asked, const fs::path& path) {
  if (asked && asked->dtype == DType::f8 && stored.dtype != DType::f8)
    throw UsageError(
        "--weight-dtype float8: " + path.string() +
        " has no weights of float8 (F8_E4M3), and no others become float8; leave the flag out, or give int8");
  if (!stored.keeps_levels()) return asked;
  policy::WeightFormat own = policy::WeightFormat::of(stored.dtype);
  own.group = stored.group;
  if (!asked) return own;
  const bool same = asked->dtype == own.dtype && asked->group == own.group;
  // Weights that others have quantised can be computed with in another format, but not in other groups: that would cost
  // quality and save nothing.
  if (same || (stored.foreign() && asked->dtype != own.dtype)) return asked;
  throw UsageError("--weight-dtype " + policy::to_text(*asked) + ": " + path.string() + " is " +
                   (stored.foreign() ? "quantised" : "packed") + " as " + name_of(own.dtype) + " in groups of " +
                   std::to_string(own.group) + "; leave the flag out, or give the checkpoint that it was made of");
}

std::unique_ptr<ModelSource> open_model(const fs::path& path, const std::string& dtype, const std::string& weights,
                                        const std::optional<policy::WeightFormat>& format) {
  auto source = std::make_unique<ModelSource>(ModelFiles::open(path));
  const ModelTexts& texts = source->files.texts();
  source->spec = read_model_spec(source->files);
  source->units = policy::model_units(source->spec);
  source->type = dtype_named(dtype, source->spec.dtype);
  source->notes = source->spec.notes;
  const auto widest = [&] { return format && !format->quantised() ? format->dtype : source->type; };
  const auto take_format = [&] { source->weight_format = format_of(source->spec.quantisation, format, source->path); };
  if (!weights.empty()) {
    if (!source->spec.unread_quantisation.empty()) throw DataError(source->spec.unread_quantisation);
    take_format();
    if (source->spec.quantisation.reordered)
      source->notes.emplace_back(
          "quantization_config has desc_act or actorder: such weights run only if their columns are in plain order");
    source->weights =
        std::make_unique<Weights>(source->spec, source->units, seed_from(weights), widest(), source->weight_format);
  } else if (texts.in_folder() && source->spec.quantisation.packing == policy::Quantisation::Packing::weft) {
    take_format();
    source->checkpoint = std::make_unique<Checkpoint>(source->files.open_checkpoint());
    source->weights = std::make_unique<Weights>(Weights::from_packed(source->spec, source->units, *source->checkpoint,
                                                                     source->spec.dtype, *source->weight_format));
  } else {
    if (!source->files.may_have_weights())
      throw UsageError("--model " + path.string() +
                       " is a file; give a checkpoint folder or a GGUF file, or --weights random:SEED with a config");
    source->checkpoint = std::make_unique<Checkpoint>(source->files.open_checkpoint());
    const auto add = [&](const std::vector<std::string>& notes) {
      source->notes.insert(source->notes.end(), notes.begin(), notes.end());
    };
    add(source->checkpoint->notes());
    add(complete_from_files(source->spec, *source->checkpoint));
    take_format();
    keep_head_levels(source->spec, *source->checkpoint, source->weight_format);
    source->units = policy::model_units(source->spec);
    source->type = dtype_named(dtype, source->spec.dtype);
    const auto needs = tensor_needs(source->spec, source->units, *source->checkpoint);
    if (std::string note = check_unused(needs, source->spec, *source->checkpoint); !note.empty())
      source->notes.push_back(std::move(note));
    source->weights =
        std::make_unique<Weights>(source->spec, source->units, *source->checkpoint, widest(), source->weight_format);
  }
  if (source->spec.rounds_embedding_scale)
    for (float* const factor : {&source->spec.embedding_scale, &source->spec.layer_input_scale})
      *factor = rounded_to(source->type, *factor);
  if (source->files.gguf() && source->checkpoint)
    for (const std::string& line : source->weights->changed_levels())
      source->notes.push_back(source->files.path().filename().string() + ": " + line);
  if (Tokenizer::present(texts)) {
    source->tokenizer = std::make_unique<Tokenizer>(Tokenizer::load(texts));
    if (source->tokenizer->size() > static_cast<std::size_t>(source->spec.vocab))
      source->notes.push_back("the tokenizer has ids up to " + std::to_string(source->tokenizer->size() - 1) +
                              ", the model's vocabulary has " + std::to_string(source->spec.vocab) +
                              "; prompts with tokens beyond it are refused");
    apply_tokenizer_eos(*source);
  }
  return source;
}

}  // namespace weft::runtime
