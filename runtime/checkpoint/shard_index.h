// runtime/checkpoint/shard_index.h: model.safetensors.index.json and pytorch_model.bin.index.json, which name the
// checkpoint shard of each tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

struct ShardIndex {
  /// The shard of each tensor: the plain name of a file in the index's folder.
  std::map<std::string, std::string> shard_of;
  std::map<std::string, std::size_t> tensors_of;  ///< the number of tensors per shard
  /// The sum that the index states. Tied weights make it wrong in real checkpoints, so nothing depends on it.
  std::optional<std::uint64_t> stated_bytes;
  std::vector<std::string> notes;  ///< facts that are no reason to stop, one line each
};

/// Reads an index. Names of shards must end in `suffix`. If they are numbered ("-00002-of-00003") and numbers are
/// missing, a note says so. Throws CheckpointError, DataError if the file is not JSON, or IoError.
ShardIndex read_shard_index(const std::filesystem::path& index, std::string_view suffix);

}  // namespace weft::runtime
