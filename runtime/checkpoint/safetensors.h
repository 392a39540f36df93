// runtime/checkpoint/safetensors.h: the strict reader of one safetensors file, after the README of
// github.com/huggingface/safetensors.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// The number of bytes at the beginning of a file that safetensors_header_bytes() reads; it reads all of a smaller
/// file.
inline constexpr std::size_t kSafetensorsHeadBytes = 64;

/// The number of bytes of JSON after the first 8 bytes, at most 100,000,000 and within the file. Throws
/// CheckpointError, which states what the file is instead if its first bytes show it.
std::uint64_t safetensors_header_bytes(std::string_view head, std::uint64_t file_bytes, const std::string& where);

/// The tensors of file 0 in order of offset. They cover what follows the header without gap, overlap or rest. `header`
/// is the whole header; its __metadata__ goes to `metadata`, if there is one. Throws CheckpointError. Allocates at most
/// a small multiple of the header's size.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                                 const std::string& where, Metadata* metadata = nullptr);

/// Does both for a file.
std::vector<TensorInfo> read_safetensors(const InputFile& file, Metadata* metadata = nullptr);

/// The beginning of a file: the length of the header, the header, and blanks up to the next page, where the tensors
/// begin.
std::string safetensors_head(const nlohmann::ordered_json& header);

}  // namespace weft::runtime
