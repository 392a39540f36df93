#include "runtime/checkpoint/training_folder.h"

#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

/// Modules that wrap others; their names stand anywhere in a tensor's.
constexpr std::array<std::string_view, 4> kWrappers{"_orig_mod.", "_fsdp_wrapped_module.",
                                                    "_checkpoint_wrapped_module.", "_fpw_module."};

/// Beginnings of names, and what stands there in the model's own files.
constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kBeginnings{{
    {"module.", ""},                      // DDP, DeepSpeed
    {"base_model.model.", ""},            // PEFT
    {"model.language_model.", "model."},  // the text part of a model with images
    {"language_model.model.", "model."},  // the same
    {"language_model.lm_head.", "lm_head."},
    {"model.model.", "model."},          // Lightning
    {"model.lm_head.", "lm_head."},      // the same
    {"model.gpt_neox.", "gpt_neox."},    // the same
    {"model.embed_out.", "embed_out."},  // the same
}};

std::string own_name(std::string name) {
  for (const std::string_view wrapper : kWrappers)
    for (std::size_t at = name.find(wrapper); at != std::string::npos; at = name.find(wrapper, at))
      if (at == 0 || name[at - 1] == '.') name.erase(at, wrapper.size());
      else ++at;
  for (bool again = true; again;) {
    again = false;
    for (const auto& [begin, instead] : kBeginnings)
      if (name.starts_with(begin)) name.replace(0, begin.size(), instead), again = true;
  }
  return name;
}

/// A file that a folder has in the place of weights, and a way to get these.
struct Instead {
  const char *file, *words;
};
constexpr Instead kInstead[]{
    {kAdapter, "holds an adapter; merge it into its base model (in PEFT by merge_and_unload()) and give the result"},
    {"consolidated.00.pth", "holds Meta's own format; transformers' convert_llama_weights_to_hf.py converts it"},
    {"lit_model.pth", "holds LitGPT's own format; litgpt convert_from_litgpt converts it"},
    {"zero_to_fp32.py", "holds the parts of a DeepSpeed run; its zero_to_fp32.py gathers the weights"},
    {".metadata", "holds the parts of an FSDP run; accelerate merge-weights joins them"},
    {"flax_model.msgpack", "holds Flax weights; load and save the model with transformers"},
    {"tf_model.h5", "holds TensorFlow weights; load and save the model with transformers"},
};

}  // namespace

std::string remove_wrappers(std::vector<TensorInfo>& tensors) {
  std::set<std::string, std::less<>> taken;
  for (const TensorInfo& tensor : tensors) taken.insert(tensor.name);
  std::size_t count = 0;
  std::string example;
  for (TensorInfo& tensor : tensors) {
    std::string name = own_name(tensor.name);
    if (name == tensor.name || name.empty() || !taken.insert(name).second) continue;
    if (++count == 1) example = in_quotes(tensor.name) + " is read as " + in_quotes(name);
    tensor.name = std::move(name);
  }
  if (count > 1) example += ", and " + std::to_string(count - 1) + " other tensors likewise";
  return example;
}

std::string found_instead_of_weights(const fs::path& directory) {
  std::error_code ignored;
  for (const Instead& each : kInstead)
    if (fs::exists(directory / each.file, ignored)) return std::string(each.words);
  return {};
}

}  // namespace weft::runtime
