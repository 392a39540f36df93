// Slots with coarse rows: which tokens become cold, against exact traces; what their rows hold, and attention over it
// (tests/data/kv/make_cold.py).
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "tests/support/files.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::CoarseBits;
using kernels::Keep;
using kernels::Scoring;
using nlohmann::json;

namespace {

const json& golden() {
  static const json all = json::parse(read_text(data_path("kv/cold.json")));
  return all;
}

void check_tokens(const std::map<int, float>& got, const json& expected) {
  std::map<int, float> wanted;
  for (const auto& [position, score] : expected.items())
    wanted[std::stoi(position)] = static_cast<float>(number(score));
  REQUIRE(got.size() == wanted.size());
  for (const auto& [position, score] : wanted) {
    CAPTURE(position);
    REQUIRE(got.contains(position));
    CHECK(got.at(position) == Approx(score).epsilon(1e-5).margin(1e-6));
  }
}

}  // namespace

TEST_CASE("a coarse row has the highest bits of an int8 row", "[kernels][kv]") {
  for (const json& row : golden().at("rows")) {
    const int dim = row.at("head_dim");
    const auto fine = bytes_from(row.at("fine").get<std::string>());
    REQUIRE(fine.size() == kernels::kv_row_bytes(DType::i8, dim));
    for (int bits = 1; bits <= kernels::kMostCoarseBits; ++bits) {
      CAPTURE(dim, bits);
      const auto expected = bytes_from(row.at("coarse").at(std::to_string(bits)).get<std::string>());
      REQUIRE(kernels::coarse_row_bytes(bits, dim) == expected.size());
      std::vector<std::byte> coarse(expected.size(), std::byte{0xFF});
      kernels::coarsen(fine.data(), dim, bits, coarse.data());
      CHECK(coarse == expected);
      for (int d = 0; d < dim; ++d)
        REQUIRE(kernels::coarse_level(coarse.data(), bits, d) ==
                std::to_integer<int>(fine[static_cast<std::size_t>(d)]) >> (8 - bits));
    }
  }
}

TEST_CASE("what a number of a coarse row reads as is on average the number", "[kernels][kv]") {
  constexpr int rows = 20000, dim = kernels::kKvGroup;
  const std::vector<float> x = normal(std::int64_t{rows} * dim, 7);
  for (int bits = 1; bits <= kernels::kMostCoarseBits; ++bits) {
    CAPTURE(bits);
    const auto [step, offset] = kernels::coarse_reading(bits);
    CHECK(step * static_cast<float>((1 << bits) - 1) / 2 + offset == Approx(127.5));
    double squares = 0, products = 0;
    for (int row = 0; row < rows; ++row) {
      const std::span<const float> of_row(x.data() + std::ptrdiff_t{row} * dim, dim);
      const auto [least, most] = std::ranges::minmax(of_row);
      const double scale = (double(most) - double(least)) / 255;
      for (const float number : of_row) {
        const int level = static_cast<int>(std::nearbyint((double(number) - double(least)) / scale)) >> (8 - bits);
        squares += double(number) * double(number);
        products += double(number) * (scale * (double(step) * level + double(offset)) + double(least));
      }
    }
    CHECK(products / squares == Approx(1).margin(0.003));
  }
}

TEST_CASE("tokens become cold, and go, as the exact traces say", "[kernels][kv][h2o]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int more = GENERATE(0, 3);  // slots than are needed
  for (const json& c : golden().at("traces")) {
    CAPTURE(place.name, c.at("name").get<std::string>());
    const json& k = c.at("keep");
    const Keep keep{.heavy = k.at("heavy"),
                    .recent = k.at("recent"),
                    .sinks = k.at("sinks"),
                    .grace = k.at("grace"),
                    .spare = k.at("spare"),
                    .window = k.at("window"),
                    .cold = k.at("cold")};
    const int prompt = c.at("prompt"), steps = c.at("steps"), group = static_cast<int>(c.at("weights").size());
    const HeadShape shape{group, 1, 20};
    const Cold cold{std::max(1, keep.cold) + more, {4, 2}};
    SlotsUnderTest run(place, 1, shape, std::min(keep.budget(), prompt + steps) + 1 + more + cold.slots, DType::i8,
                       Scoring::attention, false, cold);
    std::vector<float> scores;
    for (const json& score : c.at("prompt_scores")) scores.push_back(static_cast<float>(number(score)));
    run.prefill(some_tokens(prompt, shape, 1), {prompt}, {keep}, 1, 0, scores);
    run.make_home();
    for (int step = 0; step <= steps; ++step) {
      CAPTURE(step);
      const json& state = c.at("states").at(static_cast<std::size_t>(step));
      check_tokens(run.fine(0, 0), state.at("fine"));
      check_tokens(run.cold(0, 0), state.at("cold"));
      CHECK(run.home_is_the_same());
      if (step == steps) break;
      const int t = prompt + step;
      std::vector<std::map<int, float>> fed;
      for (const json& head : c.at("weights")) {
        const json& row = head.at(static_cast<std::size_t>(t));
        double total = number(row.at(static_cast<std::size_t>(t)));
        for (const auto& [position, score] : run.kept(0, 0))
          total += number(row.at(static_cast<std::size_t>(position)));
        fed.emplace_back();
        for (std::size_t key = 0; key < row.size(); ++key)
          fed.back()[static_cast<int>(key)] = static_cast<float>(number(row.at(key)) / total);
      }
      const auto got = run.step(some_tokens(1, shape, static_cast<std::uint64_t>(10 * t)), {0}, {t}, {keep}, 1, fed);
      CHECK(got.evicted[0] == c.at("gone").at(static_cast<std::size_t>(step)).get<int>());
    }
  }
}

namespace {

/// The numbers that a slot's row means.
std::vector<double> meant(const std::byte* row, int dim, int bits) {
  std::vector<double> numbers;
  for (int d = 0; d < dim; ++d) {
    f16 both[2];
    const std::size_t levels =
        bits == 8 ? kernels::kv_level_bytes(DType::i8, dim) : kernels::coarse_level_bytes(bits, dim);
    std::memcpy(both, row + levels + static_cast<std::size_t>(d / kernels::kKvGroup) * 4, sizeof both);
    const double level = bits == 8 ? std::to_integer<int>(row[d])
                                   : 127.5 + double(kernels::coarse_stretch(bits)) * kernels::coarse_step(bits) *
                                                 (kernels::coarse_level(row, bits, d) - ((1 << bits) - 1) / 2.0);
    numbers.push_back(double(static_cast<float>(both[0])) * level + double(static_cast<float>(both[1])));
  }
  return numbers;
}

/// The keys or values of one head, by slot.
std::vector<std::vector<double>> rows_meant(const Array& fine, const Array& cold, const kernels::KvSlots& slots,
                                            int head, int bits) {
  const auto hot = fine.fetch(), few = cold.fetch();
  std::vector<std::vector<double>> all;
  const std::size_t row = kernels::kv_row_bytes(DType::i8, slots.head_dim),
                    small = kernels::coarse_row_bytes(bits, slots.head_dim);
  for (int slot = 0; slot < slots.hot(); ++slot)
    all.push_back(meant(hot.data() + static_cast<std::size_t>(head * slots.hot() + slot) * row, slots.head_dim, 8));
  for (int slot = 0; slot < slots.cold; ++slot)
    all.push_back(meant(few.data() + static_cast<std::size_t>(head * slots.cold + slot) * small, slots.head_dim, bits));
  return all;
}

/// Adds the mean to the rows of a head; `first`: its place among the numbers of a head's means.
void add_mean(std::vector<std::vector<double>>& rows, SlotArrays& kv, int head, int first) {
  const auto mean = kv.mean.host();
  for (auto& row : rows)
    for (std::size_t d = 0; kv.block.mean && d < row.size(); ++d)
      row[d] += double(mean[static_cast<std::size_t>(head * 2 * kv.block.head_dim + first) + d]);
}

/// One step's attention in fp64 over what the slots mean, the new token in its own slot among them.
std::vector<double> attended(SlotArrays& kv, const std::vector<std::int32_t>& position, const std::vector<float>& q,
                             HeadShape shape, float scale) {
  const int group = shape.heads / shape.kv_heads, dim = shape.head_dim;
  std::vector<double> out;
  for (int head = 0; head < shape.kv_heads; ++head) {
    auto k = rows_meant(kv.k, kv.cold_k, kv.block, head, kv.block.coarse.keys);
    auto v = rows_meant(kv.v, kv.cold_v, kv.block, head, kv.block.coarse.values);
    add_mean(k, kv, head, 0);
    add_mean(v, kv, head, dim);
    for (int g = 0; g < group; ++g) {
      const float* const query = q.data() + (head * group + g) * dim;
      double total = 0;
      std::vector<double> sum(static_cast<std::size_t>(dim), 0.0);
      for (std::size_t slot = 0; slot < k.size(); ++slot) {
        if (position[static_cast<std::size_t>(head * kv.block.slots) + slot] < 0) continue;
        double logit = 0;
        for (int d = 0; d < dim; ++d) logit += double(query[d]) * k[slot][static_cast<std::size_t>(d)];
        const double p = std::exp(scale * logit);
        total += p;
        for (std::size_t d = 0; d < sum.size(); ++d) sum[d] += p * v[slot][d];
      }
      for (const double x : sum) out.push_back(x / total);
    }
  }
  return out;
}

/// The means of a prompt's keys and values in fp64 [kv_heads, 2 * head_dim].
std::vector<double> means_of(const Tokens& tokens, int prompt, HeadShape shape) {
  std::vector<double> means;
  const auto cols = static_cast<std::size_t>(shape.kv_heads * shape.head_dim);
  for (int head = 0; head < shape.kv_heads; ++head)
    for (const auto* rows : {&tokens.k, &tokens.v})
      for (int d = 0; d < shape.head_dim; ++d) {
        double sum = 0;
        for (std::size_t i = 0; i < static_cast<std::size_t>(prompt); ++i)
          sum += double((*rows)[i * cols + static_cast<std::size_t>(head * shape.head_dim + d)]);
        means.push_back(sum / prompt);
      }
  return means;
}

}  // namespace

TEST_CASE("attention over fine and cold slots is that of what they mean", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const bool means = GENERATE(false, true);
  struct Case {
    HeadShape shape;
    int heavy, cold;
    CoarseBits bits;
    int more = 0;  // slots of each kind than are needed
  };
  std::vector<Case> cases{{{4, 4, 128}, 20, 100, {3, 2}},    {{8, 2, 64}, 30, 70, {4, 2}},
                          {{8, 1, 80}, 3, 33, {3, 1}},       {{3, 1, 20}, 70, 5, {2, 2}},
                          {{2, 1, 63}, 3, 16, {4, 1}},       {{16, 2, 64}, 17, 80, {1, 3}},
                          {{2, 2, 64}, 20, 50, {3, 2}, 230}, {{8, 1, 128}, 20, 40, {4, 2}, 241}};
  if (means) cases.resize(4);
  for (int bits = 0; bits < 16 && !means; ++bits) cases.push_back({{1, 1, 64}, 4, 40, {1 + bits / 4, 1 + bits % 4}});
  if (means) cases.push_back({{4, 2, 64}, 40, 0, {4, 2}});  // means do not need cold slots
  for (const Case& c : cases) {
    CAPTURE(place.name, means, c.shape.heads, c.shape.kv_heads, c.shape.head_dim, c.bits.keys, c.bits.values);
    const Keep keep{.heavy = c.heavy, .recent = 4, .cold = c.cold};
    const int prompt = c.heavy + c.cold + 2;
    const int cold = c.cold + c.more, slots = c.heavy + 5 + c.more + cold;
    SlotsUnderTest run(place, 1, c.shape, slots, DType::i8, Scoring::attention, false, {cold, c.bits, false, means});
    Tokens tokens = some_tokens(prompt, c.shape, 3);
    if (means)  // as many keys and values have one
      for (std::size_t i = 0; i < tokens.k.size(); ++i)
        tokens.k[i] += static_cast<float>(i % 7) - 2, tokens.v[i] += 3 - static_cast<float>(i % 5);
    run.prefill(tokens, {prompt}, {keep}, 0.1f);
    if (means) CHECK_THAT(run.slots().mean.host(), near(means_of(tokens, prompt, c.shape), 1e-6));
    for (int t = prompt; t < prompt + 4; ++t) {  // the cold slots are full after the second
      const Tokens token = some_tokens(1, c.shape, static_cast<std::uint64_t>(100 + 10 * t));
      auto position = run.slots().position.ints();
      const auto free_slot = run.slots().free_slot.ints();
      // The step writes the token, attends, and only then cools another.
      SlotArrays before(place, 1, c.shape.kv_heads, slots, c.shape.head_dim, DType::i8, false, true,
                        {cold, c.bits, false, means});
      before.mean.set(run.slots().mean);
      before.cold_k.set(run.slots().cold_k), before.cold_v.set(run.slots().cold_v);
      const auto got = run.step(token, {0}, {t}, {keep}, 0.1f);
      before.k.set(run.slots().k), before.v.set(run.slots().v);
      for (int head = 0; head < c.shape.kv_heads; ++head)
        position[static_cast<std::size_t>(head * before.block.slots + free_slot[static_cast<std::size_t>(head)])] = t;
      CHECK_THAT(got.out, near(attended(before, position, token.q, c.shape, 0.1f), 4e-4));
    }
    CHECK(run.cold(0, 0).size() == static_cast<std::size_t>(c.cold));
  }
}

TEST_CASE("cold slots give the same bits with every vector and any threads, and skip empty ones", "[kernels][kv]") {
  const bool means = GENERATE(false, true);
  const HeadShape shape = GENERATE(HeadShape{2, 2, 64}, HeadShape{4, 1, 128}, HeadShape{6, 2, 80}, HeadShape{8, 1, 20});
  const Keep keep{.heavy = 8, .recent = 13, .sinks = 2, .cold = 30};
  std::vector<float> first_out;
  std::map<int, float> first_kept;
  for (const Place* place : every_place()) {
    if (!place->on_host) continue;
    if (place->name.find("plain") != std::string::npos) continue;
    for (const auto& [hot, cold] : {std::pair{22, 30}, {40, 30}, {22, 75}, {61, 47}}) {
      CAPTURE(place->name, hot, cold);
      SlotsUnderTest run(*place, 1, shape, hot + cold, DType::i8, Scoring::attention, false,
                         {cold, {3, 2}, false, means});
      run.prefill(some_tokens(40, shape, 5, 2), {40}, {keep}, 0.2f);
      std::vector<float> out;
      for (int t = 40; t < 64; ++t) {
        const auto got = run.step(some_tokens(1, shape, static_cast<std::uint64_t>(10 * t), 2), {0}, {t}, {keep}, 0.2f);
        out.insert(out.end(), got.out.begin(), got.out.end());
      }
      if (first_out.empty()) first_out = out, first_kept = run.kept(0, 0);
      CHECK(out == first_out);
      CHECK(run.kept(0, 0) == first_kept);
    }
  }
}

TEST_CASE("without cold tokens the bits are those of int8", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape{4, 2, 64};
  const Keep keep{.heavy = 8, .recent = 8};
  const auto run_with = [&](Cold cold) {
    SlotsUnderTest run(place, 1, shape, 17 + cold.slots, DType::i8, Scoring::attention, false, cold);
    run.prefill(some_tokens(30, shape, 5), {30}, {keep}, 0.2f);
    std::vector<float> out;
    for (int t = 30; t < 40; ++t)
      for (const float x : run.step(some_tokens(1, shape, static_cast<std::uint64_t>(t)), {0}, {t}, {keep}, 0.2f).out)
        out.push_back(x);
    return std::pair{out, run.kept(0, 1)};
  };
  CHECK(run_with({}) == run_with({9, {4, 2}}));
}

TEST_CASE("cold slots that make no sense are refused", "[kernels][kv]") {
  const Place& place = *every_place().front();
  const HeadShape shape{1, 1, 64};
  const auto prefill = [&](DType type, int cold, CoarseBits bits, Keep keep, bool rest = false) {
    SlotsUnderTest run(place, 1, shape, 12, type, Scoring::none, rest, {cold, bits});
    run.prefill(some_tokens(10, shape, 5), {10}, {keep});
  };
  const Keep keep{.heavy = 2, .recent = 2, .cold = 6};
  CHECK_NOTHROW(prefill(DType::i8, 6, {4, 2}, keep));
  CHECK_THROWS_WITH(prefill(DType::i8, 5, {4, 2}, keep), "keep_prompt: 5 cold slots, wanted 6 for prompt 0");
  CHECK_THROWS_WITH(prefill(DType::i8, 8, {4, 2}, keep),
                    "keep_prompt: 4 slots, wanted 5: prompt 0 keeps 4 tokens and needs one slot more");
  CHECK_THROWS_WITH(prefill(DType::i8, 6, {5, 2}, keep), "keep_prompt: coarse rows have 5 bits, wanted 1 to 4");
  CHECK_THROWS_WITH(prefill(DType::f16, 6, {4, 2}, keep),
                    "keep_prompt: cold slots beside slots of float16, wanted int8");
  CHECK_THROWS_WITH(prefill(DType::i8, 6, {4, 2}, keep, true),
                    "keep_prompt: slots have cold rows and a rest, wanted one of the two");
  CHECK_THROWS_WITH(prefill(DType::i8, 12, {4, 2}, keep), "keep_prompt: 12 cold slots of 12");
  CHECK_THROWS_WITH(prefill(DType::i8, 6, {4, 2}, Keep{.heavy = 2, .recent = 2, .cold = -1}),
                    "keep_prompt: keep has -1 cold tokens, wanted 0 or more");
}

TEST_CASE("rows less a mean have the same levels on every place", "[kernels][kv]") {
  const HeadShape shape{4, 2, 80};
  const Keep keep{.heavy = 8, .recent = 6, .cold = 12};
  std::vector<std::vector<std::byte>> first;
  for (const Place* place : every_place()) {
    CAPTURE(place->name);
    SlotsUnderTest run(*place, 2, shape, 15 + 12, DType::i8, Scoring::none, false, {12, {3, 2}, false, true});
    run.prefill(some_tokens(60, shape, 7), {41, 19}, {keep, keep}, 0.2f);
    run.make_home();
    for (int t = 0; t < 3; ++t)
      run.step(some_tokens(2, shape, static_cast<std::uint64_t>(20 + t)), {0, 1}, {41 + t, 19 + t}, {keep, keep}, 0.2f);
    CHECK(run.home_is_the_same());
    SlotArrays& kv = run.slots();
    const std::vector<std::vector<std::byte>> all{kv.mean.fetch(), kv.k.fetch(), kv.v.fetch(), kv.cold_k.fetch(),
                                                  kv.cold_v.fetch()};
    if (first.empty()) first = all;
    CHECK(all == first);
  }
}

TEST_CASE("means that make no sense are refused", "[kernels][kv]") {
  const Place& place = *every_place().front();
  const HeadShape shape{1, 1, 64};
  const Keep keep{.heavy = 2, .recent = 2, .cold = 6};
  const auto run_with = [&](DType type, Cold cold, float cap) {
    SlotsUnderTest run(place, 1, shape, 12, type, Scoring::none, false, cold);
    run.cap = cap;
    run.prefill(some_tokens(10, shape, 5), {10}, {keep});
    run.step(some_tokens(1, shape, 6), {0}, {10}, {keep});
  };
  CHECK_NOTHROW(run_with(DType::i8, {6, {4, 2}, false, true}, 0));
  CHECK_THROWS_WITH(run_with(DType::f16, {0, {}, false, true}, 0),
                    "keep_prompt: slots of float16 have means, wanted int8");
  CHECK_THROWS_WITH(
      run_with(DType::i8, {6, {4, 2}, false, true}, 30),
      "decode_attention: slots have means, and logits a cap or sink logits, which need the keys as they are");
}
