// runtime/gguf/gguf_names.h: GGUF's names of architectures and tensors in the words of Hugging Face.
#pragma once

#include <string>
#include <string_view>

#include "runtime/gguf/gguf.h"

namespace weft::runtime {

/// Groups of tensors, of which the layers of a family have some.
namespace gguf_parts {
inline constexpr unsigned kQkv = 1, kFusedQkv = 2, kQkvBias = 4, kHeadNorms = 8;
inline constexpr unsigned kGateUp = 16, kFusedGateUp = 32;
inline constexpr unsigned kInputNorms = 64;  ///< before attention and mlp
inline constexpr unsigned kGemmaNorms = 128, kOlmo2Norms = 256, kGlm4Norms = 512;
inline constexpr unsigned kExperts = 1024, kMixtralExperts = 2048;  ///< all of a layer in one tensor
inline constexpr unsigned kRouter = 4096, kGraniteRouter = 8192;
inline constexpr unsigned kGptOss = 1 << 14;     ///< its router, sinks and biases
inline constexpr unsigned kPostNorms = 1 << 15;  ///< as kInputNorms, but the mlp's is called attention's
inline constexpr unsigned kMixtralRouter = 1 << 16;
inline constexpr unsigned kSharedExpert = 1 << 17, kQwenShared = 1 << 18;  ///< the latter with a gate
inline constexpr unsigned kGateBias = 1 << 19, kErnieBias = 1 << 20,
                          kMixtralBias = 1 << 21;  ///< biases of experts' scores
inline constexpr unsigned kFirstNorm = 1 << 22;    ///< the only one, before both
inline constexpr unsigned kNormBias = 1 << 23, kOutputBias = 1 << 24;
inline constexpr unsigned kStarcoder = 1 << 25;                            ///< its mlp
inline constexpr unsigned kHunyuanNorms = 1 << 26, kHunyuanMoe = 1 << 27;  ///< norms of heads; router and shared expert
inline constexpr unsigned kLayerScale = 1 << 28,
                          kGemma4Experts = 1 << 29;  ///< experts, their router and scales, norms beside the mlp's
inline constexpr unsigned kLayerInputs = 1 << 30;    ///< products and norms of the inputs of layers
}  // namespace gguf_parts

/// A family of models as GGUF names it.
struct GgufArchitecture {
  const char* name;        ///< "general.architecture"
  const char* model_type;  ///< the same in config.json
  const char* class_name;  ///< the model's class in transformers
  unsigned parts;          ///< gguf_parts
  /// The rows of a head of q and k alternate between its two halves, as rotation of neighbours needs them; Hugging Face
  /// has the halves one after the other.
  bool pairs = false;
  bool plus_one = false;    ///< 1 is added to the weights of norms
  bool turns_part = false;  ///< part of a head may rotate
  bool scales = false;      ///< it has factors on embeddings, branches, attention and logits
  bool windows = false;     ///< its layers may have sliding windows
  /// One of so many layers attends to all tokens and not to a window, unless the file says something else; 0: none
  /// does.
  int full_every = 0;
  const char* experts = nullptr;  ///< the number of experts in config.json; null: it has none
  bool sigmoid = false;           ///< its experts' scores are logistic functions, else a softmax
  bool deepseek = false;          ///< it may have groups of experts, a factor, dense layers, and layers behind the last
  bool layer_norm = false;        ///< LayerNorm, else RMSNorm
  bool images = false;            ///< its positions have several coordinates, which are the same for text
};

/// Throws GgufError, which names the architecture, if Weft does not compute it.
const GgufArchitecture& gguf_architecture(const Gguf& gguf);

/// The layers that generate, without those behind them that predict further tokens.
std::int64_t gguf_layers(const Gguf& gguf, const GgufArchitecture& architecture);

/// The sliding window; 0 if the file has none.
std::int64_t gguf_window(const Gguf& gguf, const GgufArchitecture& architecture);

/// A tensor's place in the model.
struct GgufName {
  std::string name;            ///< as Hugging Face calls it
  std::int64_t pair_rows = 0;  ///< rows of a head, if its two halves alternate
  bool plus_one = false;       ///< 1 is added to its numbers
};

/// The name of one of the architecture's tensors. A tensor outside the layers that is not known keeps its own. Throws
/// GgufError if a layer has a tensor that its family lacks: without it answers would be wrong.
GgufName gguf_name(const Gguf& gguf, const GgufArchitecture& architecture, const GgufTensor& tensor);

/// The matrix of NVFP4 for which a tensor is the scale of the whole (`end` is ".scale": it multiplies the numbers), or
/// that of what meets the matrix (".input_scale"); null for any other tensor.
const GgufTensor* gguf_scaled(const GgufModel& model, const GgufTensor& tensor, std::string_view end);

}  // namespace weft::runtime
