#include "kernels/coarse_row.h"

#include <cstring>

namespace weft::kernels {
namespace {

/// The place of number 2 i + p of a group in a plane of `bits`: its byte, and the shift in bits.
constexpr KvLevel place_in(int bits, int i, int p) {
  if (bits == 4) return {i, 4 * p};
  const int words = 4 * bits;  // of 16 bits in the plane
  return {2 * (i % words) + p, bits * (i / words)};
}

/// The planes of a group: the bits of each, and how far to the left of a coarse level's end they stand.
struct Plane {
  int bits, shift;
};
constexpr Plane first_plane(int bits) { return bits == 3 ? Plane{2, 1} : Plane{bits, 0}; }

}  // namespace

void coarsen(const std::byte* fine, int head_dim, int bits, std::byte* coarse) {
  const auto* const level = reinterpret_cast<const std::uint8_t*>(fine);
  auto* const row = reinterpret_cast<std::uint8_t*>(coarse);
  const std::size_t levels = coarse_level_bytes(bits, head_dim);
  std::memset(row, 0, levels);
  std::uint8_t* plane = row;
  for (int first = 0; first < head_dim; first += kKvGroup) {
    const int count = head_dim - first < kKvGroup ? head_dim - first : kKvGroup;
    int left = bits;  // bits of the planes from this one on
    for (Plane of = first_plane(bits); left > 0; left -= of.bits, of = {1, 0}) {
      for (int d = 0; d < count; ++d) {
        const KvLevel at = place_in(of.bits, d / 2, d % 2);
        const int part = level[first + d] >> (8 - bits + of.shift) & ((1 << of.bits) - 1);
        plane[at.byte] = static_cast<std::uint8_t>(plane[at.byte] | part << at.shift);
      }
      plane += of.bits * kKvGroup / 8;
    }
  }
  std::memcpy(row + levels, level + kv_level_bytes(DType::i8, head_dim),
              static_cast<std::size_t>(kv_groups(head_dim)) * 4);
}

int coarse_level(const std::byte* coarse, int bits, int d) {
  const auto* plane = reinterpret_cast<const std::uint8_t*>(coarse) + d / kKvGroup * bits * kKvGroup / 8;
  int level = 0, left = bits;
  for (Plane of = first_plane(bits); left > 0; left -= of.bits, of = {1, 0}) {
    const KvLevel at = place_in(of.bits, d % kKvGroup / 2, d % 2);
    level |= (plane[at.byte] >> at.shift & ((1 << of.bits) - 1)) << of.shift;
    plane += of.bits * kKvGroup / 8;
  }
  return level;
}

}  // namespace weft::kernels
