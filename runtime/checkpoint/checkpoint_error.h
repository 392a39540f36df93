// runtime/checkpoint/checkpoint_error.h: the ways in which a checkpoint can be wrong, one value each, so that tests can
// check for it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/error.h"

namespace weft::runtime {

// clang-format off
enum class Fault : std::uint8_t {
  missing_file, not_a_file, wrong_file,                                                // which file it is
  too_small, header_too_large, header_past_end, header_empty,                          // safetensors: its length
  invalid_json, not_an_object, duplicate_tensor, duplicate_field, bad_metadata,        // safetensors: its header
  bad_name, too_many_tensors, bad_entry, missing_field, unknown_field, bad_dtype, bad_shape, shape_too_large,
  bad_offsets,
  data_past_end, size_mismatch, overlap, hole, trailing_data,                          // safetensors: its data
  bad_zip, bad_record, bad_pickle, refused_opcode, refused_global, bad_storage, bad_checksum,  // PyTorch's own files
  bad_index, bad_shard_name,                                                           // the index of several shards
  missing_tensor,                                                                      // against what a model needs
};
constexpr const char* name_of(Fault fault) {
  constexpr std::array names{
      "missing-file", "not-a-file", "wrong-file",
      "too-small", "header-too-large", "header-past-end", "header-empty",
      "invalid-json", "not-an-object", "duplicate-tensor", "duplicate-field", "bad-metadata",
      "bad-name", "too-many-tensors", "bad-entry", "missing-field", "unknown-field", "bad-dtype", "bad-shape",
      "shape-too-large", "bad-offsets",
      "data-past-end", "size-mismatch", "overlap", "hole", "trailing-data",
      "bad-zip", "bad-record", "bad-pickle", "refused-opcode", "refused-global", "bad-storage", "bad-checksum",
      "bad-index", "bad-shard-name",
      "missing-tensor"};
  static_assert(names.size() == static_cast<std::size_t>(Fault::missing_tensor) + 1);
  return names[static_cast<std::size_t>(fault)];
}
// clang-format on

/// A DataError with its fault. The message begins with the file's path; it holds names and numbers from the file, but
/// no contents.
struct CheckpointError : DataError {
  CheckpointError(Fault f, const std::string& message) : DataError(message), fault(f) {}
  Fault fault;
};

}  // namespace weft::runtime
