// policy/model/model_config.h: the keys of config.json that several families share.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "policy/base/json.h"
#include "policy/model/model.h"

namespace weft::policy {

int positive_int(Fields& fields, const char* key, std::int64_t high, std::int64_t fallback);
double positive(Fields& fields, const char* key, double high, std::optional<double> fallback = {});

/// Reads a switch; null is false, as in Python.
bool flag(Fields& fields, const char* key, bool fallback);

/// Reads a cap on logits; 0 for null, and where it is absent without a fallback.
float cap_from_config(Fields& fields, const char* key, std::optional<double> fallback = {});
/// Refuses the caps that the config names and its family, whose model has none, does not read.
void require_known_caps(Fields& fields, const ModelSpec& model);

/// The keys of rotary embeddings: in rope_parameters since transformers 5, before that in rope_scaling and at the top.
struct RotaryKeys {
  const char *theta = "rope_theta", *fraction = "partial_rotary_factor";
  double default_fraction = 1, default_theta = 10000;
  const char* layers = nullptr;  ///< the type of layers whose entry is read, if rope_parameters has one for each type
  bool scaled = true;            ///< false: rope_scaling is of other layers and not read
  bool whole = false;            ///< whole heads turn, whatever `fraction` says, as in transformers
  const char* absent = nullptr;  ///< JSON that stands for absent rope_parameters
  bool scales_base = false;      ///< an alpha of `dynamic` scales the base, at every length
  bool of_images = false;        ///< mrope is known: its coordinates of a position are the same for text
  int head_dim = 0;              ///< numbers of a head; 0: ModelSpec::head_dim
};
/// Radians per position of each pair of a head's first numbers, and the factor on the numbers that turn.
struct RotaryFrequencies {
  std::vector<float> frequencies;
  float magnitude = 1;
};
/// Reads the model's rotary embedding. May lessen model.positions (see ModelSpec::longer_positions). Throws DataError.
RotaryFrequencies rotary_from_config(Fields& fields, const std::string& where, ModelSpec& model,
                                     const RotaryKeys& keys);

/// The size of a head if the heads divide the hidden size evenly.
int even_split(const ModelSpec& model, const std::string& where);
void dtype_from_config(Fields& fields, ModelSpec& model);
std::vector<std::int32_t> eos_from_config(Fields& fields, ModelSpec& model, std::vector<std::int32_t> fallback);
std::optional<std::int32_t> bos_from_config(Fields& fields, ModelSpec& model, std::optional<std::int32_t> fallback);

/// The keys that all families but OPT share. The defaults may have `kv_heads` 0, for as many as heads, and `head_dim`
/// 0, for heads that divide the hidden size evenly.
ModelSpec common(Fields& fields, const std::string& where, const ModelSpec& defaults);
/// The keys of Llama and the families made after it. Of the defaults, those for norms, biases and factors stay.
ModelSpec llama_like(Fields& fields, const std::string& where, ModelSpec defaults, const RotaryKeys& keys = {});

/// The config of the text model beside towers for images, with what only the whole config says.
nlohmann::json text_config(Fields& fields);

/// Reads Granite's factors.
void granite_factors(Fields& fields, ModelSpec& model);

/// Reads sliding_window, `fallback` if it is absent. Returns 0 for null.
int window_from_config(Fields& fields, std::int64_t fallback);
/// Gives all layers the window of sliding_window, as Mistral's classes in transformers do, which do not read
/// layer_types.
void slide_everywhere(Fields& fields, ModelSpec& model, std::int64_t fallback);
/// Returns for each layer whether layer_types calls it sliding_attention; without layer_types, whether
/// `slides(layer)` says so.
using Slides = std::function<bool(int layer)>;
std::vector<bool> sliding_layers(Fields& fields, const ModelSpec& model, const Slides& slides);
/// The windows of a model's layers: `window` for its sliding_layers(). Windows that no sequence can fill are 0; empty
/// if all are.
std::vector<int> layer_windows(Fields& fields, const ModelSpec& model, int window, const Slides& slides);
/// Qwen's windows: with use_sliding_window in the layers from max_window_layers on, `by_default` if it is absent.
std::vector<int> windows_of_qwen(Fields& fields, const ModelSpec& model, int by_default = 28);

}  // namespace weft::policy
