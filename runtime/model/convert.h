// runtime/model/convert.h: writes a packed copy of a checkpoint: one safetensors file, in the order in which a run
// reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "policy/model/weight_format.h"
#include "runtime/checkpoint/packed.h"

namespace weft::runtime {

struct Converted {
  std::size_t tensors = 0, left_out = 0;  ///< left_out: in the checkpoint but not part of the model
  std::uint64_t bytes = 0;
};

/// Writes a checkpoint folder of the model that ModelFiles::open(name) finds. Hugging Face transformers reads it too:
/// config.json, the tokenizer's files, and model.safetensors. In that file the tensors of a unit follow each other,
/// row-major and in the type they are computed in. So each unit is one range of the file, and the file can be the disk
/// tier whatever the original was. `dtype` is as in open_model(). With `verify_crc`, Checkpoint::verify() runs first.
/// With a quantised format the file holds packed units (runtime/checkpoint/packed.h), which only Weft reads, and
/// config.json records that under quantization_config. `asked` is the format; without it a quantised checkpoint keeps
/// its own, and any other is not quantised. The folder appears only when it is complete. Throws UsageError, DataError,
/// IoError, or Interrupted once `stop` is set; nothing is left behind then.
Converted convert_checkpoint(const std::filesystem::path& name, const std::filesystem::path& to,
                             const std::string& dtype, const std::atomic<bool>& stop, bool verify_crc = true,
                             const std::optional<policy::WeightFormat>& asked = {},
                             const PackingProgress& progress = {});

}  // namespace weft::runtime
