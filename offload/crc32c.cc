// offload/crc32c.cc
#include "offload/crc32c.h"

#include <array>
#include <cstring>

namespace weft::offload {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78u;  // reflected

constexpr auto kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1u) ? (crc >> 1) ^ kPolynomial : crc >> 1;
    table[byte] = crc;
  }
  return table;
}();

std::uint32_t by_table(std::uint32_t crc, const std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) crc = kTable[(crc ^ static_cast<std::uint32_t>(data[i])) & 255u] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)

// The instruction takes three cycles but can start in every cycle, so three streams side by side hide its latency. Four
// rounds of three streams nearly fill a spill page.
constexpr std::size_t kStream = 5456;

/// The effect of kStream zero bytes on a checksum. It is linear, so there is one table per byte of the checksum.
struct AppendZeros {
  std::array<std::array<std::uint32_t, 256>, 4> table{};

  AppendZeros() {
    const std::array<std::byte, kStream> zeros{};
    for (std::size_t byte = 0; byte < 4; ++byte)
      for (std::uint32_t bit = 0; bit < 8; ++bit) {
        const std::uint32_t moved = by_table(1u << (8 * byte + bit), zeros.data(), zeros.size());
        for (std::uint32_t value = 0; value < 256; ++value)
          if (value >> bit & 1u) table[byte][value] ^= moved;
      }
  }
  std::uint32_t operator()(std::uint32_t crc) const {
    return table[0][crc & 255u] ^ table[1][crc >> 8 & 255u] ^ table[2][crc >> 16 & 255u] ^ table[3][crc >> 24];
  }
};

std::uint64_t word(const std::byte* data) {
  std::uint64_t value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::uint32_t start, const std::byte* data,
                                                               std::size_t bytes) {
  static const AppendZeros append_zeros;
  std::uint64_t crc = start;
  for (; bytes >= 3 * kStream; data += 3 * kStream, bytes -= 3 * kStream) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kStream; i += 8) {
      crc = __builtin_ia32_crc32di(crc, word(data + i));
      second = __builtin_ia32_crc32di(second, word(data + kStream + i));
      third = __builtin_ia32_crc32di(third, word(data + 2 * kStream + i));
    }
    crc = append_zeros(static_cast<std::uint32_t>(crc)) ^ second;
    crc = append_zeros(static_cast<std::uint32_t>(crc)) ^ third;
  }
  for (; bytes >= 8; data += 8, bytes -= 8) crc = __builtin_ia32_crc32di(crc, word(data));
  return by_table(static_cast<std::uint32_t>(crc), data, bytes);
}

std::uint32_t update(std::uint32_t crc, const std::byte* data, std::size_t bytes) {
  return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, data, bytes) : by_table(crc, data, bytes);
}

#else

std::uint32_t update(std::uint32_t crc, const std::byte* data, std::size_t bytes) { return by_table(crc, data, bytes); }

#endif

}  // namespace

std::uint32_t crc32c(const std::byte* data, std::size_t bytes, std::uint32_t before) {
  return ~update(~before, data, bytes);
}
std::uint32_t crc32c_by_table(const std::byte* data, std::size_t bytes) { return ~by_table(~0u, data, bytes); }

}  // namespace weft::offload
