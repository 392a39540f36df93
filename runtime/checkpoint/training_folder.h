// runtime/checkpoint/training_folder.h: the leftovers of training frameworks: files in a folder, and wrappers of
// tensors' names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// Removes what torch.compile, DDP, FSDP, PEFT and Lightning put around the names of a model's own tensors, unless that
/// name is taken. Returns a note for people; empty if no name has changed. The tensors are not sorted afterwards.
std::string remove_wrappers(std::vector<TensorInfo>& tensors);

/// Says which known thing a folder holds in the place of weights, and what to do with it; empty if there is none.
std::string found_instead_of_weights(const std::filesystem::path& directory);

/// The file that tells of an adapter in the folder.
inline constexpr const char* kAdapter = "adapter_config.json";

}  // namespace weft::runtime
