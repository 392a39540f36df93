// Prefill and decode attention against fp64, on every place.
#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/error.h"
#include "kernels/linear/linear_cpu.h"
#include "tests/support/attention_runs.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::ColumnSums;
using kernels::DecodeAttention;
using kernels::Keep;
using kernels::PrefillAttention;
using kernels::Scoring;
using kernels::Statistic;

TEST_CASE("prefill attention and column sums match fp64 on every place", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  for (const PromptShape& shape : kShapes) {
    const int window = shape.tokens() % 2 == 0 ? 16 : 0;
    CAPTURE(place.name, name_of(dtype), shape.heads, shape.kv_heads, shape.head_dim, shape.tokens(), window);
    check_against_fp64(place, dtype, Prompts(shape, dtype, /*seed=*/11), window);
  }
}

TEST_CASE("prompts within a sliding window match fp64 on every place", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  for (const PromptShape& shape : kShapes)
    for (const int sliding : {1, 5, 64, 100}) {
      // A sample: the simulated GPU is slow.
      if (!place.on_host && (shape.heads + shape.tokens() + sliding + static_cast<int>(dtype)) % 8 != 0) continue;
      const int window = shape.tokens() % 2 == 0 ? 16 : 0;
      CAPTURE(place.name, name_of(dtype), shape.heads, shape.head_dim, shape.tokens(), window, sliding);
      Prompts prompts(shape, dtype, /*seed=*/11);
      prompts.sliding = sliding;
      check_against_fp64(place, dtype, prompts, window);
      prompts.sliding = 1000;  // of more tokens than a prompt: the bits of none
      const auto wide = prompts.run(place, dtype, window);
      prompts.sliding = 0;
      const auto none = prompts.run(place, dtype, window);
      CHECK((wide.out == none.out && wide.lse == none.lse && wide.score == none.score));
    }
}

TEST_CASE("prompts in bfloat16 arithmetic attend as rounded queries do", "[kernels][bf16]") {
  const auto cpu = std::find_if(every_place().begin(), every_place().end(), [](auto p) { return p->on_host; });
  for (const PromptShape& shape : kShapes)
    for (const int sliding : {0, 5, 100})
      for (const bool shaped : {false, true}) {
        CAPTURE(shape.heads, shape.head_dim, shape.tokens(), sliding, shaped);
        Prompts exact(shape, DType::bf16, /*seed=*/21);
        exact.sliding = sliding;
        if (shaped) exact.logits = {20, std::vector<float>(static_cast<std::size_t>(shape.heads), 0.5f)};
        exact.q = rounded(exact.q, DType::bf16);
        Prompts tiles = exact;
        tiles.arithmetic = Arithmetic::bfloat16;
        const auto wanted = exact.run(**cpu, DType::bf16, 0), got = tiles.run(**cpu, DType::bf16, 0);
        const auto differs = [](const std::vector<float>& a, const std::vector<float>& b) {
          double most = 0;
          for (std::size_t i = 0; i < a.size(); ++i) most = larger_error(most, std::abs(double(a[i]) - b[i]));
          return most;
        };
        if (kernels::multiplies_by_tiles() && shape.tokens() > 100) CHECK(got.out != wanted.out);
        CHECK(differs(got.lse, wanted.lse) < 1e-5);
        CHECK(differs(got.score, wanted.score) < 1e-4 * shape.tokens());
        CHECK(differs(got.out, wanted.out) < 0.01);  // weights that sum to 1, each within 2^-9 of itself
      }
}

TEST_CASE("a GPU's prefill attention takes queries of the keys' type, and writes such", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  if (place.on_host) return;
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  const PromptShape shape = GENERATE(from_range(std::begin(kShapes), std::end(kShapes)));
  CAPTURE(place.name, name_of(dtype), shape.heads, shape.head_dim);
  Prompts prompts(shape, dtype, 7);
  prompts.q = rounded(prompts.q, dtype);
  const auto wide = prompts.run(place, dtype, 0), narrow = prompts.run(place, dtype, 0, Statistic::sum, dtype);
  CHECK(narrow.out == rounded(wide.out, dtype));
  CHECK(narrow.lse == wide.lse);
  CHECK(narrow.score == wide.score);
}

TEST_CASE("prefill attention survives logits far from zero", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  CAPTURE(place.name);
  Prompts prompts({1, 1, 16, {0, 150}}, DType::f32, 3);
  prompts.scale = 25;  // logits of about 100: the largest of a row moves on by more than exp's range
  const auto expected = attend_in_fp64(prompts.shape, prompts.q, prompts.k, prompts.v, 25, 0);
  const auto got = prompts.run(place, DType::f32, 0);
  CHECK_THAT(got.out, near(expected.out, 1e-4));  // an fp32 logit of 100 is known to 4e-6
  CHECK_THAT(got.score, near(expected.score, 1e-4));
}

TEST_CASE("a prompt's attention does not depend on what shares the call, nor on threads or instruction set",
          "[kernels]") {
  const PromptShape shape{4, 2, 24, {0, 70, 71, 230}};
  const DType dtype = GENERATE(DType::f16, DType::bf16);
  Prompts all(shape, dtype, 5);
  if (dtype == DType::bf16) all.arithmetic = Arithmetic::bfloat16;
  const auto expected = all.run(*every_place().front(), dtype, 0);
  for (const Place* place : every_place()) {
    if (!place->exact() || place->name.find("plain") != std::string::npos)
      continue;                                                            // multiplies and adds without fusing
    if (dtype == DType::bf16 && place != every_place().front()) continue;  // only one may round queries
    CAPTURE(place->name);
    const auto got = all.run(*place, dtype, 0);
    CHECK(got.out == expected.out);
    CHECK(got.lse == expected.lse);
    CHECK(got.score == expected.score);
  }
  for (std::size_t n = 0; n + 1 < shape.offsets.size(); ++n) {
    const int begin = shape.offsets[n], length = shape.offsets[n + 1] - begin;
    Prompts one({4, 2, 24, {0, length}}, dtype, 5);
    one.arithmetic = all.arithmetic;
    const auto cut = [&](const std::vector<float>& x, int cols) {
      return std::vector<float>(x.begin() + begin * cols, x.begin() + (begin + length) * cols);
    };
    one.q = cut(all.q, 96), one.k = cut(all.k, 48), one.v = cut(all.v, 48);
    const auto alone = one.run(*every_place().front(), dtype, 0);
    CHECK(alone.out == cut(expected.out, 96));
    for (int g = 0; g < 2; ++g)
      for (int j = 0; j < length; ++j)
        CHECK(alone.score[static_cast<std::size_t>(g * length + j)] ==
              expected.score[static_cast<std::size_t>(g * 230 + begin + j)]);
  }
}

TEST_CASE("prefill attention reads slices of a wider matrix", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const int t = 37, heads = 2, d = 20, cols = heads * d;
  Prompts prompts({heads, heads, d, {0, t}}, DType::f32, 9);
  std::vector<float> packed;
  for (int i = 0; i < t; ++i)
    for (const auto* x : {&prompts.q, &prompts.k, &prompts.v})
      packed.insert(packed.end(), x->begin() + i * cols, x->begin() + (i + 1) * cols);
  Array qkv(place, packed, t, 3 * cols),
      out(place, std::vector<float>(static_cast<std::size_t>(2 * t * cols), 8.0f), t, 2 * cols);
  place.run(PrefillAttention{qkv.columns(0, cols),
                             qkv.columns(cols, cols),
                             qkv.columns(2 * cols, cols),
                             prompts.shape.offsets,
                             heads,
                             heads,
                             d,
                             prompts.scale,
                             out.columns(0, cols),
                             {}});
  const auto expected = prompts.run(place, DType::f32, 0).out;
  const auto got = out.host();
  for (int i = 0; i < t; ++i)
    for (int c = 0; c < 2 * cols; ++c)
      REQUIRE(got[static_cast<std::size_t>(i * 2 * cols + c)] ==
              (c < cols ? expected[static_cast<std::size_t>(i * cols + c)] : 8.0f));
}

TEST_CASE("decode attention matches fp64 on every place", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  struct Shape {
    int rows, heads, kv_heads, head_dim, slots;
  };
  for (const Shape s :
       {Shape{1, 1, 1, 1, 1}, Shape{2, 1, 1, 12, 5}, Shape{3, 4, 4, 64, 40}, Shape{1, 8, 2, 80, 33},
        Shape{2, 7, 1, 128, 16}, Shape{2, 2, 1, 160, 100}, Shape{1, 6, 2, 40, 70}, Shape{2, 8, 2, 64, 70},
        Shape{4, 8, 1, 64, 5}, Shape{4, 4, 1, 128, 130}, Shape{4, 8, 1, 128, 37}, Shape{1, 8, 1, 64, 700},
        Shape{1, 12, 1, 64, 530}, Shape{1, 1, 1, 128, 520}, Shape{2, 4, 1, 512, 40}, Shape{1, 2, 1, 320, 600}}) {
    CAPTURE(place.name, name_of(dtype), s.rows, s.heads, s.kv_heads, s.head_dim, s.slots);
    const Step step(s.rows, s.heads, s.kv_heads, s.head_dim, s.slots, dtype, /*seed=*/21);
    const auto expected = step.in_fp64(0.75);
    auto got = step.run(place, Scoring::attention, 0.75f);
    CHECK_THAT(got.out, near(expected.out, tolerance(DType::f32)));
    for (std::size_t i = 0; i < got.position.size(); ++i)
      if (got.position[i] < 0) got.score[i] = 0;  // an empty slot's score means nothing
    CHECK_THAT(got.score, near(expected.score, tolerance(DType::f32)));
    for (const std::int32_t evicted : got.evicted) CHECK(evicted == -1);
  }
}

TEST_CASE("a decoded row does not depend on the other rows, the capacity, threads or instruction set", "[kernels]") {
  Step step(3, 4, 2, 20, 37, DType::f16, 31);
  step.keep.assign(3, {8, 8, 2, 0});  // everything is over the budget: each head evicts
  const auto expected = step.run(*every_place().front(), Scoring::attention);
  for (const Place* place : every_place()) {
    if (!place->exact() || place->name.find("plain") != std::string::npos) continue;
    CAPTURE(place->name);
    const auto got = step.run(*place, Scoring::attention);
    CHECK(got.out == expected.out);
    CHECK(got.evicted == expected.evicted);
    CHECK(got.free_slot == expected.free_slot);
  }
  for (const int stride : {38, 64, 200}) {
    Step wide = step;
    wide.stride = stride;
    const auto got = wide.run(*every_place().front(), Scoring::attention);
    CHECK(got.out == expected.out);
    CHECK(got.evicted == expected.evicted);
  }
  Step first = step;  // the block stays, but only its first row takes a step
  first.rows = 3;
  const std::vector<float> out = [&] {
    const Place& place = *every_place().front();
    Array q(place, std::vector<float>(step.q.begin(), step.q.begin() + 80), 1, 80), o(place, 1, 80);
    Array k(place, std::vector<float>(step.k.begin(), step.k.begin() + 40), 1, 40),
        v(place, std::vector<float>(step.v.begin(), step.v.begin() + 40), 1, 40);
    SlotArrays kv(place, 3, 2, 37, 20, DType::f16);
    kv.k.set(step.slot_k), kv.v.set(step.slot_v), kv.score.set(step.score), kv.position.set(step.position),
        kv.free_slot.set(step.free_slot);
    const std::int32_t sequence[] = {step.sequence[0]}, token[] = {step.token[0]};
    const Keep keep[] = {step.keep[0]};
    place.run(DecodeAttention{
        q, k, v, sequence, token, keep, 4, step.scale, 1, Scoring::attention, 0, kv.block, {}, o, {}, {}});
    return o.host();
  }();
  CHECK(out == std::vector<float>(expected.out.begin(), expected.out.begin() + 80));
}

TEST_CASE("decode attention refuses a step without a free slot, and changes nothing", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  Array q(place, normal(8, 1), 1, 8), k(place, normal(8, 2), 1, 8), v(place, normal(8, 3), 1, 8), out(place, 1, 8);
  SlotArrays kv(place, 1, 1, 3, 8, DType::f32);
  const std::vector<std::int32_t> full{0, 1, 2};
  kv.position.set(full);
  kv.free_slot.set(std::vector<std::int32_t>{-1});
  const std::int32_t sequence[] = {0}, token[] = {3};
  const Keep keep[] = {{0, 100, 0, 0}};
  const DecodeAttention op{q, k, v, sequence, token, keep, 1, 1, 1, Scoring::none, 0, kv.block, {}, out, {}, {}};
  if (place.exact()) CHECK_THROWS_AS(place.run(op), UsageError);
  else place.run(op);  // a GPU cannot say so; its output is no number
  CHECK(kv.position.ints() == full);
  CHECK(std::isnan(out.host()[0]));
}

TEST_CASE("attention refuses shapes that disagree, and says what it wanted", "[kernels]") {
  const Place& place = *every_place().front();
  Array q(place, 4, 32), k(place, 4, 16), v(place, 4, 15), out(place, 4, 32);
  const std::vector<std::int32_t> offsets{0, 4}, short_offsets{0, 3};
  PrefillAttention op{q, k, v, offsets, 4, 2, 8, 1, out, {}};
  CHECK_THROWS_WITH(place.run(op), "prefill_attention: v is [4, 15], wanted [4, 16]: 2 kv_heads of 8");
  op.v = k, op.heads = 3;
  CHECK_THROWS_WITH(place.run(op),
                    "prefill_attention: 3 heads of 8 over 2 kv_heads; the heads must be a multiple of the kv_heads");
  op.heads = 4, op.offsets = short_offsets;
  CHECK_THROWS_WITH(place.run(op), "prefill_attention: offsets end with 3, wanted 4, the tokens");

  SlotArrays kv(place, 2, 2, 4, 8, DType::f16);
  Array row(place, 1, 32), one(place, 1, 16), result(place, 1, 32);
  const std::int32_t sequence[] = {2}, token[] = {0};
  Keep keep[] = {{2, 1, 0, 0}};
  const DecodeAttention decode{row, one,      one, sequence, token, keep, 4, 1, 1, Scoring::attention,
                               0,   kv.block, {},  result,   {},    {}};
  CHECK_THROWS_WITH(place.run(decode), "decode_attention: sequence 2 of a block of 2");
  DecodeAttention sinks = decode;
  const std::int32_t good[] = {1};
  sinks.sequence = good;
  keep[0].sinks = 3;
  CHECK_THROWS_WITH(place.run(sinks),
                    "decode_attention: keep is heavy 2, recent 1, sinks 3, grace 0; wanted a budget of at "
                    "least 1, with sinks and grace inside heavy");
  keep[0] = {2, 1, 0, 0, -1};
  CHECK_THROWS_WITH(place.run(sinks),
                    "decode_attention: keep has room for 3 tokens and spare -1; wanted spare from 0 on");
  keep[0].spare = 0;
  const Array stored(place, 4, 16, DType::f16);
  const kernels::KeepPrompt prompt{.k = stored,
                                   .v = stored,
                                   .score = {},
                                   .offsets = offsets,
                                   .sequence = good,
                                   .keep = keep,
                                   .scoring = Scoring::none,
                                   .seed = 0,
                                   .slots = kv.block,
                                   .pool = 2,
                                   .work = {}};
  CHECK_THROWS_WITH(place.run(prompt), "keep_prompt: pool is 2, wanted an odd number from 1 on");
}
