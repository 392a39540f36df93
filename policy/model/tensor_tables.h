// policy/model/tensor_tables.h: the names and shapes of each family's tensors, as transformers has them.
#pragma once

#include <span>

#include "policy/model/architecture.h"

namespace weft::policy {

std::span<const TensorRow> opt_tensors();
std::span<const TensorRow> llama_tensors();   ///< also of Mistral, Qwen and others
std::span<const TensorRow> gemma2_tensors();  ///< also of Gemma 3 and 4; norms lie on both sides of each sublayer
std::span<const TensorRow> olmo2_tensors();   ///< norms lie behind each sublayer alone
std::span<const TensorRow> phi3_tensors();  ///< q, k and v lie one after another in one tensor, gate and up in another
std::span<const TensorRow> glm4_tensors();  ///< gate and up in one tensor
std::span<const TensorRow> neox_tensors();
std::span<const TensorRow> cohere_tensors();      ///< one norm for both sublayers
std::span<const TensorRow> exaone4_tensors();     ///< as OLMo 2, but heads are normed one by one
std::span<const TensorRow> stablelm_tensors();    ///< norms have biases
std::span<const TensorRow> starcoder2_tensors();  ///< norms have biases, and nothing gates
std::span<const TensorRow> hunyuan_tensors();     ///< heads are normed after they were rotated
std::span<const TensorRow> arcee_tensors();       ///< nothing gates
std::span<const TensorRow> nemotron_tensors();    ///< norms have biases, and nothing gates
std::span<const TensorRow> granite4_tensors();    ///< the mlp has the name of a shared expert

// Of models with experts: sparse_tables.cc.
std::span<const TensorRow> mixtral_tensors();
std::span<const TensorRow> olmoe_tensors();     ///< queries and keys are normed as a whole
std::span<const TensorRow> qwen_moe_tensors();  ///< Qwen2 and Qwen3
std::span<const TensorRow> glm4_moe_tensors();
std::span<const TensorRow> gpt_oss_tensors();      ///< products of experts have biases
std::span<const TensorRow> granite_moe_tensors();  ///< experts lie in one tensor
std::span<const TensorRow> ernie_moe_tensors();
std::span<const TensorRow> minimax_m2_tensors();
std::span<const TensorRow> hunyuan_moe_tensors();

}  // namespace weft::policy
