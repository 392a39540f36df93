#include "runtime/model/fingerprint.h"

#include <algorithm>

#include "runtime/base/files.h"
#include "runtime/base/hash.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

std::string weights_file(const Checkpoint& checkpoint, std::size_t file) {
  std::uint64_t sum = 0;
  const auto add = [&sum](std::string_view text) { sum = mix(sum ^ hash(text)); };
  for (const TensorInfo& tensor : checkpoint.tensors()) {
    if (tensor.file != file) continue;
    std::string text = tensor.name + " " + tensor.dtype;
    for (const std::int64_t size : tensor.shape) text += " " + std::to_string(size);
    add(text + " at " + std::to_string(tensor.offset));
  }
  return std::to_string(checkpoint.state(file).size) + " bytes, " + to_hex(checkpoint.sample(file, sum));
}

}  // namespace

std::string to_hex(std::uint64_t value) {
  std::string text(16, '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, value >>= 4) *digit = "0123456789abcdef"[value & 15];
  return text;
}

std::vector<std::pair<std::string, std::string>> fingerprints(const ModelSource& model) {
  std::vector<std::pair<std::string, std::string>> found;
  const auto add = [&](const std::string& name, const fs::path& path) {
    if (fs::exists(path)) found.emplace_back(name, to_hex(mix(hash(read_file(path, kLargestTokenizer)))));
  };
  const fs::path path = model.path;
  if (!fs::is_directory(path)) {
    add("config.json", path);
    return found;
  }
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json", "vocab.json", "merges.txt",
                           "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                           "chat_template.jinja", "chat_template.json", "additional_chat_templates/tool_use.jinja"})
    add(name, path / name);
  if (model.checkpoint)
    for (std::size_t i = 0; i < model.checkpoint->files().size(); ++i)
      found.emplace_back(model.checkpoint->files()[i].filename().string(), weights_file(*model.checkpoint, i));
  return found;
}

}  // namespace weft::runtime
