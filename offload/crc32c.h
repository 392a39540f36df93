// offload/crc32c.h: the checksum of spill pages and of result lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::offload {

/// CRC-32C (Castagnoli) of `bytes` bytes, by the processor's instruction where it has one. `before`: that of the bytes
/// before these, where they are a part of something longer.
std::uint32_t crc32c(const std::byte* data, std::size_t bytes, std::uint32_t before = 0);
/// The same from a table; slower.
std::uint32_t crc32c_by_table(const std::byte* data, std::size_t bytes);

}  // namespace weft::offload
