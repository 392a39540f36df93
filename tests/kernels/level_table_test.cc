// tests/kernels/level_table_test.cc: levels of 4 bits that stand for levels of 8 bits by a table mean what those mean,
// to the bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "kernels/quantised.h"
#include "kernels/small_floats.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Linear;
using kernels::UnpackWeights;

namespace {

/// A matrix by a table, and the same in levels of 8 bits.
struct Pair {
  QuantisedLayout four, eight;
  std::vector<std::int32_t> of_four, of_eight;

  Pair(LevelTable table, int group, std::int64_t rows, std::int64_t cols, const std::vector<std::uint8_t>& levels,
       const std::vector<GroupScale>& scales)
      : four{DType::i4, group, rows, cols, table}, eight{DType::i8, group, rows, cols} {
    std::vector<std::uint8_t> wide;
    for (const std::uint8_t level : levels) wide.push_back(level_table(table)[level]);
    of_four = packed(four, levels, scales), of_eight = packed(eight, wide, scales);
  }
  static std::vector<std::int32_t> packed(const QuantisedLayout& layout, const std::vector<std::uint8_t>& levels,
                                          const std::vector<GroupScale>& scales) {
    std::vector<std::int32_t> words(static_cast<std::size_t>(layout.bytes()) / 4);
    for (std::int64_t row = 0; row < layout.rows; row += 16)
      kernels::pack_tile(layout, {levels.data() + row * layout.cols, scales.data() + row * layout.groups()},
                         std::min<std::int64_t>(16, layout.rows - row),
                         reinterpret_cast<std::byte*>(words.data()) + row / 16 * layout.tile_bytes());
    return words;
  }
  static ConstView view(const QuantisedLayout& layout, const void* data) {
    ConstView view(data, layout.dtype, layout.rows, layout.cols);
    view.group = layout.group, view.table = layout.table;
    return view;
  }
};

Pair random_pair(LevelTable table, int group, std::int64_t rows, std::int64_t cols, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::uint8_t> levels(static_cast<std::size_t>(rows * cols));
  for (std::uint8_t& level : levels) level = random() % 16;
  std::vector<GroupScale> scales;
  for (std::int64_t i = 0; i < rows * ((cols + group - 1) / group); ++i) {
    const float scale = std::ldexp(1.0f + float(random() % 64) / 64, static_cast<int>(random() % 6) - 8);
    scales.push_back(kernels::rounded_scale(scale, -16 * scale).value());
  }
  return {table, group, rows, cols, levels, scales};
}

std::vector<float> product(const std::vector<float>& x, std::int64_t rows, const ConstView& weight,
                           Arithmetic arithmetic, kernels::LinearPath path) {
  kernels::ThreadPool pool(2);
  std::vector<float> out(static_cast<std::size_t>(rows * weight.rows));
  kernels::linear_cpu({.x = ConstView(x.data(), DType::f32, rows, weight.cols),
                       .weight = weight,
                       .bias = {},
                       .out = View(out.data(), DType::f32, rows, weight.rows),
                       .arithmetic = arithmetic},
                      pool, path);
  return out;
}

LevelTable any_table() { return GENERATE(LevelTable::e2m1, LevelTable::iq4_nl, LevelTable::nf4); }

}  // namespace

TEST_CASE("level tables have the numbers of their formats", "[quantised]") {
  for (std::size_t level = 0; level < 16; ++level) {
    CHECK(level_table(LevelTable::even)[level] == level);
    CHECK(level_table(LevelTable::e2m1)[level] == 16 + kTwiceE2M1[level]);
    CHECK(level_table(LevelTable::e2m1)[level] < 32);
  }
  const auto& iq4 =
      level_table(LevelTable::iq4_nl);  // tests/data/gguf/blocks.gguf has them as gguf's own library reads
  CHECK(std::is_sorted(iq4.begin(), iq4.end()));
  CHECK(std::set<int>(iq4.begin(), iq4.end()).size() == 16);
  // The quantiles of a normal distribution (QLoRA, appendix E), as the paper prints them.
  constexpr std::array<double, 16> kNf4{-1.0,   -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0,
                                        0.0796, 0.1609,  0.2461,  0.3379,  0.4407,  0.5626,  0.7230,  1.0};
  for (std::size_t level = 0; level < 16; ++level)
    CHECK(std::abs(level_table(LevelTable::nf4)[level] - 128 - kOneOfNf4 * kNf4[level]) < 0.51);
}

TEST_CASE("linear: products by a table have the bits of those with levels of 8 bits", "[linear][quantised]") {
  const LevelTable table = any_table();
  const int group = GENERATE(16, 32, 64, 128);
  const Arithmetic arithmetic = GENERATE(Arithmetic::exact, Arithmetic::int8);
  CAPTURE(name_of(table), group, name_of(arithmetic));
  unsigned seed = 7;
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 40})
    for (const auto& [out, in] : {std::pair{16, 64}, {50, 200}, {33, 256}}) {
      CAPTURE(rows, out, in);
      const Pair pair = random_pair(table, group, out, in, ++seed);
      const Aligned four(pair.of_four), eight(pair.of_eight);
      const auto x = normal(static_cast<std::size_t>(rows * in), ++seed);
      for (const kernels::LinearPath path : kernels::linear_paths())
        CHECK(same_bits(product(x, rows, Pair::view(pair.four, four.data), arithmetic, path),
                        product(x, rows, Pair::view(pair.eight, eight.data), arithmetic, path)));
    }
}

TEST_CASE("linear: the largest levels of a table overflow nothing", "[linear][quantised]") {
  const LevelTable table = any_table();
  const std::uint8_t level = GENERATE(std::uint8_t{7}, std::uint8_t{15});  // the largest of e2m1, of iq4_nl
  const float sign = GENERATE(1.0f, -1.0f);
  constexpr std::int64_t rows = 6, out = 16, in = 128;
  const Pair pair(table, 32, out, in, std::vector<std::uint8_t>(out * in, level),
                  std::vector<GroupScale>(out * in / 32, kernels::rounded_scale(1, 0).value()));
  const Aligned four(pair.of_four);
  const std::vector<float> x(rows * in, sign * 127);  // levels of 127, with scale 1
  for (const kernels::LinearPath path : kernels::linear_paths())
    for (const float number : product(x, rows, Pair::view(pair.four, four.data), Arithmetic::int8, path))
      CHECK(number == sign * 127 * in * level_table(table)[level]);
}

TEST_CASE("weights by a table on every place: unpacked, and few and many rows", "[kernels][quantised]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const LevelTable table = any_table();
  const int group = GENERATE(16, 32, 128);
  unsigned seed = 40;
  for (const auto& [rows, out, in] :
       {std::tuple{1, 16, 64}, {8, 33, 200}, {17, 40, 264}, {40, 16, 136}, {65, 33, 136}}) {
    CAPTURE(place.name, name_of(table), group, rows, out, in);
    const Pair pair = random_pair(table, group, out, in, ++seed);
    const auto put = [&](const std::vector<std::int32_t>& words) {
      return Array(place, words, 1, static_cast<std::int64_t>(words.size()));
    };
    const Array four = put(pair.of_four), eight = put(pair.of_eight);
    const ConstView by_table = Pair::view(pair.four, four.data()), plain = Pair::view(pair.eight, eight.data());
    Array unpacked(place, out, in, DType::f16), other(place, out, in, DType::f16);
    place.run(UnpackWeights{by_table, unpacked});
    place.run(UnpackWeights{plain, other});
    CHECK(unpacked.fetch() == other.fetch());
    const Array x(place, normal(static_cast<std::size_t>(rows * in), ++seed), rows, in);
    Array by_one(place, rows, out), by_other(place, rows, out);
    place.run(Linear{.x = x, .weight = by_table, .bias = {}, .out = by_one});
    place.run(Linear{.x = x, .weight = plain, .bias = {}, .out = by_other});
    CHECK(by_one.fetch() == by_other.fetch());
  }
}

TEST_CASE("a table of levels that are not of 4 bits is refused", "[kernels][quantised]") {
  const Place& place = *every_place().front();
  const Array w(place, 16, 64), half(place, 16, 64, DType::f16);
  ConstView view(w.data(), DType::i8, 16, 64);
  view.group = 64, view.table = LevelTable::e2m1;
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(half)}),
                    "unpack_weights: weight is int8 with the table e2m1, which levels of int4 alone have");
}
