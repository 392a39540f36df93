// offload/crc32c.h: the checksum of spill pages and of result lines.
#pragma once

#include <cstddef>
#include <cstdint>

namespace weft::offload {

/// CRC-32C (Castagnoli) of `bytes` bytes, computed with the processor's instruction if it has one. `before` is the
/// checksum of the bytes that precede these, if they are part of something longer.
std::uint32_t crc32c(const std::byte* data, std::size_t bytes, std::uint32_t before = 0);
/// The same, computed with a table; slower.
std::uint32_t crc32c_by_table(const std::byte* data, std::size_t bytes);

}  // namespace weft::offload
