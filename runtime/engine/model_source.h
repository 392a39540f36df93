// runtime/engine/model_source.h: what --model and --weights name: a checkpoint folder, or a shape with random weights.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "policy/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/engine/weights.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

/// All that is known of a model before a byte of its weights is read. Does not move: the parts refer to each other.
struct ModelSource {
  std::string path;
  policy::ModelSpec spec;
  std::vector<policy::Unit> units;
  DType type = DType::f16;  ///< of the KV cache, and the widest of the weights unless weight_format says
  std::optional<policy::WeightFormat> weight_format;
  std::unique_ptr<Checkpoint> checkpoint;  ///< null with random weights
  PackingProgress packing;                 ///< told while a packed copy is made; may be empty
  bool verify_crc = false;                 ///< whether Session calls Checkpoint::verify() before it loads the weights
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null if the folder has none

  std::uint64_t weight_bytes() const;
  /// Whether units whose home is the disk are read from a packed copy: they are quantised, and the checkpoint is not.
  bool packs() const { return weights->converts() && weight_format && weight_format->quantised(); }
  /// Whether a unit on disk is ranges of files, and so needs no space in the spill file.
  bool in_files(std::size_t unit) const { return weights->in_files(unit) || packs(); }
};

/// `dtype`: auto (the checkpoint's, float16 for float32), float16, bfloat16 or float32, as in vLLM.
/// `weights`: empty, or "random:SEED"; then `path` may be a config.json. `format`: what a policy says of the weights;
/// nothing: by `dtype`. Throws UsageError or DataError.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path, const std::string& dtype,
                                        const std::string& weights,
                                        const std::optional<policy::WeightFormat>& format = {});

/// What such a `dtype` means for weights stored as `stored`. Throws UsageError for another word.
DType dtype_named(const std::string& name, DType stored);

/// The format of a run or a copy of weights that are stored as `stored`: what was asked for; where nothing was, that of
/// weights that are quantised. Throws UsageError, which names `path`, where they cannot be had so.
std::optional<policy::WeightFormat> format_of(const policy::Quantisation& stored,
                                              const std::optional<policy::WeightFormat>& asked,
                                              const std::filesystem::path& path);

/// "org/name" of a snapshot in the cache of the Hugging Face Hub (.../models--org--name/snapshots/HASH); else empty.
std::string hub_name(const std::filesystem::path& path);
/// What people call the model: hub_name(), or `path` as it was given.
std::string shown_name(const std::filesystem::path& path);
/// What a request may call the model at `path`: hub_name() first if there is one, the folder's (or file's) name, `path`
/// as it was given, and
/// "_name_or_path" of its config.json.
std::vector<std::string> model_names(const std::filesystem::path& path);

/// The folder's config.json, or the file itself.
policy::ModelSpec read_model_spec(const std::filesystem::path& path);

}  // namespace weft::runtime
