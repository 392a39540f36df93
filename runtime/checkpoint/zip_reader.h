// runtime/checkpoint/zip_reader.h: the strict reader of the stored zip archives that torch.save() writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/input_file.h"

namespace weft::runtime {

/// A stored entry: its name without the folder that all of them share, and where its bytes are in the file.
struct ZipRecord {
  std::string name;
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t crc = 0;
};

/// The entries by name. Throws CheckpointError unless the archive can be read in one way only: nothing before, between
/// or after, no entry compressed, encrypted, twice, or over another, both headers of each saying the same. Reads
/// headers only, allocates a small multiple of their size at most.
std::vector<ZipRecord> read_zip(const InputFile& file);

/// The CRC-32 of zip; `before`: of the bytes that these follow.
std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t before = 0);

}  // namespace weft::runtime
