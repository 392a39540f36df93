#include "runtime/model/fingerprint.h"

#include "runtime/base/hash.h"

namespace weft::runtime {

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

std::vector<std::pair<std::string, std::string>> fingerprints(const ModelSource& model) {
  std::vector<std::pair<std::string, std::string>> found = model.files.fingerprints();
  // Earlier states quantised random numbers.
  if (!model.checkpoint && model.weight_format && model.weight_format->quantised())
    found.emplace_back("random weights", "drawn as levels");
  if (model.checkpoint)
    for (std::size_t i = 0; i < model.checkpoint->files().size(); ++i)
      found.emplace_back(model.checkpoint->files()[i].filename().string(), weights_file(*model.checkpoint, i));
  return found;
}

}  // namespace weft::runtime
