// tests/support/bytes.h: files of random bytes, from a seed.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <random>
#include <vector>

#include "tests/support/files.h"

namespace weft::test {

inline std::vector<std::byte> noise(std::size_t bytes, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> data(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = random();
    std::memcpy(&data[i], &word, std::min<std::size_t>(8, bytes - i));
  }
  return data;
}

inline void write_bytes(const std::filesystem::path& path, const std::vector<std::byte>& data) {
  write_text(path, {reinterpret_cast<const char*>(data.data()), data.size()});
}

}  // namespace weft::test
