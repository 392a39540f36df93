// What heads hold, moved to other positions: places, keys and what must stay, against fp64.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/error.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;

namespace {

constexpr int kSequences = 3, kKvHeads = 2, kPrompt = 40;

std::vector<float> frequencies(int count) {
  std::vector<float> list;
  for (int i = 0; i < count; ++i) list.push_back(static_cast<float>(std::pow(10000.0, -double(i) / count)));
  return list;
}

/// A key without a position, turned to `position`, in fp64; with Hadamard's matrix after that where it is a head of
/// a power of two.
std::vector<double> key_at(const float* key, int dim, const std::vector<float>& turns, int position, bool hadamard) {
  std::vector<double> turned(key, key + dim);
  const std::size_t n = turns.size();
  for (std::size_t i = 0; i < n; ++i) {
    const double angle = double(static_cast<float>(position) * turns[i]);
    const double a = double(key[i]), b = double(key[i + n]);
    turned[i] = a * std::cos(angle) - b * std::sin(angle);
    turned[i + n] = b * std::cos(angle) + a * std::sin(angle);
  }
  if (!hadamard) return turned;
  std::vector<double> mixed(turned.size());
  for (std::size_t i = 0; i < mixed.size(); ++i)
    for (std::size_t j = 0; j < mixed.size(); ++j)
      mixed[i] += (__builtin_parityll(i & j) ? -1 : 1) * turned[j] / std::sqrt(double(dim));
  return mixed;
}

/// The number that a slot's row says.
double number_of(const std::vector<std::byte>& rows, std::size_t slot, DType type, int dim, int d) {
  const std::byte* const row = rows.data() + slot * kernels::kv_row_bytes(type, dim);
  const auto half = [&](std::size_t at) {
    f16 number;
    std::memcpy(&number.bits, row + at, sizeof number.bits);
    return double(static_cast<float>(number));
  };
  if (type == DType::f32) {
    float number = 0;
    std::memcpy(&number, row + static_cast<std::size_t>(d) * sizeof number, sizeof number);
    return double(number);
  }
  if (type == DType::f16) return half(static_cast<std::size_t>(d) * 2);
  if (type == DType::bf16) {
    bf16 number;
    std::memcpy(&number.bits, row + static_cast<std::size_t>(d) * 2, 2);
    return double(static_cast<float>(number));
  }
  const kernels::KvLevel at = kernels::kv_level(type, dim, d);
  const int level = std::to_integer<int>(row[at.byte]) >> at.shift & (type == DType::i8 ? 255 : 15);
  const std::size_t scale = kernels::kv_level_bytes(type, dim) + static_cast<std::size_t>(d / kernels::kKvGroup) * 4;
  return half(scale) * level + half(scale + 2);
}

/// Three prompts of random keys at their positions, of which heads keep different tokens.
struct Cache {
  Cache(const Place& place, SlotType slots, int dim, bool turns, bool hadamard)
      : type(slots.key_type()), head_dim(dim), rotated(hadamard),
        turn(turns ? frequencies(dim / 2 - 1) : std::vector<float>{}),
        base(normal(std::int64_t{kSequences} * kPrompt * kKvHeads * dim, 5)),
        run(place, kSequences, {kKvHeads, kKvHeads, dim}, kSlots, slots) {
    std::vector<float> keys(base.size());
    for (int row = 0; row < kSequences * kPrompt; ++row)
      for (int head = 0; head < kKvHeads; ++head) {
        const std::size_t at = first_number(row, head);
        const auto key = key_at(base.data() + at, dim, turn, row % kPrompt, hadamard);
        std::transform(key.begin(), key.end(), keys.begin() + static_cast<std::ptrdiff_t>(at),
                       [](double x) { return static_cast<float>(x); });
      }
    run.prefill({normal(std::int64_t(base.size()), 6), keys, normal(std::int64_t(base.size()), 7)},
                std::vector<int>(kSequences, kPrompt), std::vector<Keep>(kSequences, Keep{9, 5, 2}), 1, 0,
                normal(std::int64_t{kKvHeads} * kSequences * kPrompt, 8));
    run.make_home();
  }
  std::size_t first_number(int row, int head) const {
    return static_cast<std::size_t>((row * kKvHeads + head) * head_dim);
  }

  static constexpr int kSlots = 17;  // two more than are in use
  DType type;                        // of keys
  int head_dim;
  bool rotated;
  std::vector<float> turn, base;
  SlotsUnderTest run;
};

/// The largest error of a key in a slot, as a share of a step of its rounding.
double worst_of(Cache& cache, const std::vector<std::byte>& rows, std::size_t slot,
                const std::vector<double>& expected) {
  double largest = 0, worst = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  // Rounded twice, as it was stored and again; of a group of levels a step is about twice the largest by their number.
  const double step = cache.type == DType::i8   ? 2 * largest / 255
                      : cache.type == DType::i4 ? 2 * largest / 15
                                                : largest * (cache.type == DType::f32 ? 1e-6 : tolerance(cache.type));
  for (int d = 0; d < cache.head_dim; ++d)
    worst = larger_error(
        worst,
        std::abs(number_of(rows, slot, cache.type, cache.head_dim, d) - expected[static_cast<std::size_t>(d)]) / step);
  return worst;
}

void check_moves(const Place& place, SlotType type, int dim, bool turns, bool hadamard) {
  CAPTURE(place.name, type.name(), dim, turns, hadamard);
  Cache cache(place, type, dim, turns, hadamard);
  SlotArrays& slots = cache.run.slots();
  const auto before = slots.position.ints();
  const auto keys = slots.k.fetch(), values = slots.v.fetch(), scores = slots.score.fetch();
  const auto free_slots = slots.free_slot.ints();
  // The last comes first, the middle one stays; a cache may hold fewer than there are positions.
  const std::vector<std::int32_t> sequence{2, 0}, next{14, 16};
  kernels::Reposition op{sequence, next, cache.turn, hadamard, slots.block, {}};
  const bool home = hadamard || turns;
  if (home) op.home = cache.run.home();
  place.run(op);
  if (home) CHECK(cache.run.home_is_the_same());
  const auto after = slots.position.ints();
  const auto moved = slots.k.fetch();
  CHECK(slots.v.fetch() == values);
  CHECK(slots.score.fetch() == scores);
  CHECK(slots.free_slot.ints() == free_slots);
  const std::size_t row_bytes = kernels::kv_row_bytes(type.key_type(), dim);
  for (int s = 0; s < kSequences; ++s)
    for (int head = 0; head < kKvHeads; ++head) {
      const auto first = static_cast<std::size_t>((s * kKvHeads + head) * Cache::kSlots);
      std::vector<std::int32_t> held;
      for (std::size_t i = first; i < first + Cache::kSlots; ++i)
        if (before[i] >= 0) held.push_back(before[i]);
      REQUIRE(held.size() == 14);
      std::sort(held.begin(), held.end());
      for (std::size_t i = first; i < first + Cache::kSlots; ++i) {
        if (before[i] < 0) {
          CHECK(after[i] < 0);
          continue;
        }
        const auto rank = static_cast<std::int32_t>(std::find(held.begin(), held.end(), before[i]) - held.begin());
        const std::int32_t to = s == 1 ? before[i] : s == 0 ? rank + 2 : rank;
        CAPTURE(s, head, before[i], to);
        REQUIRE(after[i] == to);
        const bool same = std::memcmp(moved.data() + i * row_bytes, keys.data() + i * row_bytes, row_bytes) == 0;
        if (to == before[i] || !turns) {
          CHECK(same);
          continue;
        }
        const float* const key = cache.base.data() + cache.first_number(s * kPrompt + before[i], head);
        CHECK(worst_of(cache, moved, i, key_at(key, dim, cache.turn, to, hadamard)) < 2);
      }
    }
}

}  // namespace

TEST_CASE("reposition: heads' tokens get positions next to each other, and keys turn with them",
          "[kernels][reposition]") {
  const Place& place = *GENERATE(from_range(every_place()));
  for (const SlotType type : {SlotType(DType::f32), SlotType(DType::f16), SlotType(DType::bf16), SlotType(DType::i8),
                              SlotType(DType::i4), SlotType(DType::i4, true)}) {
    check_moves(place, type, 64, true, false);
    check_moves(place, type, 20, true, false);
    check_moves(place, type, 16, false, false);
    if (is_quantised(type.dtype)) check_moves(place, type, 64, true, true), check_moves(place, type, 16, true, true);
  }
}

TEST_CASE("reposition: what cannot be is refused", "[kernels][reposition]") {
  using Catch::Matchers::Contains;
  const Place& place = *every_place().front();
  Cache cache(place, DType::f32, 8, true, false);
  const std::vector<std::int32_t> one{1}, two{1, 2}, beyond{3}, few{13}, enough{14}, negative{-1};
  const std::vector<float> many(5, 1.0f);
  kernels::Reposition op{one, enough, cache.turn, false, cache.run.slots().block, {}};
  const auto refused = [&](auto change, const char* words) {
    kernels::Reposition bad = op;
    change(bad);
    CHECK_THROWS_WITH(place.run(bad), Contains("reposition: ") && Contains(words));
  };
  refused([&](auto& bad) { bad.next = two; }, "2 numbers in next, wanted 1");
  refused([&](auto& bad) { bad.sequence = beyond; }, "sequence 3 of a block of 3");
  refused([&](auto& bad) { bad.next = negative; }, "next is -1");
  refused([&](auto& bad) { bad.next = few; }, "holds 14 tokens, wanted at most 13");
  refused([&](auto& bad) { bad.frequencies = many; }, "5 frequencies for heads of 8");
  std::vector<float> rest(100);
  refused([&](auto& bad) { bad.slots.rest = rest.data(); }, "slots have a rest");
  CHECK_NOTHROW(place.run(op));
}
