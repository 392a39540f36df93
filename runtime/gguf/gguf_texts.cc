#include "runtime/gguf/gguf_texts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/json.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
/// Control tokens that end a turn, of files whose metadata has no id for that; llama.cpp finds them by these texts too.
constexpr std::array<std::string_view, 4> kTurnEnds{"<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"};

/// The tokens that end an answer of Gemma 4 by its generation_config.json, of which the metadata has one id.
constexpr std::array<std::string_view, 3> kGemma4Ends{"<eos>", "<turn|>", "<|tool_response>"};

/// Whether the file has a tokenizer; some say that it has none.
bool has_vocabulary(const Gguf& gguf) {
  const std::string kind = gguf.text("tokenizer.ggml.model", "none");
  return kind != "none" && kind != "no_vocab";
}

bool is_gemma4(const Gguf& gguf) { return gguf.text("tokenizer.ggml.model", "none") == kGgufGemma4Pieces; }

std::vector<std::int64_t> turn_ends(const Gguf& gguf) {
  constexpr std::int64_t kControl = 3, kUserDefined = 4;
  const auto* const tokens = gguf.texts("tokenizer.ggml.tokens");
  const auto* const types = gguf.integers("tokenizer.ggml.token_type");
  const bool gemma4 = is_gemma4(gguf);
  const std::span<const std::string_view> ends = gemma4 ? std::span<const std::string_view>(kGemma4Ends) : kTurnEnds;
  std::vector<std::int64_t> found;
  for (std::size_t id = 0; tokens && types && id < std::min(tokens->size(), types->size()); ++id) {
    const std::int64_t type = (*types)[id];
    if ((type == kControl || (type == kUserDefined && gemma4)) &&
        std::find(ends.begin(), ends.end(), (*tokens)[id]) != ends.end())
      found.push_back(static_cast<std::int64_t>(id));
  }
  return found;
}

}  // namespace

ordered_json gguf_generation_config(const GgufModel& model) {
  const Gguf& gguf = model.first();
  ordered_json config = ordered_json::object();
  add_gguf_token_ids(gguf, config);
  ordered_json ends = ordered_json::array();
  for (const char* key : {"eos", "eot", "eom"}) {
    const std::string name = gguf_token_key(key);
    if (!gguf.has(name)) continue;
    const ordered_json id = gguf.integer(name, 0, kMost);
    if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  if (is_gemma4(gguf) || !gguf.has(gguf_token_key("eot")))
    for (const std::int64_t id : turn_ends(gguf))
      if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  if (!ends.empty()) config["eos_token_id"] = ends.size() == 1 ? ends.front() : ends;
  return config;
}

policy::Quantisation gguf_quantisation(const GgufModel& model) {
  policy::Quantisation found{.uniform = true};
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) {
      if (!is_gguf_layer_matrix(tensor) || tensor.format->is_float()) continue;
      found.packing = policy::Quantisation::Packing::gguf;
      if (tensor.format->type == DType::i4 || found.dtype != DType::i4) found.dtype = tensor.format->type;
      found.group = std::max(found.group, tensor.format->group);
    }
  return found ? found : policy::Quantisation{};
}

ModelTexts gguf_texts(const GgufModel& model) {
  const Gguf& gguf = model.first();
  ModelTexts::Makers makers{
      {"config.json", [&model] { return policy::to_pretty(gguf_config(model)) + "\n"; }},
      {"generation_config.json", [&model] { return policy::to_pretty(gguf_generation_config(model)) + "\n"; }}};
  if (has_vocabulary(gguf)) {
    makers["tokenizer.json"] = [&gguf] { return policy::to_line(gguf_tokenizer(gguf)); };
    makers["tokenizer_config.json"] = [&gguf] { return policy::to_pretty(gguf_tokenizer_config(gguf)) + "\n"; };
  }
  return {gguf.path, std::move(makers)};
}

}  // namespace weft::runtime
