// runtime/gguf/gguf_names.h: GGUF's names of architectures and tensors in the words of Hugging Face.
#pragma once

#include <string>

#include "runtime/gguf/gguf.h"

namespace weft::runtime {

/// A family of models as GGUF names it.
struct GgufArchitecture {
  const char* name;        ///< "general.architecture"
  const char* model_type;  ///< the same in config.json
  const char* class_name;  ///< the model's class in transformers
  /// The rows of a head of q and k alternate between its two halves, as rotation of neighbours needs them; Hugging Face
  /// has the halves one after the other.
  bool pairs = false;
  bool biases = false;      ///< q, k and v have them
  bool head_norms = false;  ///< each head of q and k is normed
};

/// Throws GgufError, which names the architecture, if Weft does not compute it.
const GgufArchitecture& gguf_architecture(const Gguf& gguf);

/// A tensor's place in the model.
struct GgufName {
  std::string name;            ///< as Hugging Face calls it
  std::int64_t pair_rows = 0;  ///< rows of a head, if its two halves alternate
};

/// The name of one of the architecture's tensors. A tensor outside the layers that is not known keeps its own. Throws
/// GgufError if a layer has a tensor that its family lacks: without it answers would be wrong.
GgufName gguf_name(const Gguf& gguf, const GgufArchitecture& architecture, const GgufTensor& tensor);

}  // namespace weft::runtime
