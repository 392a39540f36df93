#include "kernels/coarse_row.h"

#include <cstring>
#include <initializer_list>

namespace weft::kernels {
namespace {

/// The place of number 2 i + p of a group in a plane of `bits`: its byte, and the shift in bits.
constexpr KvLevel place_in(int bits, int i, int p) {
  if (bits == 4) return {i, 4 * p};
  const int words = 4 * bits;  // of 16 bits in the plane
  return {2 * (i % words) + p, bits * (i / words)};
}

/// Packs the kBits bits from bit `from` on of a group's levels as a plane.
template <int kBits> void pack(const std::uint8_t* level, int from, std::uint8_t* plane) {
  constexpr int mask = (1 << kBits) - 1, bytes = kKvGroup * kBits / 8, each = 8 / kBits;
  for (int i = 0; i < bytes; ++i) {
    int byte = 0;
    for (int n = 0; n < each; ++n)  // place_in(), the other way round
      byte |= (level[kBits == 4 ? 2 * i + n : i + bytes * n] >> from & mask) << kBits * n;
    plane[i] = static_cast<std::uint8_t>(byte);
  }
}

/// Packs `bits` bits of a group's levels, those from bit `from` on, as planes one after the other.
void pack_planes(const std::uint8_t* level, int bits, int from, std::uint8_t* plane) {
  const auto next = [&](int taken) { bits -= taken, plane += taken * kKvGroup / 8; };
  if (bits >= 4) pack<4>(level, from + bits - 4, plane), next(4);
  if (bits >= 2) pack<2>(level, from + bits - 2, plane), next(2);
  if (bits >= 1) pack<1>(level, from, plane);
}

/// Packs those bits of a whole row.
void pack_row(const std::byte* fine, int head_dim, int bits, int from, std::byte* planes) {
  const auto* const level = reinterpret_cast<const std::uint8_t*>(fine);
  auto* plane = reinterpret_cast<std::uint8_t*>(planes);
  for (int first = 0; first < head_dim; first += kKvGroup, plane += bits * kKvGroup / 8) {
    if (head_dim - first >= kKvGroup) {
      pack_planes(level + first, bits, from, plane);
      continue;
    }
    std::uint8_t last[kKvGroup] = {};
    std::memcpy(last, level + first, static_cast<std::size_t>(head_dim - first));
    pack_planes(last, bits, from, plane);
  }
}

}  // namespace

void coarsen(const std::byte* fine, int head_dim, int bits, std::byte* coarse) {
  pack_row(fine, head_dim, bits, 8 - bits, coarse);
  std::memcpy(coarse + coarse_level_bytes(bits, head_dim), fine + kv_level_bytes(DType::i8, head_dim),
              scales_bytes(head_dim));
}

void split_row(const std::byte* fine, int head_dim, int bits, std::byte* high, std::byte* low, std::byte* scales) {
  pack_row(fine, head_dim, bits, 8 - bits, high);
  pack_row(fine, head_dim, 8 - bits, 0, low);
  std::memcpy(scales, fine + kv_level_bytes(DType::i8, head_dim), scales_bytes(head_dim));
}

int coarse_level(const std::byte* coarse, int bits, int d) {
  const auto* plane = reinterpret_cast<const std::uint8_t*>(coarse) + d / kKvGroup * bits * kKvGroup / 8;
  int level = 0, left = bits;
  for (const int of : {4, 2, 1}) {
    if (left < of) continue;
    const KvLevel at = place_in(of, d % kKvGroup / 2, d % 2);
    left -= of;
    level |= (plane[at.byte] >> at.shift & ((1 << of) - 1)) << left;
    plane += of * kKvGroup / 8;
  }
  return level;
}

}  // namespace weft::kernels
