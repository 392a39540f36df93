// runtime/model/model_source.h: opens what --model and --weights name: a model with its weights, or a shape with random
// ones.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "policy/model/model.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/model/weights.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

/// All that is known of a model before a byte of its weights is read. It cannot be moved, because its parts refer to
/// each other.
struct ModelSource {
  explicit ModelSource(ModelFiles opened) : files(std::move(opened)), path(files.path().string()) {}

  ModelFiles files;
  std::string path;  ///< that of the files
  policy::ModelSpec spec;
  std::vector<policy::Unit> units;
  DType type = DType::f16;  ///< dtype of the KV cache, and the widest of the weights if weight_format names none
  std::optional<policy::WeightFormat> weight_format;
  std::unique_ptr<Checkpoint> checkpoint;        ///< null with random weights
  PackingProgress packing;                       ///< called while a packed copy is made; may be empty
  std::function<void(const std::string&)> warn;  ///< called with what is wrong and mended; may be empty
  /// Called at most once while weights are loaded, with the seconds for which they will still be quantised, if these
  /// are over a minute. May be empty.
  std::function<void(double seconds)> quantises_slowly;
  bool verify_crc = false;  ///< whether Session calls Checkpoint::verify() before it loads the weights
  std::unique_ptr<Weights> weights;
  std::unique_ptr<Tokenizer> tokenizer;  ///< null if there is none
  std::vector<std::string> notes;        ///< decisions that the model's files leave open, a line each

  std::uint64_t weight_bytes() const;
  /// Whether units whose home is the disk are read from a packed copy: they are quantised, and the checkpoint is not.
  bool packs() const { return weights->converts() && weight_format && weight_format->quantised(); }
  /// Whether a unit on disk consists of ranges of files, and so needs no space in the spill file.
  bool in_files(std::size_t unit) const { return weights->in_files(unit) || packs(); }
};

/// Opens the model that ModelFiles::open() finds. `dtype` is auto (the checkpoint's, but float16 for float32), float16,
/// bfloat16 or float32, as in vLLM. `weights` is empty, or "random:SEED"; then `path` may be a config.json. `format` is
/// the weight format of a policy; if there is none, `dtype` decides. Throws UsageError or DataError.
std::unique_ptr<ModelSource> open_model(const std::filesystem::path& path, const std::string& dtype,
                                        const std::string& weights,
                                        const std::optional<policy::WeightFormat>& format = {});

/// The dtype that such a name means for weights stored as `stored`. Throws UsageError for any other name.
DType dtype_named(const std::string& name, DType stored);

/// Chooses the weight format of a run or a copy for weights that are stored as `stored`. `asked` wins; without it,
/// quantised weights keep their format. Throws UsageError, which names `path`, if the weights cannot be had in that
/// format.
std::optional<policy::WeightFormat> format_of(const policy::Quantisation& stored,
                                              const std::optional<policy::WeightFormat>& asked,
                                              const std::filesystem::path& path);

/// The name "org/name" of a snapshot in the cache of the Hugging Face Hub (.../models--org--name/snapshots/HASH); empty
/// for any other path.
std::string hub_name(const std::filesystem::path& path);
/// The model's name for people: hub_name(), or `path` as it was given.
std::string shown_name(const std::filesystem::path& path);
/// The names that a request may use for the model: hub_name() first if there is one, the folder's (or file's) name, the
/// path, and "_name_or_path" of its config.json.
std::vector<std::string> model_names(const ModelFiles& files);

/// Reads the model's config.json and generation_config.json.
policy::ModelSpec read_model_spec(const ModelFiles& files);
policy::ModelSpec read_model_spec(const std::filesystem::path& path);

}  // namespace weft::runtime
