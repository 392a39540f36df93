// runtime/checkpoint/shard_index.h: model.safetensors.index.json and pytorch_model.bin.index.json, which say in which
// of a checkpoint's files each tensor is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace weft::runtime {

struct ShardIndex {
  std::map<std::string, std::string> shard_of;    ///< by tensor; shards are plain names of files in the index's folder
  std::map<std::string, std::size_t> tensors_of;  ///< how many, by shard
  /// The sum that the index states. Tied weights make it wrong in the wild, so it decides nothing.
  std::optional<std::uint64_t> stated_bytes;
};

/// Names of shards must end in `suffix`, and where they are numbered ("-00002-of-00003"), each number must be there.
/// Throws CheckpointError, DataError where the file is no JSON, IoError.
ShardIndex read_shard_index(const std::filesystem::path& index, std::string_view suffix);

}  // namespace weft::runtime
