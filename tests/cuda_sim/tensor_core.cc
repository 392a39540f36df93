// tests/cuda_sim/tensor_core.cc: tiles in the fragments of a warp, as the PTX ISA lays them out, and copies under way.
#include "cusim_tensor.h"

#include "cuda_bf16.h"
#include "grid.h"

namespace cusim {

constinit thread_local std::uint64_t bank_conflicts = 0;

namespace {

struct Product {
  float* sums;
  const std::uint32_t *a, *b;
  bool bfloat;
};
struct TileLoad {
  std::uint32_t* to;
  const char* row;
  bool transposed;
};

/// Number `half` of a register: 0 is the low one.
float number(const Product& p, std::uint32_t bits, int half) {
  const auto word = static_cast<std::uint16_t>(bits >> 16 * half);
  return p.bfloat ? from_bfloat_bits(word) : from_half_bits(word);
}

void multiply(void** payloads, unsigned) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const Product& p = *static_cast<Product*>(payloads[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + i % 2 * 8][i / 2 * 8 + 2 * t + half] = number(p, p.a[i], half);
      for (int i = 0; i < 2; ++i) b[i * 8 + 2 * t + half][g] = number(p, p.b[i], half);
    }
  }
  for (int lane = 0; lane < 32; ++lane)
    for (int i = 0; i < 4; ++i) {
      float& sum = static_cast<Product*>(payloads[lane])->sums[i];
      for (int k = 0; k < 16; ++k) sum += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
    }
}

/// A tile's rows take one pass over the banks, and another for each time that two of them meet in one.
void load(void** payloads, unsigned) {
  for (int tile = 0; tile < 4; ++tile) {
    int rows_at[8] = {}, most = 0;
    for (int row = 0; row < 8; ++row) {
      const char* const from = static_cast<TileLoad*>(payloads[tile * 8 + row])->row;
      most = std::max(most, ++rows_at[reinterpret_cast<std::uintptr_t>(from) / 16 % 8]);
      for (int column = 0; column < 8; ++column) {
        const bool transposed = static_cast<TileLoad*>(payloads[0])->transposed;
        const int lane = transposed ? column * 4 + row / 2 : row * 4 + column / 2;
        std::uint32_t& to = static_cast<TileLoad*>(payloads[lane])->to[tile];
        std::memcpy(reinterpret_cast<char*>(&to) + (transposed ? row : column) % 2 * 2, from + column * 2, 2);
      }
    }
    bank_conflicts += static_cast<std::uint64_t>(most - 1);
  }
}

void check_place(const void* shared, const char* what, Location at) {
  const DeviceThread& thread = *current_grid->current;
  const bool inside = current_grid->shared.contains(shared);
  if (inside && reinterpret_cast<std::uintptr_t>(shared) % 16 == 0) return;
  abandon(
      what,
      [&] {
        return who(thread) + ": " + (inside ? "not aligned to 16 bytes" : "not in shared memory") + " at " + where(at);
      },
      cudaErrorMisalignedAddress);
}

}  // namespace

void multiply_fragments(float* sums, const std::uint32_t* a, const std::uint32_t* b, bool bfloat, Location at) {
  Product payload{sums, a, b, bfloat};
  rendezvous(~0u, multiply, &payload, at);
}

void load_fragments(std::uint32_t* to, const void* row, bool transposed, Location at) {
  check_place(row, "ldmatrix", at);
  TileLoad payload{to, static_cast<const char*>(row), transposed};
  rendezvous(~0u, load, &payload, at);
}

void start_copy(void* to, const void* from, bool present, Location at) {
  check_place(to, "cp.async", at);
  DeviceThread& thread = *current_grid->current;
  if (present && reinterpret_cast<std::uintptr_t>(from) % 16 != 0)
    abandon("cp.async", [&] { return who(thread) + ": reads what is not aligned to 16 bytes at " + where(at); });
  if (thread.copies == kMostCopies)
    abandon("cp.async", [&] { return who(thread) + ": more copies than the simulator holds at " + where(at); });
  thread.under_way[thread.copies++] = {to, present ? from : nullptr};
}

void finish_copies() {
  DeviceThread& thread = *current_grid->current;
  const int count = std::exchange(thread.copies, 0);
  for (int i = 0; i < count; ++i) {
    const DeviceThread::Copy& copy = thread.under_way[i];
    if (copy.from) std::memcpy(copy.to, copy.from, 16);  // the sanitizers see the call
    else std::memset(copy.to, 0, 16);
  }
}

}  // namespace cusim
