// Prompts that share a prefix: attention, scores and kept tokens are those of the whole prompts.
#include <catch2/catch.hpp>
#include <numeric>

#include "kernels/error.h"
#include "tests/support/attention_runs.h"

using namespace weft;
using namespace weft::test;
using kernels::ColumnSums;
using kernels::Keep;
using kernels::KeepPrompt;
using kernels::PrefillAttention;
using kernels::Scoring;
using kernels::Statistic;

namespace {

struct Case {
  int heads, kv_heads, head_dim, prefix;
  std::vector<int> own;  // rows of each prompt besides the prefix
  int observation = 0, sliding = 0;
  LogitShape logits = {};
};

const Case kCases[] = {
    {2, 1, 16, 64, {1, 70}},       {4, 2, 64, 128, {5, 130, 1}, 0, 0, {20, {0.5f, -1, 2, 0}}},
    {2, 2, 40, 192, {97, 33}, 32}, {4, 1, 24, 128, {3, 64}, 0, 100},
    {1, 1, 128, 64, {200}},        {2, 2, 20, 70, {1, 140}},
    {4, 2, 16, 40, {3, 50, 2}},
};

/// Of keys and values of this type: AMX, where there is any, rounds the queries of those of bf16 alone.
Arithmetic arithmetic_of(DType dtype) { return dtype == DType::bf16 ? Arithmetic::bfloat16 : Arithmetic::exact; }

/// What one prompt leaves: its rows' results, the scores of its tokens, and its slots.
struct Result {
  std::vector<float> out, lse, score;
  std::vector<std::vector<std::byte>> slots;
};

/// A matrix of `cols` columns that begins with the `first` columns of another.
std::vector<float> with_columns(const std::vector<float>& x, int rows, int first, int cols) {
  std::vector<float> wide(static_cast<std::size_t>(rows) * static_cast<std::size_t>(cols), 0.0f);
  for (int r = 0; r < rows; ++r)
    std::copy_n(x.begin() + std::ptrdiff_t{r} * first, first, wide.begin() + std::ptrdiff_t{r} * cols);
  return wide;
}

/// Runs all ops over prompts of which the first `prefix` rows are shared: `q`, `k` and `v` have them once.
struct Run {
  const Place& place;
  const Case& c;
  DType dtype;
  Scoring scoring;
  Statistic statistic = Statistic::sum;

  static std::vector<float> rows(const std::vector<float>& x, int cols, int first, int count) {
    return {x.begin() + std::ptrdiff_t{first} * cols, x.begin() + std::ptrdiff_t{first + count} * cols};
  }

  /// The prompts by themselves (`prefix` 0), or after the prefix, whose own scores and row sums are given.
  Result run(const std::vector<float>& q, const std::vector<float>& k, const std::vector<float>& v,
             std::vector<std::int32_t> offsets, int prefix, const std::vector<float>& before,
             const std::vector<float>& prefix_lse) const {
    const int t = offsets.back(), n = static_cast<int>(offsets.size()) - 1, d = c.head_dim;
    const auto whole = static_cast<int>(kernels::whole_begin(offsets, prefix, static_cast<std::size_t>(n)));
    const float scale = 1.5f / std::sqrt(static_cast<float>(d));
    Array aq(place, q, t, c.heads * d), ak(place, k, t, c.kv_heads * d, dtype), av(place, v, t, c.kv_heads * d, dtype);
    Array out(place, t, c.heads * d), lse(place, c.heads, t), score(place, c.kv_heads, whole),
        work(place, c.kv_heads, whole);
    const Array shared(place, before, c.kv_heads, static_cast<std::int64_t>(before.size()) / c.kv_heads);
    if (prefix > 0) lse.set(with_columns(prefix_lse, c.heads, prefix, t));
    place.run(PrefillAttention{aq, ak, av, offsets, c.heads, c.kv_heads, d, scale, out, lse, c.sliding, c.logits.cap,
                               c.logits.sink_logits, prefix});
    place.run(ColumnSums{aq, ak, lse, offsets, c.heads, c.kv_heads, d, scale, c.observation, score, statistic,
                         c.sliding, c.logits.cap, prefix, before.empty() ? ConstView() : ConstView(shared), 0,
                         arithmetic_of(dtype)});
    SlotArrays slots(place, n, c.kv_heads, 64, d, dtype, true, true);
    std::vector<std::int32_t> sequence(static_cast<std::size_t>(n));
    std::iota(sequence.begin(), sequence.end(), 0);
    const std::vector<Keep> keep(static_cast<std::size_t>(n), Keep{30, 20, 2, 0, 0});
    place.run(KeepPrompt{ak, av, scoring == Scoring::attention ? ConstView(score) : ConstView(), offsets, sequence,
                         keep, scoring, 5, slots.block, 3, work, prefix});
    Result result{out.host(), lse.host(), scoring == Scoring::keys ? work.host() : score.host(), {}};
    for (const Array* array : {&slots.k, &slots.v, &slots.score, &slots.position, &slots.free_slot, &slots.rest})
      result.slots.push_back(array->fetch());
    if (scoring == Scoring::keys) result.slots.push_back(slots.key_sum.fetch());
    return result;
  }
};

/// The columns of a matrix with `rows` rows.
std::vector<float> columns(const std::vector<float>& x, int rows, int first, int count) {
  const auto cols = static_cast<std::ptrdiff_t>(x.size()) / rows;
  std::vector<float> cut;
  for (int r = 0; r < rows; ++r)
    cut.insert(cut.end(), x.begin() + r * cols + first, x.begin() + r * cols + first + count);
  return cut;
}

}  // namespace

TEST_CASE("prompts that share a prefix give what each gives alone, on the CPU to the last bit", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  if (dtype == DType::bf16 && !place.on_host) return;
  const Scoring scoring = GENERATE(Scoring::attention, Scoring::keys);
  const Statistic statistic = GENERATE(Statistic::sum, Statistic::largest);
  if (scoring == Scoring::keys && statistic == Statistic::largest) return;
  for (const Case& c : kCases) {
    if (!place.on_host && c.prefix % kernels::kPrefixStep != 0) continue;
    if (!place.on_host && (c.head_dim + static_cast<int>(dtype) + static_cast<int>(statistic)) % 2 == 0) continue;
    CAPTURE(place.name, name_of(dtype), c.heads, c.head_dim, c.prefix, c.observation, c.sliding);
    const int n = static_cast<int>(c.own.size()), d = c.head_dim, p = c.prefix;
    const int t = p + std::accumulate(c.own.begin(), c.own.end(), 0);
    const auto q = normal(std::int64_t{t} * c.heads * d, 3),
               k = rounded(normal(std::int64_t{t} * c.kv_heads * d, 4), dtype),
               v = rounded(normal(std::int64_t{t} * c.kv_heads * d, 5), dtype);
    const Run run{place, c, dtype, scoring, statistic};
    const int q_cols = c.heads * d, kv_cols = c.kv_heads * d;
    std::vector<std::int32_t> offsets{p};
    for (const int own : c.own) offsets.push_back(offsets.back() + own);
    const Run scored{place, c, dtype, Scoring::attention, statistic};
    const int before_rows = c.observation > 0 ? 0 : kernels::whole_steps(p);
    const auto before = before_rows == 0
                            ? std::vector<float>()
                            : scored
                                  .run(Run::rows(q, q_cols, 0, before_rows), Run::rows(k, kv_cols, 0, before_rows),
                                       Run::rows(v, kv_cols, 0, before_rows), {0, before_rows}, 0, {}, {})
                                  .score;
    // The row sums of the prefix, for those of its rows that fill no whole block.
    const auto lse =
        run.run(Run::rows(q, q_cols, 0, p), Run::rows(k, kv_cols, 0, p), Run::rows(v, kv_cols, 0, p), {0, p}, 0, {}, {})
            .lse;
    const Result shared = run.run(q, k, v, offsets, p, before, lse);
    const auto near_enough = [&](const std::vector<float>& got, const std::vector<float>& wanted) {
      if (place.exact()) CHECK(got == wanted);
      else
        CHECK_THAT(got, near(std::vector<double>(wanted.begin(), wanted.end()), tolerance(place.product_type(dtype))));
    };
    for (int i = 0, column = 0; i < n; ++i) {
      const int own = c.own[static_cast<std::size_t>(i)], first = offsets[static_cast<std::size_t>(i)];
      const auto alone = [&](const std::vector<float>& x, int cols) {
        std::vector<float> all = Run::rows(x, cols, 0, p), rest = Run::rows(x, cols, first, own);
        all.insert(all.end(), rest.begin(), rest.end());
        return all;
      };
      const Result one = run.run(alone(q, q_cols), alone(k, kv_cols), alone(v, kv_cols), {0, p + own}, 0, {}, {});
      near_enough(Run::rows(shared.out, q_cols, first, own), Run::rows(one.out, q_cols, p, own));
      near_enough(columns(shared.lse, c.heads, first, own), columns(one.lse, c.heads, p, own));
      near_enough(columns(shared.score, c.kv_heads, column, p + own), one.score);
      column += p + own;
      for (std::size_t a = 0; place.exact() && a < one.slots.size(); ++a) {
        const std::size_t bytes = one.slots[a].size(), at = static_cast<std::size_t>(i) * bytes;
        CAPTURE(a);
        CHECK(std::equal(one.slots[a].begin(), one.slots[a].end(),
                         shared.slots[a].begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
  }
}

TEST_CASE("a prompt in several calls gives what it gives in one, on the CPU to the last bit", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16);
  if (dtype == DType::bf16 && !place.on_host) return;
  const Statistic statistic = GENERATE(Statistic::sum, Statistic::largest);
  struct Long {
    int heads, kv_heads, head_dim;
    std::vector<std::int32_t> ends;  // of the calls; the last one's is the prompt's
    int observation = 0, sliding = 0;
    LogitShape logits = {};
  };
  const std::vector<Long> cases{{2, 1, 16, {64, 128, 201}},
                                {4, 2, 64, {128, 384, 385}, 0, 0, {20, {0.5f, -1, 2, 0}}},
                                {2, 2, 40, {192, 256, 270}, 32},
                                {4, 1, 24, {64, 128, 192, 256, 300}, 0, 100},
                                {2, 1, 20, {128, 150}, 60, 70}};
  for (const Long& c : cases) {
    if (!place.on_host && (c.head_dim + static_cast<int>(dtype) + static_cast<int>(statistic)) % 2 == 0) continue;
    CAPTURE(place.name, name_of(dtype), c.heads, c.head_dim, c.observation, c.sliding);
    const int t = c.ends.back(), d = c.head_dim, q_cols = c.heads * d, kv_cols = c.kv_heads * d;
    const auto q = normal(std::int64_t{t} * q_cols, 3), k = rounded(normal(std::int64_t{t} * kv_cols, 4), dtype),
               v = rounded(normal(std::int64_t{t} * kv_cols, 5), dtype);
    const float scale = 1.5f / std::sqrt(static_cast<float>(d));
    const Array ak(place, k, t, kv_cols, dtype), av(place, v, t, kv_cols, dtype);
    // The scores are those of all calls; queries and results are a call's own.
    const auto run = [&](std::int32_t begin, std::int32_t end, const Array& score, bool scored) {
      const std::int32_t count = end - begin, offsets[] = {begin, end};
      const Array aq(place, Run::rows(q, q_cols, begin, count), count, q_cols), out(place, count, q_cols),
          lse(place, c.heads, count);
      const ConstView keys = ConstView(ak).slice(0, end), values = ConstView(av).slice(0, end);
      place.run(PrefillAttention{aq, keys, values, offsets, c.heads, c.kv_heads, d, scale, out, lse, c.sliding,
                                 c.logits.cap, c.logits.sink_logits, begin, begin, arithmetic_of(dtype)});
      const int counted = std::min(count, c.observation - (t - end));  // of the last rows
      if (c.observation == 0 || counted > 0) {
        ColumnSums sums{aq,
                        keys,
                        lse,
                        offsets,
                        c.heads,
                        c.kv_heads,
                        d,
                        scale,
                        std::max(0, counted),
                        View(score).columns(0, end),
                        statistic,
                        c.sliding,
                        c.logits.cap,
                        begin};
        sums.q_begin = begin, sums.arithmetic = arithmetic_of(dtype);
        if (c.observation == 0) sums.observation = 0;
        if (scored) sums.before = View(score).columns(0, begin);
        place.run(sums);
      }
      return std::pair(out.host(), lse.host());
    };
    const Array whole_score(place, c.kv_heads, t), score(place, c.kv_heads, t);
    const auto [out, lse] = run(0, t, whole_score, false);
    const auto near_enough = [&](const std::vector<float>& got, const std::vector<float>& wanted) {
      if (place.exact()) CHECK(got == wanted);
      else
        CHECK_THAT(got, near(std::vector<double>(wanted.begin(), wanted.end()), tolerance(place.product_type(dtype))));
    };
    std::int32_t begin = 0;
    bool scored = false;
    for (const std::int32_t end : c.ends) {
      const auto [own_out, own_lse] = run(begin, end, score, scored);
      near_enough(own_out, Run::rows(out, q_cols, begin, end - begin));
      near_enough(own_lse, columns(lse, c.heads, begin, end - begin));
      scored = c.observation == 0 || c.observation > t - end;
      begin = end;
    }
    near_enough(score.host(), whole_score.host());
  }
}

TEST_CASE("a decode step may read the slots of another sequence that hold the same", "[kernels]") {
  const Place& place = *GENERATE(from_range(every_place()));
  const DType dtype = GENERATE(DType::f32, DType::f16, DType::bf16, DType::i8);
  struct Shape {
    int heads, kv_heads, head_dim, slots, alike;
  };
  constexpr int kRows = 5;
  for (const Shape s : {Shape{4, 2, 64, 70, 40}, Shape{3, 1, 20, 37, 32}, Shape{2, 2, 128, 201, 199}}) {
    CAPTURE(place.name, name_of(dtype), s.heads, s.head_dim, s.alike);
    const int q_cols = s.heads * s.head_dim, kv_cols = s.kv_heads * s.head_dim;
    const Array q(place, normal(std::int64_t{kRows} * q_cols, 1), kRows, q_cols);
    // Prompts of which the first tokens are the same, but for the last one, which has nothing of theirs.
    const int prompt = s.slots - 2;
    const std::int64_t tokens = std::int64_t{kRows} * prompt;
    auto k = normal(tokens * kv_cols, 2), v = normal(tokens * kv_cols, 3);
    for (auto* rows : {&k, &v})
      for (int row = 1; row + 1 < kRows; ++row)
        std::copy_n(rows->begin(), std::ptrdiff_t{s.alike} * kv_cols,
                    rows->begin() + std::ptrdiff_t{row} * prompt * kv_cols);
    std::vector<std::int32_t> offsets, sequence(kRows);
    for (int row = 0; row <= kRows; ++row) offsets.push_back(row * prompt);
    std::iota(sequence.begin(), sequence.end(), 0);
    const std::vector<Keep> keep(kRows, Keep{0, s.slots, 0, 0});
    const std::vector<std::int32_t> token(kRows, prompt);
    const std::vector<kernels::AlikeSlots> alike{{0, 0}, {0, s.alike}, {0, s.alike}, {0, s.alike}, {4, s.slots}};
    // `spoilt`: the slots that need not be read are no numbers.
    const auto run = [&](std::span<const kernels::AlikeSlots> reads, bool spoilt) {
      SlotArrays slots(place, kRows, s.kv_heads, s.slots, s.head_dim, dtype);
      const DType given = is_quantised(dtype) ? DType::f32 : dtype;
      auto own_k = k, own_v = v;
      for (auto* rows : {&own_k, &own_v})
        for (int row = 1; spoilt && row + 1 < kRows; ++row)
          std::fill_n(rows->begin() + std::ptrdiff_t{row} * prompt * kv_cols,
                      std::ptrdiff_t{s.alike} / 16 * 16 * kv_cols, NAN);
      const Array ak(place, own_k, tokens, kv_cols, given), av(place, own_v, tokens, kv_cols, given);
      place.run(KeepPrompt{ak, av, {}, offsets, sequence, keep, Scoring::none, 0, slots.block, 1, {}, 0});
      const Array new_k(place, normal(std::int64_t{kRows} * kv_cols, 4), kRows, kv_cols),
          new_v(place, normal(std::int64_t{kRows} * kv_cols, 5), kRows, kv_cols);
      Array out(place, kRows, q_cols);
      place.run(kernels::DecodeAttention{.q = q,
                                         .k = new_k,
                                         .v = new_v,
                                         .sequence = sequence,
                                         .position = token,
                                         .keep = keep,
                                         .heads = s.heads,
                                         .scale = 0.3f,
                                         .slots = slots.block,
                                         .home = {},
                                         .out = out,
                                         .probabilities = {},
                                         .evicted = {},
                                         .alike = reads});
      return std::tuple(out.host(), slots.position.ints(), slots.free_slot.ints());
    };
    const auto expected = run({}, false);
    CHECK(run(alike, false) == expected);
    if (place.on_host && !is_quantised(dtype)) CHECK(run(alike, true) == expected);
  }
}

TEST_CASE("a prefix that does not fit its rows is refused", "[kernels]") {
  const Place& place = *every_place().front();
  const Array rows(place, 100, 16), lse(place, 1, 100), score(place, 1, 100);
  const std::int32_t offsets[] = {64, 100};
  PrefillAttention attention{rows, rows, rows, offsets, 1, 1, 16, 1, rows, {}};
  attention.prefix = -1;
  CHECK_THROWS_WITH(place.run(attention), "prefill_attention: prefix is -1, wanted 0 (none) or more");
  attention.prefix = 128;
  CHECK_THROWS_WITH(place.run(attention), "prefill_attention: offsets begin with 64, wanted at least 128");
  ColumnSums sums{rows, rows, lse, offsets, 1, 1, 16, 1, 40, score};
  sums.prefix = 64;
  CHECK_THROWS_WITH(place.run(sums), "column_sums: observation is 40, sequence 0 has 36 rows besides its prefix");
  attention.prefix = 64, attention.q_begin = 65;
  CHECK_THROWS_WITH(place.run(attention), Catch::Contains("prefill_attention: k is [100, 16], wanted [165, 16]"));
  const Array few(place, 30, 16);
  attention.q = few, attention.out = few, attention.q_begin = 70;
  CHECK_THROWS_WITH(place.run(attention), "prefill_attention: q_begin is 70, wanted 0 to 64");
  sums.observation = 0, sums.before = rows;
  CHECK_THROWS_WITH(place.run(sums), Catch::Contains("column_sums: before is"));
  SlotArrays slots(place, 2, 1, 8, 16, DType::f32);
  const Array row(place, 1, 16);
  const std::int32_t sequence[] = {0}, token[] = {0};
  const Keep keep[] = {{0, 8, 0, 0}};
  const kernels::AlikeSlots alike[] = {{2, 4}}, two[] = {{0, 0}, {1, 0}};
  kernels::DecodeAttention step{.q = row,
                                .k = row,
                                .v = row,
                                .sequence = sequence,
                                .position = token,
                                .keep = keep,
                                .heads = 1,
                                .slots = slots.block,
                                .home = {},
                                .out = row,
                                .probabilities = {},
                                .evicted = {},
                                .alike = alike};
  CHECK_THROWS_WITH(place.run(step), "decode_attention: alike names 4 slots of sequence 2; there are 8 of 2 sequences");
  step.alike = two;
  CHECK_THROWS_WITH(place.run(step), "decode_attention: 2 numbers in alike, wanted 1, one for each row");
}
