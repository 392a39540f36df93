// runtime/checkpoint/packed_sums.h: the checksums in a packed file, which Weft itself has written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// The name of the last tensor of a packed file, U8. It holds, in little-endian order, the CRC-32 of everything before
/// the tensors, that of each other tensor in order of offset, and that of these numbers themselves.
inline constexpr const char* kPackedSums = "weft.crc32";

/// The contents of that tensor.
std::string packed_sums(std::uint32_t header, std::span<const std::uint32_t> tensors);

/// Returns the checksums of `tensors`, which come from read_safetensors(), and removes the tensor that holds them.
/// Returns none if the file has no such tensor. Throws CheckpointError if they do not fit the tensors, or if the header
/// or the checksums themselves have changed.
std::vector<Checksum> take_packed_sums(const InputFile& file, std::vector<TensorInfo>& tensors);

}  // namespace weft::runtime
