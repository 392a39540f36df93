// runtime/checkpoint/zip_reader.h: the strict reader of the stored zip archives that torch.save() writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// A stored entry: its name without the folder that all entries share, and the place of its bytes in the file.
struct ZipRecord {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc = 0;
};

/// The entries, sorted by name. Throws CheckpointError unless the archive can be read in only one way: nothing is
/// before or after it, no entry is compressed, encrypted or repeated, none overlaps another, and both headers of each
/// entry agree. Reads headers only, and allocates at most a small multiple of their size.
std::vector<ZipRecord> read_zip(const InputFile& file);

/// The CRC-32 that zip uses. `before` is the checksum of the bytes that these follow.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);
/// That of some bytes and the `bytes` bytes after them, from the checksums of each.
std::uint32_t crc32_of_both(std::uint32_t before, std::uint32_t after, std::size_t bytes);

}  // namespace weft::runtime
