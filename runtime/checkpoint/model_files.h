// runtime/checkpoint/model_files.h: the files of a model behind one door, whatever they are.
#pragma once

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "policy/model/quantisation.h"
#include "runtime/base/model_texts.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/gguf/gguf.h"

namespace weft::runtime {

/// The file in which ModelOpt says how it has quantised weights.
inline constexpr const char* kModelOptConfig = "hf_quant_config.json";
/// The small files that answers may depend on.
inline constexpr std::array kModelTexts{"config.json",
                                        "generation_config.json",
                                        kModelOptConfig,
                                        "tokenizer.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "additional_chat_templates/tool_use.jinja"};

/// The files that --model names: a checkpoint folder in the Hugging Face layout, a GGUF file, or a config.json alone.
class ModelFiles {
 public:
  /// `name` is a path or, if there is none of that name, ORG/NAME in the cache of the Hugging Face Hub (HF_HUB_CACHE,
  /// HF_HOME/hub or ~/.cache/huggingface/hub). Reads the header of a GGUF file, and nothing of others. Throws
  /// UsageError, which begins with `flag`, if there is nothing of that name; GgufError or IoError.
  static ModelFiles open(const std::filesystem::path& name, const std::string& flag = "--model ");

  /// The place that `name` was resolved to.
  const std::filesystem::path& path() const { return path_; }
  /// The small files. They refer to this object.
  const ModelTexts& texts() const { return *texts_; }
  /// Whether there can be weights: it is not a config.json alone.
  bool may_have_weights() const { return gguf_ || texts_->in_folder(); }
  /// The header of a GGUF file; null for others.
  const GgufModel* gguf() const { return gguf_.get(); }
  /// Opens the weights. A GGUF file's header is not read again. Throws as Checkpoint::open().
  Checkpoint open_checkpoint() const { return gguf_ ? Checkpoint::open(*gguf_) : Checkpoint::open(path_); }
  /// The quantisation of the weights if tensors say it and not config.json; else none.
  policy::Quantisation quantisation() const;
  /// A hash of each small file that answers may depend on, or of a GGUF file's metadata, by name.
  std::vector<std::pair<std::string, std::string>> fingerprints() const;

 private:
  ModelFiles() = default;

  std::filesystem::path path_;
  std::unique_ptr<const GgufModel> gguf_;  // the texts refer to it
  std::unique_ptr<const ModelTexts> texts_;
};

}  // namespace weft::runtime
