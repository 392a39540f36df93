// offload/crc32c.h: the checksum of spill pages.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::offload {

/// CRC-32C (Castagnoli) of `bytes` bytes, by the processor's instruction where it has one.
std::uint32_t crc32c(const std::byte* data, std::size_t bytes);
/// The same from a table; slower.
std::uint32_t crc32c_by_table(const std::byte* data, std::size_t bytes);

}  // namespace weft::offload
