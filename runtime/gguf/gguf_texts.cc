#include "runtime/gguf/gguf_texts.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "policy/base/json.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();

/// Whether the file has a tokenizer; some say that it has none.
bool has_vocabulary(const Gguf& gguf) {
  const std::string kind = gguf.text("tokenizer.ggml.model", "none");
  return kind != "none" && kind != "no_vocab";
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
  if (ends.size() > 1) config["eos_token_id"] = ends;
  return config;
}

policy::Quantisation gguf_quantisation(const GgufModel& model) {
  policy::Quantisation found{.group = 32, .uniform = true};
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors) {
      if (!is_gguf_layer_matrix(tensor) || tensor.format->is_float()) continue;
      found.packing = policy::Quantisation::Packing::gguf;
      if (tensor.format->type == DType::i4 || found.dtype != DType::i4) found.dtype = tensor.format->type;
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
