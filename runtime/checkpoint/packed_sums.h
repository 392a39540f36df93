// runtime/checkpoint/packed_sums.h: the checksums in a safetensors file that Weft itself has packed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

/// The last tensor of a packed file, U8: the CRC-32 of all that stands before the tensors, that of each other tensor by
/// offset, and that of these numbers themselves, in little-endian order.
inline constexpr const char* kPackedSums = "weft.crc32";

/// What that tensor holds.
std::string packed_sums(std::uint32_t header, std::span<const std::uint32_t> tensors);

/// The checksums of `tensors`, as read_safetensors() gives them, and takes the tensor that holds them out; none where
/// the file has no such tensor. Throws CheckpointError where they do not fit the tensors, or the header or they
/// themselves have changed.
std::vector<Checksum> take_packed_sums(const InputFile& file, std::vector<TensorInfo>& tensors);

}  // namespace weft::runtime
