// Linear where every backend runs it; linear_test.cc has the CPU's own paths.
#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "kernels/quantised.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Activation;
using kernels::Linear;
using kernels::UnpackWeights;

namespace {

struct Shape {
  int m, n, k;
};

double activated(double x, Activation activation) {
  if (activation == Activation::relu) return x < 0 ? 0 : x;
  if (activation == Activation::none) return x;
  if (activation == Activation::silu) return x / (1 + std::exp(-x));
  if (activation == Activation::gelu) return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE("linear on every place: types, slices, bias, activation and sums", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  unsigned seed = 50;
  for (const Shape s : {Shape{1, 7, 5}, Shape{3, 48, 64}, Shape{70, 33, 100}})
    for (const Activation activation : {Activation::none, Activation::relu, Activation::gelu_tanh})
      for (const bool accumulate : {false, true}) {
        CAPTURE(place.name, name_of(dtype), s.m, s.n, s.k, static_cast<int>(activation), accumulate);
        const auto wide = normal(static_cast<std::size_t>(s.m * 2 * s.k), ++seed);  // x is its right half
        const auto weight = rounded(normal(static_cast<std::size_t>(s.n * s.k), ++seed, 0.3f), dtype);
        const auto bias = rounded(normal(static_cast<std::size_t>(s.n), ++seed), dtype);
        const Array x(place, wide, s.m, 2 * s.k), w(place, weight, s.n, s.k, dtype), b(place, bias, 1, s.n, dtype);
        Array out(place, std::vector<float>(static_cast<std::size_t>(s.m * s.n), 1.5f), s.m, s.n);
        place.run(Linear{ConstView(x.columns(s.k, s.k)), w, b, out, activation, accumulate});
        const auto seen = rounded(wide, place.product_type(dtype));
        std::vector<double> expected;
        for (int m = 0; m < s.m; ++m)
          for (int n = 0; n < s.n; ++n) {
            double sum = static_cast<double>(bias[static_cast<std::size_t>(n)]);
            for (int k = 0; k < s.k; ++k)
              sum += static_cast<double>(seen[static_cast<std::size_t>(m * 2 * s.k + s.k + k)]) *
                     static_cast<double>(weight[static_cast<std::size_t>(n * s.k + k)]);
            expected.push_back(activated(sum, activation) + (accumulate ? 1.5 : 0.0));
          }
        CHECK_THAT(out.host(), near(expected, 1e-5));  // products of the same numbers: only fp32 sums differ
      }
}

TEST_CASE("linear on every place: products of one x, together and by themselves", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const bool narrow = GENERATE(false, true);
  if (narrow && place.on_host) return;
  // Matrices at equal distances, with biases between them and without; of another shape; in another order; alone.
  const auto [parts, odd, reversed, biased] = GENERATE(table<int, bool, bool, bool>({{3, false, false, true},
                                                                                     {3, false, false, false},
                                                                                     {4, true, false, true},
                                                                                     {3, false, true, true},
                                                                                     {1, false, false, true},
                                                                                     {0, false, false, true}}));
  constexpr int rows = 5, in = 24, cols = 16;
  const DType type = narrow ? dtype : DType::f32;
  CAPTURE(place.name, name_of(dtype), narrow, parts, odd, reversed, biased);
  const int between = biased ? in : 8;  // numbers from the end of a matrix to the next one
  const auto x = rounded(normal(rows * in, 1), narrow ? dtype : DType::f32);
  const auto weights = rounded(normal(4 * (cols * in + between), 2, 0.3f), dtype);
  const Array ax(place, x, rows, in, type), aw(place, weights, 1, static_cast<std::int64_t>(weights.size()), dtype);
  const Array out(place, 4 * rows, cols, type), alone(place, 4 * rows, cols, type);
  const auto number = [&](const Array& array, std::int64_t i) {
    return static_cast<std::byte*>(array.data()) + static_cast<std::size_t>(i) * size_of(View(array).dtype);
  };
  std::vector<kernels::LinearGroup::Part> group, single;
  for (int p = 0; p < parts; ++p) {
    const std::int64_t at = (reversed ? parts - 1 - p : p) * (cols * in + between);
    const int width = odd && p == 1 ? 8 : cols;
    const ConstView weight(number(aw, at), dtype, width, in),
        bias = biased ? ConstView(number(aw, at + cols * in), dtype, 1, width) : ConstView{};
    group.push_back({weight, bias, View(number(out, p * rows * cols), type, rows, width)});
    single.push_back({weight, bias, View(number(alone, p * rows * cols), type, rows, width)});
  }
  place.run(kernels::LinearGroup{ax, group});
  for (const auto& part : single) place.run(Linear{.x = ax, .weight = part.weight, .bias = part.bias, .out = part.out});
  if (place.exact()) CHECK(out.fetch() == alone.fetch());
  else CHECK_THAT(out.host(), near(alone.host(), tolerance(type)));
}

TEST_CASE("a GPU's products take rows of 16 bits and give such, whatever follows them", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  if (place.on_host) {
    const Array x(place, 2, 8, DType::f16), w(place, 4, 8, DType::f16), out(place, 2, 4);
    CHECK_THROWS_WITH(place.run(Linear{.x = x, .weight = w, .bias = {}, .out = out}),
                      "linear: x is float16, wanted float32 on a CPU");
    return;
  }
  const DType dtype = GENERATE(DType::f16, DType::bf16), bias_type = GENERATE(DType::f32, DType::f16, DType::bf16);
  const Activation activation =
      GENERATE(Activation::none, Activation::relu, Activation::gelu_tanh, Activation::gelu, Activation::silu);
  const bool apart = GENERATE(false, true);  // a bias that does not begin at a word of 16 bytes
  unsigned seed = 70;
  for (const Shape s : {Shape{1, 7, 5}, Shape{3, 48, 64}, Shape{70, 33, 100}}) {
    CAPTURE(place.name, name_of(dtype), name_of(bias_type), static_cast<int>(activation), apart, s.m, s.n, s.k);
    const auto numbers = rounded(normal(s.m * s.k, ++seed), dtype);
    const auto weight = rounded(normal(s.n * s.k, ++seed, 0.3f), dtype),
               bias = rounded(normal(s.n + 1, ++seed), bias_type);
    const Array x(place, numbers, s.m, s.k, dtype), w(place, weight, s.n, s.k, dtype),
        b(place, bias, 1, s.n + 1, bias_type);
    const Array out(place, s.m, s.n, dtype);
    place.run(Linear{.x = x, .weight = w, .bias = b.columns(apart, s.n), .out = out, .activation = activation});
    std::vector<double> expected;
    for (int m = 0; m < s.m; ++m)
      for (int n = 0; n < s.n; ++n) {
        double sum = double(bias[static_cast<std::size_t>(n + apart)]);
        for (int k = 0; k < s.k; ++k)
          sum += double(numbers[static_cast<std::size_t>(m * s.k + k)]) *
                 double(weight[static_cast<std::size_t>(n * s.k + k)]);
        expected.push_back(activated(sum, activation));
      }
    // Where a pass over the result follows the product, that is rounded twice.
    CHECK_THAT(out.host(), near(expected, 2 * tolerance(dtype)));
  }
}

TEST_CASE("linear on every place: quantised weights", "[kernels][quantised]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  unsigned seed = 90;
  for (const Shape s : {Shape{1, 7, 5}, Shape{3, 48, 64}, Shape{40, 33, 200}})
    for (const bool accumulate : {false, true}) {
      CAPTURE(place.name, name_of(dtype), group, s.m, s.n, s.k, accumulate);
      const auto numbers = normal(static_cast<std::size_t>(s.m * s.k), ++seed);
      const auto weight = normal(static_cast<std::size_t>(s.n * s.k), ++seed, 0.3f);
      const auto bias = normal(static_cast<std::size_t>(s.n), ++seed);
      const QuantisedLayout layout{dtype, group, s.n, s.k};
      std::vector<std::int32_t> packed(static_cast<std::size_t>(layout.bytes()) / 4);
      auto* const bytes = reinterpret_cast<std::byte*>(packed.data());
      std::vector<float> meant(weight.size());
      for (int row = 0; row < s.n; row += 16)
        REQUIRE(kernels::quantise_tile(layout,
                                       ConstView(weight.data() + row * s.k, DType::f32, std::min(16, s.n - row), s.k),
                                       bytes + row / 16 * layout.tile_bytes()) == -1);
      for (int row = 0; row < s.n; ++row) kernels::dequantise_row(layout, bytes, row, meant.data() + row * s.k);
      const Array x(place, numbers, s.m, s.k), b(place, bias, 1, s.n);
      const Array w(place, packed, 1, static_cast<std::int64_t>(packed.size()));
      Array out(place, std::vector<float>(static_cast<std::size_t>(s.m * s.n), 1.5f), s.m, s.n);
      ConstView view(w.data(), dtype, s.n, s.k);
      view.group = group;
      place.run(Linear{x, view, b, out, Activation::relu, accumulate});
      const DType type = place.product_type(DType::f16);  // a GPU unpacks to 16 bits
      const auto seen = rounded(numbers, type), unpacked = rounded(meant, type);
      std::vector<double> expected;
      for (int m = 0; m < s.m; ++m)
        for (int n = 0; n < s.n; ++n) {
          double sum = static_cast<double>(bias[static_cast<std::size_t>(n)]);
          for (int k = 0; k < s.k; ++k)
            sum += static_cast<double>(seen[static_cast<std::size_t>(m * s.k + k)]) *
                   static_cast<double>(unpacked[static_cast<std::size_t>(n * s.k + k)]);
          expected.push_back(activated(sum, Activation::relu) + (accumulate ? 1.5 : 0.0));
        }
      CHECK_THAT(out.host(), near(expected, 1e-5));
    }
}

TEST_CASE("weights unpacked by an op of their own are those that a product unpacks, to the bit",
          "[kernels][quantised]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const int group = GENERATE(16, 32, 64, 128);
  unsigned seed = 130;
  // More rows than a GPU multiplies by weights as they lie.
  for (const Shape s : {Shape{65, 7, 5}, Shape{66, 48, 64}, Shape{65, 33, 200}, Shape{67, 16, 516}}) {
    CAPTURE(place.name, name_of(dtype), group, s.n, s.k);
    const auto weight = normal(static_cast<std::size_t>(s.n * s.k), ++seed, 0.3f);
    const QuantisedLayout layout{dtype, group, s.n, s.k};
    std::vector<std::int32_t> packed(static_cast<std::size_t>(layout.bytes()) / 4);
    auto* const bytes = reinterpret_cast<std::byte*>(packed.data());
    std::vector<float> meant(weight.size());
    for (int row = 0; row < s.n; row += 16)
      REQUIRE(kernels::quantise_tile(layout,
                                     ConstView(weight.data() + row * s.k, DType::f32, std::min(16, s.n - row), s.k),
                                     bytes + row / 16 * layout.tile_bytes()) == -1);
    for (int row = 0; row < s.n; ++row) kernels::dequantise_row(layout, bytes, row, meant.data() + row * s.k);
    const Array w(place, packed, 1, static_cast<std::int64_t>(packed.size()));
    Array unpacked(place, s.n, s.k, DType::f16);
    ConstView view(w.data(), dtype, s.n, s.k);
    view.group = group;
    place.run(UnpackWeights{view, unpacked});
    CHECK(unpacked.host() == rounded(meant, DType::f16));
    if (place.exact()) continue;  // there products are with the levels themselves, or with fp32 numbers
    const Array x(place, normal(static_cast<std::size_t>(s.m * s.k), ++seed), s.m, s.k);
    Array by_one(place, s.m, s.n), by_two(place, s.m, s.n);
    place.run(Linear{.x = x, .weight = view, .bias = {}, .out = by_one});
    place.run(Linear{.x = x, .weight = unpacked, .bias = {}, .out = by_two});
    CHECK(by_one.fetch() == by_two.fetch());
  }
}

TEST_CASE("few rows by quantised weights: every number of rows, many columns, and the same bits again",
          "[kernels][quantised]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::i4, DType::i8);
  unsigned seed = 170;
  for (const auto& [s, group] : {std::pair{Shape{1, 200, 1000}, 32},
                                 {Shape{8, 33, 260}, 64},
                                 {Shape{9, 40, 1100}, 128},
                                 {Shape{17, 16, 130}, 32},
                                 {Shape{33, 70, 600}, 64},
                                 {Shape{64, 31, 96}, 64}}) {
    CAPTURE(place.name, name_of(dtype), group, s.m, s.n, s.k);
    const auto wide = normal(static_cast<std::size_t>(s.m * 2 * s.k), ++seed);  // x is its right half
    const auto weight = normal(static_cast<std::size_t>(s.n * s.k), ++seed, 0.3f);
    const QuantisedLayout layout{dtype, group, s.n, s.k};
    std::vector<std::int32_t> packed(static_cast<std::size_t>(layout.bytes()) / 4);
    auto* const bytes = reinterpret_cast<std::byte*>(packed.data());
    for (int row = 0; row < s.n; row += 16)
      REQUIRE(kernels::quantise_tile(layout,
                                     ConstView(weight.data() + row * s.k, DType::f32, std::min(16, s.n - row), s.k),
                                     bytes + row / 16 * layout.tile_bytes()) == -1);
    std::vector<float> meant(weight.size());
    for (int row = 0; row < s.n; ++row) kernels::dequantise_row(layout, bytes, row, meant.data() + row * s.k);
    const Array x(place, wide, s.m, 2 * s.k), w(place, packed, 1, static_cast<std::int64_t>(packed.size()));
    Array out(place, s.m, s.n), again(place, s.m, s.n);
    ConstView view(w.data(), dtype, s.n, s.k);
    view.group = group;
    const ConstView right(x.columns(s.k, s.k));
    place.run(Linear{.x = right, .weight = view, .bias = {}, .out = out});
    place.run(Linear{.x = right, .weight = view, .bias = {}, .out = again});  // x is rounded already
    CHECK(out.fetch() == again.fetch());
    const DType type = place.product_type(DType::f16);
    const auto seen = rounded(wide, type), numbers = rounded(meant, type);
    std::vector<double> expected;
    for (int m = 0; m < s.m; ++m)
      for (int n = 0; n < s.n; ++n) {
        double sum = 0;
        for (int k = 0; k < s.k; ++k)
          sum += static_cast<double>(seen[static_cast<std::size_t>(m * 2 * s.k + s.k + k)]) *
                 static_cast<double>(numbers[static_cast<std::size_t>(n * s.k + k)]);
        expected.push_back(sum);
      }
    CHECK_THAT(out.host(), near(expected, 1e-5));
  }
}

TEST_CASE("weights that are not quantised, and room of another shape or type, are refused", "[kernels][quantised]") {
  const Place& place = *every_place().front();
  const Array w(place, 16, 64), half(place, 16, 64, DType::f16), narrow(place, 16, 32, DType::f16);
  ConstView view(w.data(), DType::i4, 16, 64);
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(half)}),
                    "unpack_weights: weight has groups of 0, wanted 16, 32, 64 or 128");
  view.group = 64;
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(narrow)}),
                    "unpack_weights: out is [16, 32], weight is [16, 64]");
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, View(w)}), "unpack_weights: out is float32, wanted float16");
  CHECK_THROWS_WITH(place.run(UnpackWeights{ConstView(w), View(half)}),
                    "unpack_weights: weight is float32, wanted int8, int4 or float8");
  View apart(half.data(), DType::f16, 8, 64, 128);
  view.rows = 8;
  CHECK_THROWS_WITH(place.run(UnpackWeights{view, apart}),
                    "unpack_weights: out is [8, 64], its rows are 128 apart, wanted 64");
}
