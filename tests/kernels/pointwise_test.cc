#include <catch2/catch.hpp>
#include <limits>

#include "kernels/error.h"
#include "tests/support/array.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Add;
using kernels::Convert;
using kernels::Gather;
using kernels::LayerNorm;
using kernels::Linear;
using kernels::Multiply;
using kernels::Rotary;
using kernels::TakeHeads;

TEST_CASE("gather picks, converts and places rows", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const int cols = GENERATE(1, 40, 5000);
  CAPTURE(place.name, name_of(dtype), cols);
  const auto numbers = rounded(normal(7 * cols, /*seed=*/1), dtype);
  Array table(place, numbers, 7, cols, dtype), out(place, 4, cols);
  const auto row = [&](int r) {
    const auto first = numbers.begin() + std::ptrdiff_t{r} * cols;
    return std::vector<float>(first, first + cols);
  };
  const auto rows_of = [&] {
    std::vector<std::vector<float>> rows;
    const std::vector<float> all = out.host();
    for (int r = 0; r < 4; ++r) rows.emplace_back(all.begin() + r * cols, all.begin() + (r + 1) * cols);
    return rows;
  };
  const std::vector<std::int32_t> ids{6, 0, 6, 3}, some{2, 5}, to{3, 1};
  place.run(Gather{.table = table, .ids = ids, .to = {}, .out = out});
  CHECK(rows_of() == std::vector{row(6), row(0), row(6), row(3)});
  place.run(Gather{.table = table, .ids = some, .to = to, .out = out});
  CHECK(rows_of() == std::vector{row(6), row(5), row(6), row(2)});
}

TEST_CASE("gather refuses rows that are not there", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array table(place, normal(6, 1), 3, 2), out(place, 2, 2);
  const std::vector<std::int32_t> beyond{3}, three{0, 1, 2}, one{0}, far{2};
  CHECK_THROWS_WITH(place.run(Gather{table, beyond, {}, out}), "gather: id 3 of a table of 3");
  CHECK_THROWS_WITH(place.run(Gather{table, three, {}, out}), "gather: 3 ids, out is [2, 2]");
  CHECK_THROWS_WITH(place.run(Gather{table, one, far, out}), "gather: to row 2 of 2");
}

TEST_CASE("layer_norm matches its definition on every place", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);  // of weight and bias
  const auto [rows, cols] = GENERATE(table<int, int>({{1, 1}, {3, 7}, {2, 768}, {40, 515}, {0, 8}}));
  const float mean_of_x = GENERATE(0.0f, 1000.0f);  // E[x^2] - mean^2 would cancel
  CAPTURE(place.name, name_of(dtype), rows, cols, mean_of_x);

  std::vector<float> x = normal(rows * cols, /*seed=*/1);
  for (float& v : x) v += mean_of_x;
  const auto weight = rounded(normal(cols, 2), dtype), bias = rounded(normal(cols, 3), dtype);
  std::vector<double> expected(x.size());
  for (int r = 0; r < rows; ++r) {
    const float* row = &x[static_cast<std::size_t>(r * cols)];
    double mean = 0, variance = 0;
    for (int c = 0; c < cols; ++c) mean += static_cast<double>(row[c]) / cols;
    for (int c = 0; c < cols; ++c)
      variance += (static_cast<double>(row[c]) - mean) * (static_cast<double>(row[c]) - mean) / cols;
    for (int c = 0; c < cols; ++c)
      expected[static_cast<std::size_t>(r * cols + c)] = (static_cast<double>(row[c]) - mean) /
                                                             std::sqrt(variance + 1e-5) *
                                                             static_cast<double>(weight[static_cast<std::size_t>(c)]) +
                                                         static_cast<double>(bias[static_cast<std::size_t>(c)]);
  }
  Array in(place, x, rows, cols), w(place, weight, 1, cols, dtype), b(place, bias, 1, cols, dtype),
      out(place, rows, cols);
  place.run(LayerNorm{in, w, b, out});
  CHECK_THAT(out.host(), near(expected, mean_of_x == 0 ? tolerance(DType::f32) : 2e-4));  // x itself is known to 3e-5
  CHECK(in.host() == x);
  place.run(LayerNorm{in, w, b, in});  // in place
  CHECK(in.fetch() == out.fetch());
}

TEST_CASE("an rms norm leaves the mean", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const auto [rows, cols] = GENERATE(table<int, int>({{1, 1}, {3, 7}, {2, 768}, {40, 515}}));
  CAPTURE(place.name, rows, cols);
  std::vector<float> x = normal(rows * cols, 1);
  for (float& v : x) v += 3;
  const auto weight = normal(cols, 2);
  std::vector<double> expected;
  for (int r = 0; r < rows; ++r) {
    double squares = 0;
    for (int c = 0; c < cols; ++c) squares += std::pow(double(x[static_cast<std::size_t>(r * cols + c)]), 2) / cols;
    for (int c = 0; c < cols; ++c)
      expected.push_back(double(x[static_cast<std::size_t>(r * cols + c)]) / std::sqrt(squares + 1e-6) *
                         double(weight[static_cast<std::size_t>(c)]));
  }
  Array in(place, x, rows, cols), w(place, weight, 1, cols), out(place, rows, cols);
  place.run(LayerNorm{.x = in, .weight = w, .bias = {}, .out = out, .eps = 1e-6f, .rms = true});
  CHECK_THAT(out.host(), near(expected, tolerance(DType::f32)));
}

TEST_CASE("a norm's weight may be stored less 1", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CAPTURE(place.name);
  const auto x = normal(3 * 70, 1);
  std::vector<float> less = normal(70, 2), whole;
  for (const float w : less) whole.push_back(1 + w);
  Array in(place, x, 3, 70), stored(place, less, 1, 70), plain(place, whole, 1, 70), out(place, 3, 70),
      expected(place, 3, 70);
  place.run(LayerNorm{.x = in, .weight = stored, .bias = {}, .out = out, .rms = true, .plus_one = true});
  place.run(LayerNorm{.x = in, .weight = plain, .bias = {}, .out = expected, .rms = true});
  CHECK(out.host() == expected.host());
}

TEST_CASE("scale multiplies and caps", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const auto [factor, cap] = GENERATE(table<float, float>({{3.0f, 0.0f}, {1.0f, 30.0f}, {0.5f, 2.0f}}));
  CAPTURE(place.name, factor, cap);
  const auto x = normal(5 * 300, 1);
  std::vector<double> expected;
  for (const float v : x) {
    const double y = double(v * factor);
    expected.push_back(cap > 0 ? double(cap) * std::tanh(y / double(cap)) : y);
  }
  Array in(place, x, 5, 300);
  place.run(kernels::Scale{in, factor, cap});
  CHECK_THAT(in.host(), near(expected, tolerance(DType::f32)));
  CHECK_THROWS_WITH(place.run(kernels::Scale{in, 1, -1}), Catch::Matchers::Contains("the cap not negative"));
  Array any(place, std::vector<float>{kNaN, kInfinity, -1}, 1, 3);
  place.run(kernels::Scale{any, 0});
  CHECK(any.host() == std::vector<float>(3, 0));
}

TEST_CASE("multiply multiplies", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const auto x = normal(3 * 1031, 1), y = normal(3 * 1031, 2);
  std::vector<float> expected;
  for (std::size_t i = 0; i < x.size(); ++i) expected.push_back(x[i] * y[i]);
  Array a(place, x, 3, 1031), b(place, y, 3, 1031);
  place.run(Multiply{a, b});
  CHECK(a.host() == expected);
  Array other(place, 3, 1030);
  CHECK_THROWS_WITH(place.run(Multiply{a, other}), "multiply: y is [3, 1030], x is [3, 1031]");
}

TEST_CASE("take_heads takes the heads of one matrix out of rows in which those of three alternate", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  constexpr int kRows = 5, kHeads = 4, kDim = 24;
  const auto x = normal(kRows * 3 * kHeads * kDim, 1);
  Array in(place, x, kRows, 3 * kHeads * kDim), out(place, kRows, kHeads * kDim);
  for (int first = 0; first < 3; ++first) {
    place.run(TakeHeads{in, first, 3, kDim, out});
    std::vector<float> expected;
    for (int r = 0; r < kRows; ++r)
      for (int h = 0; h < kHeads; ++h)
        for (int d = 0; d < kDim; ++d)
          expected.push_back(x[static_cast<std::size_t>((r * 3 * kHeads + 3 * h + first) * kDim + d)]);
    CHECK(out.host() == expected);
  }
  CHECK_THROWS_WITH(place.run(TakeHeads{in, 3, 3, kDim, out}),
                    "take_heads: in is [5, 288], which has no head 12 of 24");
  CHECK_THROWS_AS(place.run(TakeHeads{in, 0, 3, 7, out}), UsageError);
}

TEST_CASE("rotary turns pairs by position and leaves the rest of a head", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int pairs = GENERATE(1, 3, 8);  // of heads of 16
  const bool alternate = GENERATE(false, true);
  constexpr int kRows = 4, kHeads = 3, kDim = 16;
  CAPTURE(place.name, pairs, alternate);
  const float magnitude = alternate ? 1.25f : 1.0f;
  const std::vector<std::int32_t> position{0, 1, 517, 100000};
  std::vector<float> frequencies;
  for (int i = 0; i < pairs; ++i) frequencies.push_back(1 / std::pow(10000.0f, float(i) / float(pairs)));
  const auto x = normal(kRows * kHeads * kDim, 1);
  std::vector<double> expected(x.begin(), x.end());
  for (int r = 0; r < kRows; ++r)
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < pairs; ++i) {
        const auto a = static_cast<std::size_t>((r * kHeads + h) * kDim + (alternate ? 2 * i : i)),
                   b = a + static_cast<std::size_t>(alternate ? 1 : pairs);
        // The angle is the fp32 product; its sine and cosine are exact.
        const double angle =
            double(float(position[static_cast<std::size_t>(r)]) * frequencies[static_cast<std::size_t>(i)]);
        const double cosine = std::cos(angle) * double(magnitude), sine = std::sin(angle) * double(magnitude);
        expected[a] = double(x[a]) * cosine - double(x[b]) * sine;
        expected[b] = double(x[b]) * cosine + double(x[a]) * sine;
      }
  Array in(place, x, kRows, kHeads * kDim);
  place.run(Rotary{in, position, frequencies, kDim, alternate, magnitude});
  CHECK_THAT(in.host(), near(expected, tolerance(DType::f32)));
  CHECK_THROWS_WITH(place.run(Rotary{in, position, std::vector<float>(9), kDim}),
                    "rotary: 9 frequencies for heads of 16");
  CHECK_THROWS_AS(place.run(Rotary{in, std::vector<std::int32_t>{1}, frequencies, kDim}), UsageError);
}

TEST_CASE("a GPU's ops take activations of 16 bits, and norms write such from fp32 rows", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const int cols = GENERATE(48, 77, 512, 4096, 9600);
  constexpr int rows = 3, dim = 8;
  CAPTURE(place.name, name_of(dtype), cols);
  const auto numbers = rounded(normal(rows * cols, 1), dtype), others = rounded(normal(rows * cols, 2), dtype);
  const Array wide(place, numbers, rows, cols), narrow(place, rows, cols, dtype),
      weight(place, normal(cols, 3), 1, cols);
  Array wide_out(place, rows, cols);
  place.run(LayerNorm{wide, weight, {}, wide_out});
  place.run(LayerNorm{wide, weight, {}, narrow});
  CHECK(narrow.host() == rounded(wide_out.host(), dtype));

  const std::vector<std::int32_t> position{0, 3, 500};
  const std::vector<float> frequencies{1, 0.5f, 0.1f};
  Array x(place, numbers, rows, cols, dtype), y(place, others, rows, cols, dtype);
  if (place.on_host) {
    CHECK_THROWS_WITH(place.run(Multiply{x, y}),
                      std::string("multiply: x is ") + name_of(dtype) + ", wanted float32 on a CPU");
    return;
  }
  Array x_wide(place, numbers, rows, cols), y_wide(place, others, rows, cols);
  place.run(Multiply{x, y}), place.run(Multiply{x_wide, y_wide});
  CHECK(x.host() == rounded(x_wide.host(), dtype));
  if (cols % (3 * dim) != 0) return;
  const Array heads(place, rows, cols / 3, dtype), heads_wide(place, rows, cols / 3);
  place.run(TakeHeads{y, 1, 3, dim, heads}), place.run(TakeHeads{y_wide, 1, 3, dim, heads_wide});
  CHECK(heads.host() == heads_wide.host());
  place.run(Rotary{heads, position, frequencies, dim}), place.run(Rotary{heads_wide, position, frequencies, dim});
  CHECK(heads.host() == rounded(heads_wide.host(), dtype));
}

TEST_CASE("layer_norm without weight and bias only normalises", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array x(place, std::vector<float>{1, 3, 5, 7}, 2, 2), out(place, 2, 2);
  place.run(LayerNorm{x, {}, {}, out, 0});
  CHECK(out.host() == std::vector<float>{-1, 1, -1, 1});
}

TEST_CASE("layer_norm refuses a weight of another width, and says both shapes", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array x(place, normal(16, 1), 2, 8), w(place, normal(7, 2), 1, 7), b(place, normal(8, 3), 1, 8);
  CHECK_THROWS_WITH(place.run(LayerNorm{x, w, b, x}), "layer_norm: weight is [7], x is [2, 8]");
  CHECK_THROWS_AS(place.run(LayerNorm{x, w, b, x}), UsageError);
  CHECK(x.host() == normal(16, 1));  // and touched nothing
}

TEST_CASE("a normalised row does not depend on the other rows", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int cols = 333;
  const auto all = normal(64 * cols, 4);
  Array x(place, all, 64, cols), w(place, normal(cols, 5), 1, cols), out(place, 64, cols), alone(place, 1, cols);
  place.run(LayerNorm{x, w, {}, out});
  for (const std::int64_t row : {0, 17, 63}) {
    place.run(LayerNorm{ConstView(x).slice(row, 1), w, {}, alone});
    const auto got = out.host();
    CHECK(std::equal(got.begin() + row * cols, got.begin() + (row + 1) * cols, alone.host().begin()));
  }
}

TEST_CASE("convert rounds to nearest even between all float types, every special number included", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType from = GENERATE(DType::f32, DType::f16, DType::bf16), to = GENERATE(DType::f32, DType::f16, DType::bf16);
  CAPTURE(place.name, name_of(from), name_of(to));
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> x = normal(3 * 331, 6, 100);
  const std::vector<float> special{0,
                                   -0.0f,
                                   infinity,
                                   -infinity,
                                   nan,
                                   65504,
                                   65519.9f,
                                   65520,
                                   -70000,
                                   5.9604645e-8f,
                                   2.9802322e-8f,
                                   2.98023259e-8f,
                                   6.1e-5f,
                                   6.097e-5f,
                                   1e-40f,
                                   3.4e38f,
                                   3.3953e38f,
                                   1 + 0x1p-11f,
                                   1 + 3 * 0x1p-11f,
                                   1 + 0x1p-8f,
                                   1 + 3 * 0x1p-8f,
                                   1 + 0x1.000002p-8f};
  std::copy(special.begin(), special.end(), x.begin());
  x = rounded(x, from);
  Array in(place, x, 3, 331, from), out(place, 3, 331, to);
  place.run(Convert{in, out});
  const auto expected = rounded(x, to), got = out.host();
  for (std::size_t i = 0; i < x.size(); ++i) {
    CAPTURE(i, x[i]);
    if (std::isnan(expected[i])) CHECK(std::isnan(got[i]));
    else CHECK(std::bit_cast<std::uint32_t>(got[i]) == std::bit_cast<std::uint32_t>(expected[i]));
  }
}

TEST_CASE("add accumulates any float type in place", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  const auto a = normal(5 * 4099, 7), b = rounded(normal(5 * 4099, 8), dtype);
  Array x(place, a, 5, 4099), y(place, b, 5, 4099, dtype);
  place.run(Add{x, y});
  auto sum = a;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  CHECK(x.host() == sum);

  Array wide(place, std::vector<float>(24, 1.0f), 3, 8), ones(place, std::vector<float>(9, 1.0f), 3, 3);
  place.run(Add{wide.columns(2, 3), ones});  // columns of a wider matrix
  const auto got = wide.host();
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == (i % 8 >= 2 && i % 8 < 5 ? 2.0f : 1.0f));
}

TEST_CASE("pointwise ops refuse shapes and types that disagree", "[kernels]") {
  const Place& place = *every_place().front();
  Array x(place, 2, 8), y(place, 3, 8), half(place, 2, 8, DType::f16), ints(place, 2, 8, DType::i32);
  CHECK_THROWS_WITH(place.run(Convert{x, y}), "convert: out is [3, 8], in is [2, 8]");
  CHECK_THROWS_WITH(place.run(Convert{ints, x}), "convert: in is int32, wanted a float type");
  CHECK_THROWS_WITH(place.run(Add{x, y}), "add: y is [3, 8], x is [2, 8]");
  CHECK_THROWS_WITH(place.run(Add{half, x}), "add: x is float16, wanted float32");
  CHECK_THROWS_WITH(place.run(LayerNorm{half, {}, {}, x}), "layer_norm: out is float32, wanted float16");
  CHECK_THROWS_WITH(place.run(Convert{ConstView(nullptr, DType::f32, 2, 8), x}),
                    "convert: in is [2, 8] but has no data");
  CHECK_THROWS_WITH(place.run(Convert{ConstView(x.data(), DType::f32, 2, 8, 7), x}),
                    "convert: in is [2, 8], its rows are only 7 apart");
}

TEST_CASE("linear refuses shapes that disagree, and an output that overlaps its input", "[kernels]") {
  const Place& place = *every_place().front();
  Array x(place, normal(64, 1), 4, 16), w(place, normal(8 * 16, 2), 8, 16), narrow(place, 8, 15), out(place, 4, 8),
      bias(place, 1, 7);
  CHECK_THROWS_WITH(place.run(Linear{x, narrow, {}, out}), "linear: weight is [8, 15], x is [4, 16]");
  CHECK_THROWS_WITH(place.run(Linear{x, w, bias, out}), "linear: bias is [7], weight is [8, 16]");
  CHECK_THROWS_WITH(place.run(Linear{x, w, {}, x}),
                    "linear: out is [4, 16], wanted [4, 8]: x is [4, 16], weight is [8, 16]");
  CHECK_THROWS_WITH(place.run(Linear{x, w, {}, x.columns(8, 8)}), "linear: out overlaps x");
  Array both(place, normal(4 * 24, 3), 4, 24);  // x and out side by side share no number
  place.run(Linear{both.columns(0, 16), w, {}, both.columns(16, 8)});
}
