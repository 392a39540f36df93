// tests/kernels/float8_test.cc: weights of floats of 8 bits mean each its number times the scale of its group, and
// their products are those of these numbers in fp32, to the bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <random>
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

bool is_nan(std::uint8_t bits) { return (bits & 127) == 127; }

/// A matrix of float8, and the numbers that it means.
struct Matrix {
  QuantisedLayout layout;
  std::vector<std::int32_t> words;
  std::vector<float> meant;

  Matrix(int group, std::int64_t rows, std::int64_t cols, unsigned seed)
      : layout{DType::f8, group, rows, cols}, words(static_cast<std::size_t>(layout.bytes()) / 4),
        meant(static_cast<std::size_t>(rows * cols)) {
    std::mt19937 random(seed);
    std::vector<std::uint8_t> numbers(meant.size());
    for (std::uint8_t& bits : numbers) do
        bits = static_cast<std::uint8_t>(random());
      while (is_nan(bits));
    std::vector<float> scales(static_cast<std::size_t>(rows * layout.groups()));
    for (float& scale : scales) {  // not all products with a scale of 24 bits are exact in fp32
      scale = std::ldexp(1 + static_cast<float>(random() % (1 << 23)) * 0x1p-23f, static_cast<int>(random() % 8) - 12);
      if (random() % 9 == 0) scale = 0;
    }
    for (std::int64_t row = 0; row < rows; row += 16)
      kernels::pack_tile(layout,
                         {.levels = numbers.data() + row * cols, .wide_scales = scales.data() + row * layout.groups()},
                         std::min<std::int64_t>(16, rows - row),
                         reinterpret_cast<std::byte*>(words.data()) + row / 16 * layout.tile_bytes());
    for (std::int64_t i = 0; i < rows * cols; ++i)
      meant[static_cast<std::size_t>(i)] =
          e4m3(numbers[static_cast<std::size_t>(i)]) *
          scales[static_cast<std::size_t>(i / cols * layout.groups() + i % cols / group)];
  }
  ConstView view(const void* data) const {
    ConstView view(data, layout.dtype, layout.rows, layout.cols);
    view.group = layout.group;
    return view;
  }
};

std::vector<float> product(const std::vector<float>& x, std::int64_t rows, const ConstView& weight,
                           kernels::LinearPath path, int threads = 2) {
  kernels::ThreadPool pool(threads);
  std::vector<float> out(static_cast<std::size_t>(rows * weight.rows), -1.0f);
  kernels::linear_cpu({.x = ConstView(x.data(), DType::f32, rows, weight.cols),
                       .weight = weight,
                       .bias = {},
                       .out = View(out.data(), DType::f32, rows, weight.rows)},
                      pool, path);
  return out;
}

}  // namespace

TEST_CASE("float8: each number of 8 bits comes back times its scale", "[quantised]") {
  const int group = GENERATE(16, 32, 64, 128);
  for (const auto& [rows, cols] : {std::pair{16, 256}, {21, 150}, {1, 1}}) {
    const Matrix matrix(group, rows, cols, 5);
    CHECK(matrix.layout.bytes() == QuantisedLayout{DType::i8, group, rows, cols}.bytes());
    std::vector<float> found(matrix.meant.size());
    for (std::int64_t row = 0; row < rows; ++row)
      kernels::dequantise_row(matrix.layout, reinterpret_cast<const std::byte*>(matrix.words.data()), row,
                              found.data() + row * cols);
    CHECK(same_bits(found, matrix.meant));
  }
}

TEST_CASE("linear: products with float8 have the bits of those with its numbers in fp32", "[linear][quantised]") {
  const int group = GENERATE(32, 128);
  unsigned seed = 3;
  for (const auto& [out, in] : {std::pair{16, 128}, {50, 200}, {33, 256}, {17, 63}, {100, 1100}, {16, 3000}})
    for (const std::int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 16, 17, 40}) {
      CAPTURE(group, rows, out, in);
      const Matrix matrix(group, out, in, ++seed);
      const Aligned eight(matrix.words);
      const ConstView wide(matrix.meant.data(), DType::f32, out, in);
      const auto x = normal(static_cast<std::size_t>(rows * in), ++seed);
      for (const kernels::LinearPath path : kernels::linear_paths())
        CHECK(same_bits(product(x, rows, matrix.view(eight.data), path), product(x, rows, wide, path)));
    }
}

TEST_CASE("linear: a row's product with float8 depends on no other row and no thread", "[linear][quantised]") {
  constexpr std::int64_t most = 40, out = 70, in = 640;
  const Matrix matrix(128, out, in, 8);
  const Aligned eight(matrix.words);
  const auto x = normal(most * in, 9);
  for (const kernels::LinearPath path : kernels::linear_paths()) {
    const std::vector<float> all = product(x, most, matrix.view(eight.data), path);
    for (const std::int64_t rows : {1, 4, 12, 13})
      for (const int threads : {1, 3}) {
        const std::vector<float> some = product(x, rows, matrix.view(eight.data), path, threads);
        CHECK(std::equal(some.begin(), some.end(), all.begin()));
      }
  }
}

TEST_CASE("float8 on every place: unpacked, and few and many rows", "[kernels][quantised]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int group = GENERATE(32, 128);
  unsigned seed = 40;
  for (const auto& [rows, out, in] :
       {std::tuple{1, 16, 64}, {8, 33, 200}, {17, 40, 264}, {40, 16, 136}, {65, 33, 136}, {2, 300, 129}}) {
    CAPTURE(place.name, group, rows, out, in);
    const Matrix matrix(group, out, in, ++seed);
    const Array words(place, matrix.words, 1, static_cast<std::int64_t>(matrix.words.size()));
    Array unpacked(place, out, in, DType::f16);
    place.run(UnpackWeights{matrix.view(words.data()), unpacked});
    const Array halves(place, matrix.meant, out, in, DType::f16);
    CHECK(unpacked.fetch() == halves.fetch());  // each number is rounded once
    const auto numbers = normal(static_cast<std::size_t>(rows * in), ++seed);
    const Array x(place, numbers, rows, in);
    Array y(place, rows, out);
    place.run(Linear{.x = x, .weight = matrix.view(words.data()), .bias = {}, .out = y});
    const std::vector<float> found = y.host();
    for (std::int64_t row = 0; row < rows; ++row)
      for (std::int64_t column = 0; column < out; ++column) {
        double wanted = 0, size = 0;
        for (std::int64_t k = 0; k < in; ++k) {
          const double part = double{numbers[static_cast<std::size_t>(row * in + k)]} *
                              double{matrix.meant[static_cast<std::size_t>(column * in + k)]};
          wanted += part, size += std::abs(part);
        }
        const double off = std::abs(double{found[static_cast<std::size_t>(row * out + column)]} - wanted);
        REQUIRE(off <= (place.on_host ? 1e-6 : 1e-3) * size + 1e-6);
      }
  }
}

TEST_CASE("float8 in groups that there are not, or by a table, is refused", "[kernels][quantised]") {
  const Place& place = *every_place().front();
  const Array w(place, 16, 64), half(place, 16, 64, DType::f16);
  ConstView view(w.data(), DType::f8, 16, 64);
  view.group = 48;
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(half)}),
                    "unpack_weights: weight has groups of 48, wanted 16, 32, 64 or 128");
  view.group = 64, view.table = LevelTable::e2m1;
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(half)}),
                    "unpack_weights: weight is float8 with the table e2m1, which levels of int4 alone have");
}
