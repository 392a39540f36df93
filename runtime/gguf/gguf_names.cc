#include "runtime/gguf/gguf_names.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

constexpr std::array kArchitectures{
    GgufArchitecture{.name = "llama", .model_type = "llama", .class_name = "LlamaForCausalLM", .pairs = true},
    GgufArchitecture{.name = "qwen2", .model_type = "qwen2", .class_name = "Qwen2ForCausalLM", .biases = true},
    GgufArchitecture{.name = "qwen3", .model_type = "qwen3", .class_name = "Qwen3ForCausalLM", .head_norms = true},
    GgufArchitecture{.name = "smollm3", .model_type = "smollm3", .class_name = "SmolLM3ForCausalLM", .pairs = true},
};

constexpr std::array<std::pair<const char*, const char*>, 3> kWhole{{{"token_embd.weight", "model.embed_tokens.weight"},
                                                                     {"output_norm.weight", "model.norm.weight"},
                                                                     {"output.weight", "lm_head.weight"}}};
enum class Part : std::uint8_t { always, bias, head_norm };
struct LayerName {
  const char *gguf, *name;
  Part part = Part::always;
  bool rotated = false;  // its rows are those of q's or k's heads
};
constexpr std::array kLayer{
    LayerName{"attn_norm.weight", "input_layernorm.weight"},
    LayerName{"ffn_norm.weight", "post_attention_layernorm.weight"},
    LayerName{"attn_q.weight", "self_attn.q_proj.weight", Part::always, true},
    LayerName{"attn_k.weight", "self_attn.k_proj.weight", Part::always, true},
    LayerName{"attn_v.weight", "self_attn.v_proj.weight"},
    LayerName{"attn_output.weight", "self_attn.o_proj.weight"},
    LayerName{"ffn_gate.weight", "mlp.gate_proj.weight"},
    LayerName{"ffn_up.weight", "mlp.up_proj.weight"},
    LayerName{"ffn_down.weight", "mlp.down_proj.weight"},
    LayerName{"attn_q.bias", "self_attn.q_proj.bias", Part::bias},
    LayerName{"attn_k.bias", "self_attn.k_proj.bias", Part::bias},
    LayerName{"attn_v.bias", "self_attn.v_proj.bias", Part::bias},
    LayerName{"attn_q_norm.weight", "self_attn.q_norm.weight", Part::head_norm},
    LayerName{"attn_k_norm.weight", "self_attn.k_norm.weight", Part::head_norm},
};

}  // namespace

const GgufArchitecture& gguf_architecture(const Gguf& gguf) {
  const std::string& name = gguf.text("general.architecture");
  std::string known;
  for (const GgufArchitecture& architecture : kArchitectures) {
    if (name == architecture.name) return architecture;
    known += (known.empty() ? "" : ", ") + std::string(architecture.name);
  }
  gguf.refuse(GgufFault::bad_metadata, "is a model of the architecture " + in_quotes(name) +
                                           ", which Weft does not compute; of GGUF files it reads " + known);
}

GgufName gguf_name(const Gguf& gguf, const GgufArchitecture& architecture, const GgufTensor& tensor) {
  for (const auto& [own, name] : kWhole)
    if (tensor.name == own) return {name};
  constexpr std::string_view kBlock = "blk.";
  if (!tensor.name.starts_with(kBlock)) return {tensor.name};
  const std::size_t dot = std::min(tensor.name.find('.', kBlock.size()), tensor.name.size() - 1);
  const std::string layer = tensor.name.substr(kBlock.size(), dot - kBlock.size()), rest = tensor.name.substr(dot + 1);
  for (const LayerName& each : kLayer) {
    if (rest != each.gguf) continue;
    if ((each.part == Part::bias && !architecture.biases) || (each.part == Part::head_norm && !architecture.head_norms))
      break;
    GgufName found{.name = "model.layers." + layer + "." + each.name};
    if (!each.rotated || !architecture.pairs) return found;
    const std::string prefix = std::string(architecture.name) + ".attention.";
    const std::int64_t most = std::numeric_limits<std::int32_t>::max(),
                       heads = gguf.integer(prefix + "head_count", 1, most),
                       of_kind =
                           rest == "attn_q.weight" ? heads : gguf.integer(prefix + "head_count_kv", 1, most, heads);
    const std::int64_t rows = tensor.shape.front();
    if (tensor.shape.size() != 2 || rows % of_kind != 0 || rows / of_kind % 2 != 0)
      gguf.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(tensor.name) + " has " + std::to_string(rows) +
                                             " rows, which are no even number for each of " + std::to_string(of_kind) +
                                             " heads");
    found.pair_rows = rows / of_kind;
    return found;
  }
  gguf.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(tensor.name) + " is in no layer of " +
                                         architecture.model_type +
                                         " as Weft computes it, and answers without it would be wrong");
}

}  // namespace weft::runtime
