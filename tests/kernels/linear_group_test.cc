// Products of one x on the CPU; linear_places_test.cc has those of every backend, linear_quantised_test.cc levels.
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "kernels/linear/linear_cpu.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::kernels;
using test::normal;
using test::StoredNumbers;

TEST_CASE("linear: products of one x are what each is alone", "[linear]") {
  struct Weights {
    StoredNumbers stored;
    std::int64_t columns;
  };
  const std::int64_t k = GENERATE(100, 1500);
  const auto x = normal(static_cast<std::size_t>(100 * k), 40), bias = normal(70, 41);
  std::vector<Weights> weights;
  for (const auto& [dtype, columns] :
       {std::pair{DType::bf16, 48}, std::pair{DType::f32, 20}, std::pair{DType::bf16, 0}, std::pair{DType::bf16, 1},
        std::pair{DType::f16, 33}, std::pair{DType::f32, 70}, std::pair{DType::bf16, 17}})
    weights.push_back(
        {StoredNumbers(normal(static_cast<std::size_t>(columns * k), static_cast<unsigned>(columns)), dtype), columns});
  ThreadPool pool(3);
  std::vector<LinearPath> paths = linear_paths();
  paths.push_back(LinearPath::automatic);
  for (const std::int64_t rows : {1, 7, 16, 29, 100})
    for (const LinearPath path : paths) {
      CAPTURE(k, rows, name_of(path));
      LinearGroup all{.x = ConstView(x.data(), DType::f32, rows, k), .parts = {}};
      if (path == LinearPath::automatic && multiplies_bf16()) all.arithmetic = Arithmetic::bfloat16;
      std::vector<std::vector<float>> together;
      for (const Weights& w : weights) together.emplace_back(static_cast<std::size_t>(rows * w.columns));
      std::vector<LinearGroup::Part> parts;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const std::int64_t columns = weights[i].columns;
        parts.push_back({weights[i].stored.view(columns, k),
                         i % 2 == 0 ? ConstView(bias.data(), DType::f32, 1, columns) : ConstView{},
                         View(together[i].data(), DType::f32, rows, columns)});
      }
      all.parts = parts;
      linear_group_cpu(all, pool, path);
      for (std::size_t i = 0; i < weights.size(); ++i) {
        std::vector<float> alone(together[i].size(), 0.5f);
        Linear single = all.linear(parts[i]);
        single.out = View(alone.data(), DType::f32, rows, weights[i].columns);
        linear_cpu(single, pool, path);
        CHECK(test::same_bits(together[i], alone));
      }
    }
}
