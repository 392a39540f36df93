// runtime/engine/convert.h: a packed copy of a checkpoint: one safetensors file in the order in which a run reads it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "policy/weight_format.h"
#include "runtime/checkpoint/packed.h"

namespace weft::runtime {

struct Converted {
  std::size_t tensors = 0, left_out = 0;  ///< the second: in the checkpoint and not of the model
  std::uint64_t bytes = 0;
};

/// Writes a checkpoint folder that Hugging Face transformers reads too: config.json, the tokenizer's files, and
/// model.safetensors, in which the tensors of a unit follow each other row-major in the type they are computed in, so
/// that each unit is one range of the file and the file can be the disk tier whatever the original was. `dtype` as in
/// open_model(), `verify_crc`: Checkpoint::verify() first. With a quantised format the file holds units as
/// runtime/checkpoint/packed.h says, which only Weft reads, and config.json says so under quantization_config. `asked`:
/// the format; nothing: that of a checkpoint that others have quantised, else none. The folder appears only when it is
/// complete. Throws UsageError, DataError, IoError, or Interrupted once `stop` is set; then nothing is left behind.
Converted convert_checkpoint(const std::filesystem::path& from, const std::filesystem::path& to,
                             const std::string& dtype, const std::atomic<bool>& stop, bool verify_crc = true,
                             const std::optional<policy::WeightFormat>& asked = {},
                             const PackingProgress& progress = {});

}  // namespace weft::runtime
