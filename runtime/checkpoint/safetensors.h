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

/// How much of a file's beginning safetensors_header_bytes() reads; of a smaller file, all.
inline constexpr std::size_t kSafetensorsHeadBytes = 64;

/// The bytes of JSON that follow the first 8, at most 100,000,000 and within the file. Throws CheckpointError, which
/// says what the file is instead where its first bytes tell.
std::uint64_t safetensors_header_bytes(std::string_view head, std::uint64_t file_bytes, const std::string& where);

/// The tensors by offset, of file 0: a partition of what follows the header, without gap, overlap or rest. Throws
/// CheckpointError. `header` is the whole header. Allocates a small multiple of its size at most.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, std::uint64_t file_bytes,
                                                 const std::string& where);

/// Both, on a file.
std::vector<TensorInfo> read_safetensors(const InputFile& file);

/// What a file begins with: the length of the header, the header, and blanks up to the next page, where the tensors
/// begin.
std::string safetensors_head(const nlohmann::ordered_json& header);

}  // namespace weft::runtime
