// tests/cuda_sim/tensor_core.cc: 16x16 tiles. Element i = 16 * row + column lives in lane i % 32, place i / 32.
#include "mma.h"

#include "grid.h"

namespace cusim {
namespace {

struct Product {
  float* d;
  const void *a, *b;
  const float* c;
  bool bfloat;
};

float factor(const Product& p, const void* fragment, int place) {
  const std::uint16_t bits = static_cast<const std::uint16_t*>(fragment)[place];
  return p.bfloat ? from_bfloat_bits(bits) : from_half_bits(bits);
}

void multiply(void** payloads, unsigned) {
  float a[256], b[256], c[256];
  for (int i = 0; i < 256; ++i) {
    const Product& p = *static_cast<Product*>(payloads[i % 32]);
    a[i] = factor(p, p.a, i / 32);
    b[i] = factor(p, p.b, i / 32);
    c[i] = p.c[i / 32];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int col = 0; col < 16; ++col) c[row * 16 + col] += a[row * 16 + k] * b[k * 16 + col];
  for (int i = 0; i < 256; ++i) static_cast<Product*>(payloads[i % 32])->d[i / 32] = c[i];
}

void compare_lanes(void** payloads, unsigned) {
  const TileMove& first = *static_cast<TileMove*>(payloads[0]);
  for (int lane = 1; lane < 32; ++lane) {
    const TileMove& other = *static_cast<TileMove*>(payloads[lane]);
    if (other.memory != first.memory || other.stride != first.stride || other.by_columns != first.by_columns)
      abandon("wmma divergence",
              [] { return "the lanes of a warp pass different tiles at " + where(current_grid->current->at); });
  }
}

}  // namespace

// A lane moves its elements when it arrives. Nothing orders that against what later lanes do before they arrive, so a
// missing __syncwarp() shows.
void tile_move(const TileMove& move, Location at) {
  const DeviceThread& thread = *current_grid->current;
  if (reinterpret_cast<std::uintptr_t>(move.memory) % 32 != 0 || move.stride * move.element % 16 != 0)
    abandon(
        "wmma alignment",
        [&] { return who(thread) + ": not aligned to 32 bytes, or a stride of no multiple of 16, at " + where(at); },
        cudaErrorMisalignedAddress);
  const unsigned lane = static_cast<unsigned>(thread.linear) & 31;
  for (unsigned place = 0; place < 8; ++place) {
    const unsigned row = (place * 32 + lane) / 16, col = lane % 16;
    const std::size_t offset =
        move.by_columns ? std::size_t{col} * move.stride + row : std::size_t{row} * move.stride + col;
    char* const memory = static_cast<char*>(move.memory) + offset * move.element;
    char* const mine = static_cast<char*>(move.fragment) + place * move.element;
    std::memcpy(move.store ? memory : mine, move.store ? mine : memory, move.element);  // the sanitizers see the call
    if (move.twice) std::memcpy(mine + 8 * move.element, mine, move.element);
  }
  TileMove payload = move;
  rendezvous(~0u, compare_lanes, &payload, at);
}

void tile_multiply(float* d, const void* a, const void* b, const float* c, bool bfloat, Location at) {
  Product payload{d, a, b, c, bfloat};
  rendezvous(~0u, multiply, &payload, at, true);  // every result depends on every lane
}

}  // namespace cusim
