// Split slots: the pieces of their rows and the tokens that a step reads with all bits, against exact golden data
// (tests/data/kv/make_split.py); attention against fp64; the bits of int8 where all tokens are read so.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

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

const json& split_golden() {
  static const json all = json::parse(read_text(data_path("kv/split.json")));
  return all;
}

Keep all_stay(int read, int sinks = 0) { return {.heavy = sinks, .recent = 1000, .sinks = sinks, .read = read}; }

}  // namespace

TEST_CASE("a row of int8 is split into its high and low bits and its scales", "[kernels][kv]") {
  for (const json& row : split_golden().at("rows")) {
    const int dim = row.at("head_dim");
    const auto fine = bytes_from(row.at("fine").get<std::string>());
    for (int bits = 1; bits <= kernels::kMostCoarseBits; ++bits) {
      CAPTURE(dim, bits);
      const auto wanted = [&](const char* piece) {
        return bytes_from(row.at(piece).at(std::to_string(bits)).get<std::string>());
      };
      std::vector<std::byte> high(kernels::high_row_bytes(bits, dim), std::byte{0xFF}),
          low(kernels::low_row_bytes(bits, dim), std::byte{0xFF}), scales(kernels::scales_bytes(dim), std::byte{0xFF});
      kernels::split_row(fine.data(), dim, bits, high.data(), low.data(), scales.data());
      CHECK(high == wanted("high"));
      CHECK(low == wanted("low"));
      CHECK(scales == bytes_from(row.at("scales").get<std::string>()));
      CHECK(high.size() + low.size() == static_cast<std::size_t>(kernels::kv_groups(dim)) * kernels::kKvGroup);
    }
  }
}

TEST_CASE("a step reads the newest tokens, the sinks and those with the largest shares", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  for (const json& c : split_golden().at("choices")) {
    CAPTURE(place.name, c.at("name").get<std::string>());
    const json& shares = c.at("shares");
    const int group = static_cast<int>(shares.size()), tokens = static_cast<int>(shares.at(0).size());
    const HeadShape shape{group, 1, 64};
    // The value of token t is 8 in number 2 + t and 0 in the others, and its high row means 31.5 everywhere.
    Tokens all = some_tokens(tokens, shape, 1);
    for (int t = 0; t < tokens; ++t)
      for (int d = 0; d < 64; ++d)
        all.v[static_cast<std::size_t>(64 * t + d)] = d == 1 ? 255.0f : d == 2 + t ? 8.0f : 0.0f;
    const auto part = [&](int begin, int end) {
      const auto rows = [&](const std::vector<float>& of, int width) {
        return std::vector<float>(of.begin() + begin * width, of.begin() + end * width);
      };
      return Tokens{rows(all.q, group * 64), rows(all.k, 64), rows(all.v, 64)};
    };
    const Keep keep = all_stay(c.at("read"), c.at("sinks"));
    SlotsUnderTest run(place, 1, shape, tokens + 3, DType::i8, Scoring::none, false, {0, {4, 2}, true});
    run.prefill(part(0, tokens - 1), {tokens - 1}, {keep});
    run.make_home();
    std::vector<std::map<int, float>> fed;
    for (const json& head : shares) {
      fed.emplace_back();
      for (int t = 0; t < tokens; ++t) fed.back()[t] = static_cast<float>(number(head.at(static_cast<std::size_t>(t))));
    }
    const auto got = run.step(part(tokens - 1, tokens), {0}, {tokens - 1}, {keep}, 1, fed);
    CHECK(run.home_is_the_same());
    for (int g = 0; g < group; ++g) {
      std::vector<int> chosen;
      for (int t = 0; t < tokens; ++t) {
        const float own = got.out[static_cast<std::size_t>(64 * g + 2 + t)],
                    none = got.out[static_cast<std::size_t>(64 * g)];
        if (own - none > 4 * fed[static_cast<std::size_t>(g)][t]) chosen.push_back(t);
      }
      CHECK(chosen == c.at("chosen").get<std::vector<int>>());
    }
  }
}

namespace {

/// The numbers of one slot's key or value: by all bits, and by its high row.
struct SplitNumbers {
  std::vector<double> all, high, scale, middle;  // scale, middle: of each number's group, for high rows
};
SplitNumbers split_numbers(const std::byte* high, const std::byte* low, const std::byte* scales, int bits, int dim) {
  SplitNumbers numbers;
  for (int d = 0; d < dim; ++d) {
    f16 both[2];
    std::memcpy(both, scales + static_cast<std::size_t>(d / kernels::kKvGroup) * 4, sizeof both);
    const double scale = double(static_cast<float>(both[0])), minimum = double(static_cast<float>(both[1])),
                 step = double(kernels::coarse_stretch(bits)) * kernels::coarse_step(bits),
                 half = ((1 << bits) - 1) / 2.0;
    const int top = kernels::coarse_level(high, bits, d), rest = kernels::coarse_level(low, 8 - bits, d);
    numbers.all.push_back(scale * (top << (8 - bits) | rest) + minimum);
    numbers.high.push_back(scale * (127.5 + step * (top - half)) + minimum);
    numbers.scale.push_back(scale * step), numbers.middle.push_back(scale * 127.5 + minimum);
  }
  return numbers;
}

struct ReadStep {
  HeadShape shape;
  Keep keep;
  bool rounds = true;  // high rows are multiplied by numbers of 8 bits, as on the CPU
  float scale = 0.1f, cap = 0;
  std::vector<float> sinks = {};
};

/// One query of 64 numbers or fewer, rounded to 8 bits.
void round_to_bytes(std::vector<double>& q, std::size_t first, std::size_t end) {
  double top = 0;
  for (std::size_t d = first; d < end; ++d) top = std::max(top, std::abs(q[d]));
  for (std::size_t d = first; d < end; ++d) q[d] = std::nearbyint(q[d] * 127 / top) * top / 127;
}

/// A softmax in which a sink logit may take part.
std::vector<double> softmax_of(const std::vector<double>& logits, const float* sink) {
  std::vector<double> p;
  double total = sink ? std::exp(double(*sink)) : 0;
  for (const double logit : logits) p.push_back(std::exp(logit)), total += p.back();
  for (double& x : p) x /= total;
  return p;
}

/// The attention of a step in fp64 over what the slots mean. `position`: of each slot, the step's own among them.
std::vector<double> attended_split(SlotArrays& kv, const std::vector<std::int32_t>& position,
                                   const std::vector<float>& q, const ReadStep& step, int token) {
  const HeadShape shape = step.shape;
  const kernels::KvSlots& b = kv.block;
  const int group = shape.heads / shape.kv_heads, dim = shape.head_dim;
  const auto high_k = kv.k.fetch(), low_k = kv.low_k.fetch(), scale_k = kv.scale_k.fetch(), high_v = kv.v.fetch(),
             low_v = kv.low_v.fetch(), scale_v = kv.scale_v.fetch();
  const auto size = static_cast<std::size_t>(dim);
  std::vector<double> out;
  for (int head = 0; head < shape.kv_heads; ++head) {
    std::vector<int> at;  // positions
    std::vector<SplitNumbers> k, v;
    for (int slot = 0; slot < b.slots; ++slot) {
      const auto i = static_cast<std::size_t>(head * b.slots + slot);
      if (position[i] < 0) continue;
      at.push_back(position[i]);
      const auto row = [i](const auto& of, std::size_t bytes) { return of.data() + i * bytes; };
      k.push_back(split_numbers(row(high_k, b.key_bytes()), row(low_k, b.low_key_bytes()),
                                row(scale_k, kernels::scales_bytes(dim)), b.coarse.keys, dim));
      v.push_back(split_numbers(row(high_v, b.value_bytes()), row(low_v, b.low_value_bytes()),
                                row(scale_v, kernels::scales_bytes(dim)), b.coarse.values, dim));
    }
    const auto sink_of = [&](int g) {
      return step.sinks.empty() ? nullptr : &step.sinks[static_cast<std::size_t>(head * group + g)];
    };
    const auto capped = [&](double x) { return step.cap > 0 ? step.cap * std::tanh(x / double(step.cap)) : x; };
    std::vector<std::vector<double>> by_all, by_high;  // logits
    std::vector<double> share(at.size(), 0.0);
    for (int g = 0; g < group; ++g) {
      std::vector<double> exact, few;
      for (int d = 0; d < dim; ++d)
        exact.push_back(double(q[static_cast<std::size_t>((head * group + g) * dim + d)] * step.scale));
      few = exact;
      for (std::size_t first = 0; step.rounds && first < size; first += 64)
        round_to_bytes(few, first, std::min(size, first + 64));
      by_all.emplace_back(), by_high.emplace_back();
      for (const SplitNumbers& key : k) {
        double all = 0, high = 0;
        for (std::size_t d = 0; d < size; ++d) all += exact[d] * key.all[d], high += few[d] * key.high[d];
        by_all.back().push_back(capped(all)), by_high.back().push_back(capped(high));
      }
      const auto p = softmax_of(by_high.back(), sink_of(g));
      for (std::size_t i = 0; i < p.size(); ++i) share[i] += p[i];
    }
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < at.size(); ++i) order.push_back(i);
    const auto kind = [&](std::size_t i) {
      return at[i] > token - step.keep.read_newest() ? 0 : at[i] < step.keep.sinks ? 1 : 2;
    };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t c) {
      if (kind(a) != kind(c)) return kind(a) < kind(c);
      return kind(a) < 2 || share[a] == share[c] ? at[a] < at[c] : share[a] > share[c];
    });
    std::vector<bool> chosen(at.size());
    for (std::size_t i = 0; i < order.size() && i < static_cast<std::size_t>(step.keep.read); ++i)
      chosen[order[i]] = true;
    for (int g = 0; g < group; ++g) {
      std::vector<double> logits = by_high[static_cast<std::size_t>(g)];
      for (std::size_t i = 0; i < logits.size(); ++i)
        if (chosen[i]) logits[i] = by_all[static_cast<std::size_t>(g)][i];
      const auto p = softmax_of(logits, sink_of(g));
      for (std::size_t d = 0; d < size; ++d) {
        double sum = 0, top = 0;
        for (std::size_t i = 0; i < p.size(); ++i)
          if (!chosen[i]) top = std::max(top, p[i] * v[i].scale[d]);
        const auto rounded = [&](double weight) {
          return step.rounds ? std::nearbyint(weight * 255 / top) * top / 255 : weight;
        };
        for (std::size_t i = 0; i < p.size(); ++i)
          sum += chosen[i] ? p[i] * v[i].all[d]
                           : p[i] * v[i].middle[d] +
                                 rounded(p[i] * v[i].scale[d]) * (v[i].high[d] - v[i].middle[d]) / v[i].scale[d];
        out.push_back(sum);
      }
    }
  }
  return out;
}

struct SplitCase {
  HeadShape shape;
  int tokens, read;
  CoarseBits bits;
  int heavy = 0;  // with a budget, so that slots become free in the middle
  float cap = 0;
  bool sinks = false;
  int more = 0;  // slots than are needed
};

/// Runs four steps of each case, and compares them.
void check_attention(const Place& place, const std::vector<SplitCase>& cases) {
  for (const SplitCase& c : cases) {
    CAPTURE(place.name, c.shape.heads, c.shape.kv_heads, c.shape.head_dim, c.bits.keys, c.bits.values, c.cap, c.heavy);
    ReadStep step{.shape = c.shape, .keep = all_stay(c.read, 2), .rounds = place.on_host, .cap = c.cap};
    if (c.heavy > 0) step.keep = {.heavy = c.heavy, .recent = 6, .sinks = 2, .read = c.read};
    if (c.sinks) step.sinks = normal(c.shape.heads, 9);
    const int slots = (c.heavy > 0 ? c.heavy + 9 : c.tokens + 6) + c.more;
    const Cold split{0, c.bits, true};
    SlotsUnderTest run(place, 1, c.shape, slots, DType::i8, Scoring::attention, false, split);
    run.cap = c.cap, run.sink_logits = step.sinks;
    run.prefill(some_tokens(c.tokens, c.shape, 3), {c.tokens}, {step.keep}, step.scale);
    for (int t = c.tokens; t < c.tokens + 4; ++t) {
      const Tokens token = some_tokens(1, c.shape, static_cast<std::uint64_t>(100 + 10 * t));
      auto position = run.slots().position.ints();
      const auto free_slot = run.slots().free_slot.ints();
      const auto got = run.step(token, {0}, {t}, {step.keep}, step.scale);
      for (int head = 0; head < c.shape.kv_heads; ++head)
        position[static_cast<std::size_t>(head * slots + free_slot[static_cast<std::size_t>(head)])] = t;
      // A weight that the query's 16 bits move over a half is another level, where it is rounded to one.
      CHECK_THAT(got.out, near(attended_split(run.slots(), position, token.q, step, t), step.rounds ? 1e-2 : 4e-4));
    }
  }
}

}  // namespace

TEST_CASE("attention over split slots is that of what a step reads of them", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  check_attention(place, {{{4, 4, 128}, 100, 10, {4, 2}},
                          {{8, 2, 64}, 150, 20, {3, 2}},
                          {{8, 1, 128}, 70, 7, {4, 2}},
                          {{8, 1, 80}, 40, 30, {3, 1}},
                          {{3, 1, 20}, 75, 1, {2, 2}},
                          {{2, 1, 63}, 33, 5, {4, 1}},
                          {{2, 2, 256}, 90, 9, {4, 4}},
                          {{4, 1, 192}, 65, 12, {4, 2}},
                          {{4, 2, 64}, 120, 15, {4, 2}, 0, 3},
                          {{4, 2, 128}, 50, 8, {4, 2}, 0, 0, true},
                          {{4, 2, 128}, 90, 8, {4, 2}, 40},
                          {{4, 4, 64}, 90, 70, {3, 3}, 60},
                          {{4, 2, 64}, 80, 20, {4, 2}, 0, 0, true, 500},
                          {{2, 1, 128}, 70, 9, {3, 2}, 0, 2, false, 500},
                          {{1, 1, 20}, 290, 270, {3, 1}, 0, 0, false, 300}});
}

TEST_CASE("split slots of any bits are attended so", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  std::vector<SplitCase> cases;
  for (int bits = 0; bits < 16; ++bits) cases.push_back({{1, 1, 64}, 60, 9, {1 + bits / 4, 1 + bits % 4}});
  check_attention(place, cases);
}

TEST_CASE("a step that reads all tokens with all bits has the bits of int8", "[kernels][kv]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const HeadShape shape = GENERATE(HeadShape{4, 4, 64}, HeadShape{4, 1, 128}, HeadShape{8, 1, 80}, HeadShape{2, 1, 20});
  const auto run_with = [&](Keep keep, Cold cold) {
    SlotsUnderTest run(place, 1, shape, keep.heavy > 0 ? keep.budget() + 2 : 170, DType::i8, Scoring::attention, false,
                       cold);
    run.cap = 5, run.sink_logits = normal(shape.heads, 4);
    run.prefill(some_tokens(150, shape, 5), {150}, {keep}, 0.2f);
    std::vector<float> out;
    for (int t = 150; t < 160; ++t)
      for (const float x : run.step(some_tokens(1, shape, static_cast<std::uint64_t>(t)), {0}, {t}, {keep}, 0.2f).out)
        out.push_back(x);
    return std::pair{out, run.kept(0, 0)};
  };
  for (const Keep& keep : {all_stay(0), Keep{.heavy = 60, .recent = 30, .sinks = 3}}) {
    const auto whole = run_with(keep, {});
    for (const CoarseBits bits : {CoarseBits{4, 2}, {3, 1}, {2, 3}, {1, 4}})
      for (const int read : {0, 160, 5000}) {
        if (!place.on_host && (bits.keys != 3 || read > 160)) continue;  // nvcc's code runs slowly there
        CAPTURE(place.name, shape.heads, shape.head_dim, bits.keys, bits.values, read, keep.heavy);
        Keep reads = keep;
        reads.read = read;
        CHECK(run_with(reads, {0, bits, true}) == whole);
      }
  }
}

TEST_CASE("split slots give the same bits with every vector, and skip empty ones", "[kernels][kv]") {
  const HeadShape shape = GENERATE(HeadShape{2, 2, 64}, HeadShape{4, 1, 128}, HeadShape{6, 2, 80}, HeadShape{8, 1, 20});
  const CoarseBits bits = GENERATE(CoarseBits{4, 2}, CoarseBits{3, 1}, CoarseBits{2, 3}, CoarseBits{1, 4});
  const Keep keep{.heavy = 48, .recent = 13, .sinks = 2, .read = 11};
  std::vector<float> first_out;
  std::map<int, float> first_kept;
  for (const Place* place : every_place()) {
    if (!place->on_host || place->name.find("plain") != std::string::npos) continue;
    for (const int slots : {62, 70, 117}) {
      CAPTURE(place->name, slots);
      SlotsUnderTest run(*place, 1, shape, slots, DType::i8, Scoring::attention, false, {0, bits, true});
      run.prefill(some_tokens(80, shape, 5, 2), {80}, {keep}, 0.2f);
      std::vector<float> out;
      for (int t = 80; t < 104; ++t) {
        const auto got = run.step(some_tokens(1, shape, static_cast<std::uint64_t>(10 * t), 2), {0}, {t}, {keep}, 0.2f);
        out.insert(out.end(), got.out.begin(), got.out.end());
      }
      if (first_out.empty()) first_out = out, first_kept = run.kept(0, 0);
      CHECK(out == first_out);
      CHECK(run.kept(0, 0) == first_kept);
    }
  }
}

TEST_CASE("split slots that make no sense are refused", "[kernels][kv]") {
  const HeadShape shape{1, 1, 64};
  const auto prefill = [&](const Place& place, DType type, Cold cold, Keep keep, bool rest = false) {
    SlotsUnderTest run(place, 1, shape, 12, type, Scoring::none, rest, cold);
    run.prefill(some_tokens(10, shape, 5), {10}, {keep});
  };
  const Place& place = *every_place().front();
  const Keep keep = all_stay(3);
  CHECK_NOTHROW(prefill(place, DType::i8, {0, {4, 2}, true}, keep));
  CHECK_THROWS_WITH(prefill(place, DType::i8, {0, {4, 5}, true}, keep),
                    "keep_prompt: coarse rows have 5 bits, wanted 1 to 4");
  CHECK_THROWS_WITH(prefill(place, DType::f16, {0, {4, 2}, true}, keep),
                    "keep_prompt: split slots of float16, wanted int8");
  CHECK_THROWS_WITH(prefill(place, DType::i8, {2, {4, 2}, true}, keep),
                    "keep_prompt: slots are split and have cold rows, wanted one of the two");
  CHECK_THROWS_WITH(prefill(place, DType::i8, {0, {4, 2}, true}, keep, true),
                    "keep_prompt: slots are split and have a rest, wanted one of the two");
  CHECK_THROWS_WITH(prefill(place, DType::i8, {0, {4, 2}, true}, all_stay(-1)),
                    "keep_prompt: keep reads -1 tokens with all bits, wanted 0 (all) or more");
}
