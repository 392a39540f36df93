// kernels/attention/reposition_cpu.cc: moves the tokens that heads hold to other positions, a tile for each row and KV
// head.
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/cpu/kernels.h"
#include "kernels/error.h"
#include "kernels/machine/cpu_ops.h"

namespace weft::kernels {
namespace {

/// Reads the numbers that a quantised row means (kv_row.h).
void read_levels(const std::byte* row, DType type, int head_dim, float* to, const VectorKernels& vectors) {
  const std::byte* const scales = row + kv_level_bytes(type, head_dim);
  for (int d = 0; d < head_dim; ++d) {
    float group[2];  // scale, minimum
    if (d % kKvGroup == 0) vectors.convert(scales + d / kKvGroup * 4, DType::f16, group, DType::f32, 2, false);
    const KvLevel at = kv_level(type, head_dim, d);
    const int level = std::to_integer<int>(row[at.byte]) >> at.shift & (type == DType::i8 ? 255 : 15);
    to[d] = group[0] * static_cast<float>(level) + group[1];
  }
}

/// Turns a key from one position to another: each pair turns back by the angle of the one and on by that of the other,
/// so that angles are those of Rotary.
void turn(float* key, std::span<const float> frequencies, bool alternate, std::int32_t from, std::int32_t to) {
  const std::size_t n = frequencies.size(), step = alternate ? 2 : 1, apart = alternate ? 1 : n;
  for (std::size_t i = 0; i < n; ++i) {
    const float back = static_cast<float>(from) * frequencies[i], on = static_cast<float>(to) * frequencies[i];
    const float back_cosine = std::cos(back), back_sine = std::sin(back);
    const float on_cosine = std::cos(on), on_sine = std::sin(on);
    const float cosine = on_cosine * back_cosine + on_sine * back_sine;
    const float sine = on_sine * back_cosine - on_cosine * back_sine;
    float &x = key[i * step], &y = key[i * step + apart];
    const float a = x, b = y;
    x = a * cosine - b * sine;
    y = b * cosine + a * sine;
  }
}

void move_key(const Reposition& op, std::byte* row, std::int32_t from, std::int32_t to, float* key,
              const VectorKernels& vectors) {
  const int dim = op.slots.head_dim;
  const DType type = op.slots.key_type();
  if (is_quantised(type)) read_levels(row, type, dim, key, vectors);
  else vectors.convert(row, type, key, DType::f32, dim, false);
  if (op.hadamard) vectors.hadamard(key, dim);
  turn(key, op.frequencies, op.alternate, from, to);
  if (op.hadamard) vectors.hadamard(key, dim);
  if (is_quantised(type)) vectors.quantise(key, dim, type, row);
  else vectors.convert(key, DType::f32, row, type, dim, false);
}

void move_head(const Reposition& op, std::int64_t row, std::int64_t head, const VectorKernels& vectors) {
  const KvSlots& s = op.slots;
  const auto r = static_cast<std::size_t>(row);
  const std::int64_t first = (std::int64_t{op.sequence[r]} * s.kv_heads + head) * s.slots;
  std::int32_t* const position = s.position + first;
  std::vector<std::pair<std::int32_t, std::int32_t>> held;  // position, slot
  for (std::int32_t slot = 0; slot < s.slots; ++slot)
    if (position[slot] >= 0) held.emplace_back(position[slot], slot);
  std::sort(held.begin(), held.end());
  const auto count = static_cast<std::int32_t>(held.size());
  if (count > op.next[r])
    throw UsageError("reposition: head " + std::to_string(head) + " of sequence " + std::to_string(op.sequence[r]) +
                     " holds " + std::to_string(count) + " tokens, wanted at most " + std::to_string(op.next[r]) +
                     ", the positions before the next");
  const auto row_bytes = static_cast<std::int64_t>(s.key_bytes());
  std::vector<float> key(static_cast<std::size_t>(whole_vectors(s.head_dim)));
  std::int32_t to = op.next[r] - count;
  for (const auto& [from, slot] : held) {
    if (from != to && !op.frequencies.empty()) {
      const std::int64_t offset = (first + slot) * row_bytes;
      std::byte* const stored = static_cast<std::byte*>(s.k) + offset;
      move_key(op, stored, from, to, key.data(), vectors);
      if (op.home.k) std::copy_n(stored, row_bytes, static_cast<std::byte*>(op.home.k) + offset);
    }
    position[slot] = to++;
  }
  if (op.home.k) std::copy_n(position, s.slots, op.home.position + first);
}

}  // namespace

void CpuOps::run(const Reposition& op, Stream&) const {
  check(op);
  const std::int64_t heads = op.slots.kv_heads;
  pool_.run(static_cast<std::int64_t>(op.sequence.size()) * heads,
            [&](std::int64_t tile, int) { move_head(op, tile / heads, tile % heads, vectors_); });
}

}  // namespace weft::kernels
