// Slots of int8 and int4: what is written, and attention over it, against a model in numpy
// (tests/data/kv/make_kv_rows.py).
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>

#include "tests/support/files.h"
#include "tests/support/h2o.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Keep;
using kernels::Scoring;
using nlohmann::json;

namespace {

constexpr double kTolerance = 2e-4;  ///< on the CPU queries and weights have 16 bits (cpu/levels.h)

std::vector<std::uint8_t> hex_bytes(const std::string& hex) {
  std::vector<std::uint8_t> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

std::vector<float> floats_from(const json& value) {
  const auto bytes = hex_bytes(value.get<std::string>());
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

const json& cases() {
  static const json all = json::parse(read_text(data_path("kv/kv_rows.json")));
  return all;
}

const std::array kKinds{SlotType(DType::i8), SlotType(DType::i4), SlotType(DType::i4, true)};

/// The bytes of one slot.
std::vector<std::uint8_t> row_of(const Array& rows, std::size_t slot, std::size_t row_bytes) {
  const auto all = rows.fetch();
  std::vector<std::uint8_t> row(row_bytes);
  std::memcpy(row.data(), all.data() + slot * row_bytes, row_bytes);
  return row;
}

std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

TEST_CASE("keys and values are quantised as the model does it, by prompts and by steps", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const SlotType type = GENERATE(from_range(kKinds));
  for (const json& row : cases().at("rows")) {
    const auto numbers = floats_from(row.at("numbers"));
    const auto key = hex_bytes(row.at(name_of(type.key_type()))), value = hex_bytes(row.at(name_of(type.dtype)));
    const int dim = static_cast<int>(numbers.size());
    CAPTURE(place.name, type.name(), dim, row.at("note").get<std::string>());
    REQUIRE(kernels::kv_row_bytes(type.key_type(), dim) == key.size());
    REQUIRE(kernels::kv_row_bytes(type.dtype, dim) == value.size());
    SlotsUnderTest run(place, 1, {1, 1, dim}, 4, type, Scoring::none);
    // Its neighbours must not matter: a key between others, and a value.
    const auto other = normal(dim, 3);
    const std::vector<float> q(static_cast<std::size_t>(2 * dim), 0.5f);
    run.prefill({q, joined(other, numbers), joined(numbers, other)}, {2}, {kKeepAll});
    CHECK(row_of(run.slots().k, 1, key.size()) == key);
    CHECK(row_of(run.slots().v, 0, value.size()) == value);
    run.make_home();
    run.step({std::vector<float>(static_cast<std::size_t>(dim), 0.5f), numbers, numbers}, {0}, {2}, {kKeepAll});
    CHECK(row_of(run.slots().k, 2, key.size()) == key);
    CHECK(row_of(run.slots().v, 2, value.size()) == value);
    CHECK(run.home_is_the_same());
  }
}

TEST_CASE("equal rows give equal levels everywhere", "[kernels][kv]") {
  const SlotType type = GENERATE(from_range(kKinds));
  for (const int dim : {20, 64, 80, 128}) {
    const int rows = 40;
    const HeadShape shape{1, 1, dim};
    std::vector<float> k = normal(std::int64_t{rows} * dim, 7, 3), v = normal(std::int64_t{rows} * dim, 8, 0.2f);
    for (std::size_t i = 0; i < v.size(); i += 7) v[i] = std::round(v[i] * 16) / 16;  // ties, and equal numbers
    std::vector<std::byte> first_k, first_v;
    for (const Place* place : every_place()) {
      CAPTURE(place->name, type.name(), dim);
      SlotsUnderTest run(*place, 1, shape, rows + 1, type, Scoring::none);
      run.prefill({normal(std::int64_t{rows} * dim, 9), k, v}, {rows}, {kKeepAll});
      const auto got_k = run.slots().k.fetch(), got_v = run.slots().v.fetch();
      if (first_k.empty()) first_k = got_k, first_v = got_v;
      CHECK(got_k == first_k);
      CHECK(got_v == first_v);
    }
  }
}

TEST_CASE("what integer products lose is small beside what levels lose", "[kernels][kv][cpu]") {
  const SlotType type = GENERATE(from_range(kKinds));
  for (const HeadShape shape : {HeadShape{8, 2, 128}, HeadShape{2, 2, 64}, HeadShape{3, 3, 80}, HeadShape{2, 1, 63}}) {
    const int tokens = 120, cols = shape.kv_heads * shape.head_dim, q_cols = shape.heads * shape.head_dim;
    const auto k = normal(std::int64_t{tokens} * cols, 1), v = normal(std::int64_t{tokens} * cols, 2);
    const auto q = normal(std::int64_t{tokens} * q_cols, 3);
    const auto cut = std::int64_t{tokens - 1} * cols, q_cut = std::int64_t{tokens - 1} * q_cols;
    for (const float scale : {0.02f, 0.1f, 0.5f}) {               // from a flat softmax to one of few tokens
      const bool shaped = scale == 0.1f && shape.head_dim != 80;  // capped, and with sink logits
      for (const Place* place : every_place()) {
        if (scale != 0.1f && place != every_place().front() && place != every_place().back()) continue;  // for time
        // As fp32 slots, whose numbers are those of the levels or of the rows themselves.
        const auto attend = [&](SlotType kind, const std::vector<float>& keys, const std::vector<float>& values) {
          SlotsUnderTest run(*place, 1, shape, tokens, kind, Scoring::none);
          if (shaped) run.cap = 1.5f, run.sink_logits.assign(static_cast<std::size_t>(shape.heads), 1.0f);
          run.prefill({{q.begin(), q.begin() + q_cut},
                       {keys.begin(), keys.begin() + cut},
                       {values.begin(), values.begin() + cut}},
                      {tokens - 1}, {kKeepAll}, scale);
          const auto got = run.step(
              {{q.begin() + q_cut, q.end()}, {keys.begin() + cut, keys.end()}, {values.begin() + cut, values.end()}},
              {0}, {tokens - 1}, {kKeepAll}, scale);
          return std::pair(got.out, std::pair(run.slots().k.fetch(), run.slots().v.fetch()));
        };
        // [tokens, kv_heads * head_dim] of slots [kv_heads, tokens].
        const auto meant = [&](const std::vector<std::byte>& rows, DType kind) {
          const std::size_t row_bytes = kernels::kv_row_bytes(kind, shape.head_dim);
          std::vector<float> numbers(k.size());
          for (int head = 0; head < shape.kv_heads; ++head)
            for (int t = 0; t < tokens; ++t)
              for (int d = 0; d < shape.head_dim; ++d) {
                const std::byte* const row = rows.data() + static_cast<std::size_t>(head * tokens + t) * row_bytes;
                const auto at = kernels::kv_level(kind, shape.head_dim, d);
                f16 both[2];
                std::memcpy(both,
                            row + kernels::kv_level_bytes(kind, shape.head_dim) +
                                static_cast<std::size_t>(d / kernels::kKvGroup * 4),
                            sizeof both);
                const int level = std::to_integer<int>(row[at.byte]) >> at.shift & (kind == DType::i4 ? 15 : 255);
                numbers[static_cast<std::size_t>(t * cols + head * shape.head_dim + d)] =
                    static_cast<float>(both[0]) * static_cast<float>(level) + static_cast<float>(both[1]);
              }
          return numbers;
        };
        const auto distance = [](const std::vector<float>& a, const std::vector<float>& b) {
          double sum = 0;
          for (std::size_t i = 0; i < a.size(); ++i) sum += std::pow(double(a[i]) - double(b[i]), 2);
          return std::sqrt(sum);
        };
        CAPTURE(place->name, type.name(), shape.head_dim, scale);
        const auto [got, rows] = attend(type, k, v);
        const auto exact = attend(DType::f32, k, v).first;
        const auto of_levels =
            attend(DType::f32, meant(rows.first, type.key_type()), meant(rows.second, type.dtype)).first;
        const double lost = distance(got, of_levels) / distance(of_levels, exact);
        CAPTURE(lost);
        CHECK(distance(of_levels, exact) > 0);
        CHECK(lost < 0.05);
      }
    }
  }
}

TEST_CASE("attention over quantised slots is that of what they mean", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const SlotType type = GENERATE(from_range(kKinds));
  const char* const kind = type.int8_keys ? "int8-int4" : name_of(type.dtype);
  for (const json& c : cases().at("attention")) {
    const int dim = c.at("head_dim"), group = c.at("group"), slots = c.at("slots");
    CAPTURE(place.name, kind, dim, group, slots);
    const auto keys = floats_from(c.at("keys")), values = floats_from(c.at("values"));
    const auto cut = static_cast<std::ptrdiff_t>((slots - 1) * dim);
    for (const int more : {0, 40}) {  // empty slots
      SlotsUnderTest run(place, 1, {group, 1, dim}, slots + more, type);
      run.prefill({normal(std::int64_t{slots - 1} * group * dim, 5),
                   {keys.begin(), keys.begin() + cut},
                   {values.begin(), values.begin() + cut}},
                  {slots - 1}, {kKeepAll}, 1, 0, std::vector<float>(static_cast<std::size_t>(slots - 1), 0.0f));
      const auto got =
          run.step({floats_from(c.at("query")), {keys.begin() + cut, keys.end()}, {values.begin() + cut, values.end()}},
                   {0}, {slots - 1}, {kKeepAll}, 1 / std::sqrt(static_cast<float>(dim)));
      const double most = place.on_host ? kTolerance : tolerance(DType::f32);
      CHECK_THAT(got.out, near(c.at(kind).at("out").get<std::vector<double>>(), most));
      std::vector<float> score;
      for (const auto& entry : run.kept(0, 0)) score.push_back(entry.second);
      CHECK_THAT(score, near(c.at(kind).at("score").get<std::vector<double>>(), most));
    }
  }
}

namespace {

/// Rows of random levels. In one row of 128, which a warp comes to late, scales and minima are `range` times larger.
std::vector<std::int32_t> random_levels(DType type, int head_dim, int rows, float range, unsigned seed) {
  const std::size_t words = kernels::kv_row_bytes(type, head_dim) / 4,
                    groups = static_cast<std::size_t>(kernels::kv_groups(head_dim));
  std::mt19937 random(seed);
  std::vector<std::int32_t> all;
  for (int row = 0; row < rows; ++row)
    for (std::size_t i = 0; i < words; ++i) {
      if (i + groups < words) {
        all.push_back(static_cast<std::int32_t>(random()));
        continue;
      }
      const float by = row % 128 == 80 ? range : 1.0f, unit = static_cast<float>(random() % 1000 + 1) / 1000;
      const f16 halves[2] = {f16(by * unit * 0.01f), f16(by * (unit - 0.7f))};
      all.push_back(std::bit_cast<std::int32_t>(halves));
    }
  return all;
}

}  // namespace

TEST_CASE("attention over levels: groups of heads, many slots, empty ones, and scales far apart", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const SlotType type = GENERATE(from_range(kKinds));
  struct Shape {
    int group, kv_heads, head_dim, slots;
  };
  for (const Shape s : {Shape{1, 2, 128, 70},
                        {1, 1, 64, 33},
                        {2, 1, 128, 40},
                        {4, 2, 64, 100},
                        {8, 1, 128, 20},
                        {1, 1, 128, 530},
                        {4, 1, 64, 600},
                        {3, 1, 96, 40},
                        {2, 1, 256, 30},
                        {2, 1, 512, 30}})
    for (const float range : {1.0f, 2000.0f, 1e-3f}) {
      CAPTURE(place.name, type.name(), s.group, s.kv_heads, s.head_dim, s.slots, range);
      const int heads = s.group * s.kv_heads, rows = s.kv_heads * s.slots;
      std::vector<std::int32_t> position;
      for (int i = 0; i < rows; ++i) position.push_back(i % s.slots == 4 || i % s.slots % 11 == 10 ? -1 : i % s.slots);
      // In half of the cases capped, and with sink logits.
      const std::vector<float> sinks(s.slots % 20 == 0 ? static_cast<std::size_t>(heads) : 0, 2.0f);
      const auto step = [&](const Place& on) {
        SlotArrays kv(on, 1, s.kv_heads, s.slots, s.head_dim, type);
        kv.k.set(random_levels(type.key_type(), s.head_dim, rows, 1, 1));
        kv.v.set(random_levels(type.dtype, s.head_dim, rows, range, 2));
        kv.score.set(std::vector<float>(static_cast<std::size_t>(rows), 0.25f));
        kv.position.set(position);
        kv.free_slot.set(std::vector<std::int32_t>(static_cast<std::size_t>(s.kv_heads), 4));
        const Array q(on, normal(heads * s.head_dim, 3, 0.7f), 1, heads * s.head_dim),
            k(on, normal(s.kv_heads * s.head_dim, 4), 1, s.kv_heads * s.head_dim),
            v(on, normal(s.kv_heads * s.head_dim, 5), 1, s.kv_heads * s.head_dim);
        Array out(on, 1, heads * s.head_dim);
        const std::int32_t sequence[] = {0}, token[] = {s.slots};
        const Keep keep[] = {kKeepAll};
        on.run(kernels::DecodeAttention{.q = q,
                                        .k = k,
                                        .v = v,
                                        .sequence = sequence,
                                        .position = token,
                                        .keep = keep,
                                        .heads = heads,
                                        .scale = 0.2f,
                                        .decay = 0.5f,
                                        .scoring = Scoring::attention,
                                        .slots = kv.block,
                                        .home = {},
                                        .out = out,
                                        .probabilities = {},
                                        .evicted = {},
                                        .cap = sinks.empty() ? 0.0f : 3.0f,
                                        .sink_logits = sinks});
        return std::pair{out.host(), kv.score.host()};
      };
      const auto [out, score] = step(place);
      static std::map<std::string, std::pair<std::vector<float>, std::vector<float>>> by_cpu;
      std::string name = type.name();
      for (const double part : {double(s.group), double(s.head_dim), double(s.slots), double(range)})
        name += " " + std::to_string(part);
      auto& expected = by_cpu[name];
      if (expected.first.empty()) expected = step(*every_place().front());
      const auto wide = [](const std::vector<float>& x) { return std::vector<double>(x.begin(), x.end()); };
      CHECK_THAT(out, near(wide(expected.first), kTolerance));
      CHECK_THAT(score, near(wide(expected.second), kTolerance));
    }
}

TEST_CASE("quantised slots give the same bits with AVX-512, AVX2 and any threads, and skip empty ones",
          "[kernels][kv]") {
  const SlotType type = GENERATE(from_range(kKinds));
  for (const HeadShape shape : {HeadShape{2, 2, 64}, HeadShape{4, 1, 128}, HeadShape{6, 2, 80}, HeadShape{3, 3, 20},
                                HeadShape{8, 2, 192}, HeadShape{3, 1, 63}}) {
    const int steps = 24, prompt = 30, cols = shape.kv_heads * shape.head_dim, q_cols = shape.heads * shape.head_dim;
    const Keep keep{8, 13, 2, 0};
    std::vector<std::byte> first_k, first_out, first_score;
    for (const Place* place : every_place()) {
      if (!place->exact() || place->name.find("plain") != std::string::npos) continue;
      for (const int slots : {22, 61}) {
        CAPTURE(place->name, type.name(), shape.head_dim, slots);
        SlotsUnderTest run(*place, 1, shape, slots, type);
        run.prefill({normal(std::int64_t{prompt} * q_cols, 1, 2), normal(std::int64_t{prompt} * cols, 2),
                     normal(std::int64_t{prompt} * cols, 3)},
                    {prompt}, {keep}, 0.2f);
        std::vector<float> out;
        for (int t = prompt; t < prompt + steps; ++t) {
          const auto seed = static_cast<std::uint64_t>(10 * t);
          out = joined(out, run.step({normal(q_cols, seed, 2), normal(cols, seed + 1), normal(cols, seed + 2)}, {0},
                                     {t}, {keep}, 0.2f)
                                .out);
        }
        std::vector<std::byte> bits(out.size() * sizeof(float)), scores;
        std::memcpy(bits.data(), out.data(), bits.size());
        for (int head = 0; head < shape.kv_heads; ++head)
          for (const auto& [position, score] : run.kept(0, head)) {
            const auto number = std::bit_cast<std::array<std::byte, 4>>(score);
            scores.insert(scores.end(), number.begin(), number.end());
            scores.push_back(static_cast<std::byte>(position));
          }
        if (first_out.empty()) first_out = bits, first_score = scores;
        CHECK(bits == first_out);
        CHECK(scores == first_score);
      }
    }
  }
}

TEST_CASE("a key that is not finite makes attention no number, not a wrong one", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const SlotType type = GENERATE(from_range(kKinds));
  SlotsUnderTest run(place, 1, {1, 1, 80}, 4, type, Scoring::none);
  auto k = normal(80, 1);
  k[70] = 1e9f;  // fp16 has no such minimum or scale
  const auto got = run.step({normal(80, 2), k, normal(80, 3)}, {0}, {0}, {kKeepAll});
  for (const float x : got.out) CHECK(std::isnan(x));
}

TEST_CASE("a Hadamard rotation is its own inverse and keeps products", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  for (const json& c : cases().at("hadamard")) {
    const auto numbers = floats_from(c.at("numbers"));
    const int dim = static_cast<int>(numbers.size()), heads = 3, rows = 5;
    CAPTURE(place.name, dim);
    std::vector<float> all;
    std::vector<double> expected, before;
    for (int i = 0; i < heads * rows; ++i) {
      all = joined(all, numbers);
      for (const double x : c.at("turned")) expected.push_back(x);
      before.insert(before.end(), numbers.begin(), numbers.end());
    }
    Array x(place, all, rows, heads * dim);
    place.run(kernels::Hadamard{x, dim});
    CHECK_THAT(x.host(), near(expected, tolerance(DType::f32)));
    place.run(kernels::Hadamard{x, dim});
    CHECK_THAT(x.host(), near(before, tolerance(DType::f32)));
  }
  Array x(place, 2, 12);
  CHECK_THROWS_WITH(place.run(kernels::Hadamard{x, 5}), "hadamard: x is [2, 12], which are no heads of 5");
}
