// Compares the ops that the executor recorded, each when it had ended, with the schedule.
#include "runtime/engine/executor.h"

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/places.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using policy::Op;
using policy::Schedule;
using policy::Trace;

namespace {

/// What a GPU does is timed as the host comes to see it, lane by lane.
const bool kTimesAreExact = !on_gpu();

auto identity_of(const Op& op) {
  return std::tuple(op.kind, op.part, op.lane, op.sweep, op.batch, op.subject, op.from, op.to, op.unit_slot, op.kv_slot,
                    op.activation_slot);
}

/// The first fault in when the ops ran, or nothing.
std::string fault_of(const Schedule& schedule, const Trace& trace) {
  if (trace.spans.size() != schedule.ops.size()) return "spans are missing";
  std::array<double, offload::kLanes.size()> lane_end{};
  for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
    const Op& op = schedule.ops[i];
    const Trace::Span& span = trace.spans[i];
    double& before = lane_end[static_cast<std::size_t>(op.lane)];
    const std::string name = "op " + std::to_string(i);
    if (!(span.end > 0)) return name + " was never recorded";
    if (span.end < span.begin) return name + " ended before it began";
    if (span.begin < before) return name + " began before the op before it on its lane had ended";
    for (const std::uint32_t dep : schedule.deps_of(op))
      if (trace.spans[dep].end > span.begin)
        return name + " began before op " + std::to_string(dep) + ", its dependency, had ended";
    before = span.end;
  }
  return {};
}

/// Whether two schedules hold the same ops in the same order.
bool same_ops(const Schedule& a, const Schedule& b) {
  return std::equal(a.ops.begin(), a.ops.end(), b.ops.begin(), b.ops.end(),
                    [](const Op& x, const Op& y) { return identity_of(x) == identity_of(y); });
}

/// The ops that the simulator charges, in its order.
Schedule simulated(const Schedule& schedule) {
  Schedule visited;
  policy::simulate(schedule, [&](const Op& op, bool) {
    visited.ops.push_back(op);
    return 1.0;
  });
  return visited;
}

}  // namespace

TEST_CASE("the executor runs exactly the ops of the schedule, in its order, and the simulator the same",
          "[runtime][executor]") {
  const bool overlap = GENERATE(true, false), on_host = GENERATE(false, true);
  const bool sparse = GENERATE(false, true);
  CAPTURE(overlap, on_host, sparse);
  const TemporaryFolder spill;
  const auto source =
      runtime::open_model(data_path("golden") / (sparse ? "moe-qwen2-f16" : "prenorm-tied-f16"), "auto", "");
  std::vector<Prompt> prompts;
  const int more = on_gpu() && !exhaustive() ? 2 : 8;  // tokens, from one prompt to the next
  for (int i = 0; i < 10; ++i)
    prompts.push_back({std::vector<std::int32_t>(static_cast<std::size_t>(1 + 3 * i), 5), 1 + more * i, {}});
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 2;
  policy.num_gpu_batches = 3;
  policy.continuous = false;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{0.3, 0.3, 0.4}};
  policy.attention_on_host = on_host ? 1 : 0;
  if (sparse) policy.experts_on_host = 0.5;
  policy.overlap = overlap;
  Engine engine(*source, policy, prompts, {.backend = backend_name(), .disk_directory = spill.path().string()});

  std::vector<int> sweeps;  // of each segment, in order
  std::vector<std::string> faults;
  engine.session().executor().set_trace([&](const Schedule& schedule, const Trace& trace) {
    const int first = schedule.ops.front().sweep, count = schedule.ops.back().sweep - first + 1;
    for (int step = first; step < first + count; ++step) sweeps.push_back(step);
    Schedule planned = policy::zigzag(engine.session().footprint().shape, first, count);
    if (!overlap) planned = policy::serialize(std::move(planned));
    if (!same_ops(schedule, planned)) faults.push_back("the executor's schedule is not the planned one");
    if (!same_ops(schedule, simulated(planned))) faults.push_back("the simulator visits other ops");
    if (!kTimesAreExact) return;
    if (const std::string fault = fault_of(schedule, trace); !fault.empty()) faults.push_back(fault);
    if (!overlap && trace.seconds() > 0) {
      for (std::size_t i = 1; i < trace.spans.size(); ++i)
        if (trace.spans[i].begin < trace.spans[i - 1].end)
          faults.push_back("op " + std::to_string(i) + " overlaps another");
    }
  });
  engine.run();

  CHECK(faults == std::vector<std::string>{});
  std::vector<int> expected;  // by the longest of the first block, then of the second
  for (const int longest : {1 + 5 * more, 1 + 9 * more})
    for (int step = 0; step < longest; ++step) expected.push_back(step);
  CHECK(sweeps == expected);
}

TEST_CASE("a block that is refilled takes fewer sweeps and is fuller", "[runtime]") {
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  std::vector<Prompt> prompts;
  for (int i = 0; i < 40; ++i) prompts.push_back({{1, 2, i}, i % 8 == 0 ? 32 : 4, {}});
  const auto totals_of = [&](bool continuous) {
    policy::PartialPolicy policy;
    policy.gpu_batch_size = 4;
    policy.num_gpu_batches = 2;
    policy.weights = policy.kv = policy::Fractions{};
    policy.continuous = continuous;
    Engine engine(*source, policy, prompts);
    engine.run();
    return engine.session().executor().totals();
  };
  const runtime::Totals in_turn = totals_of(false), refilled = totals_of(true);
  CHECK(in_turn.first_tokens == 40);
  CHECK(refilled.first_tokens == 40);
  CHECK(in_turn.decode_tokens == refilled.decode_tokens);
  CHECK(in_turn.prompt_tokens == 40 * 3);
  CHECK(refilled.prompt_tokens == 40 * 3);
  CHECK(in_turn.late_prompt_tokens == 0);
  CHECK(refilled.late_prompt_tokens == 32 * 3);
  CHECK(refilled.decode_places < in_turn.decode_places * 2 / 3);
  CHECK(refilled.occupancy() > 1.4 * in_turn.occupancy());
}

TEST_CASE("prompts that pass the model in parts, and share their buffers, change no answer", "[runtime]") {
  if (on_gpu()) return;  // more tokens fill it than a short test has
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  std::vector<Prompt> prompts;
  for (int i = 0; i < 120; ++i) {
    Prompt prompt{{}, 1 + i % 4, {}};
    for (int k = 0; k < 40; ++k) prompt.ids.push_back((i * 7 + k * (1 + i % 5)) % 50);
    prompts.push_back(prompt);
  }
  policy::PartialPolicy one;
  one.gpu_batch_size = 8;
  one.num_gpu_batches = 1;
  one.weights = one.kv = policy::Fractions{};
  Engine alone(*source, one, prompts);
  const std::vector<Answer> expected = alone.run();
  for (const bool on_host : {false, true})
    for (const bool continuous : {false, true}) {
      CAPTURE(on_host, continuous);
      const policy::Fractions home = on_host ? policy::Fractions{{0, 1, 0}} : policy::Fractions{};
      policy::PartialPolicy policy;
      policy.gpu_batch_size = 26;
      policy.num_gpu_batches = 4;
      policy.continuous = continuous;
      policy.weights = policy.kv = policy.activations = home;
      policy.attention_on_host = on_host ? 1 : 0;
      Engine engine(*source, policy, prompts);
      const policy::Footprint& print = engine.session().footprint();
      CHECK(print.shape.prefill_batches == 2);  // of 1040 tokens each
      CHECK(print.activation_bytes() == 2 * print.prefill_hidden_bytes + 2 * print.decode_hidden_bytes);
      CHECK(print.decode_hidden_bytes <= print.prefill_hidden_bytes);
      const std::vector<Answer> answers = engine.run();
      for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], answers[i]).empty());
    }
}

TEST_CASE("of sequences that begin with one prompt in one batch one is computed", "[runtime]") {
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const bool continuous = GENERATE(false, true);
  std::vector<Prompt> prompts;
  for (int i = 0; i < 16; ++i) prompts.push_back({{1, 2, i / 4, 7, 9}, 1 + i % 3, {}});
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 8;
  policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy::Fractions{};
  policy.retention = policy::Retention::from_text("h2o:1:2");
  policy.continuous = continuous;
  Engine engine(*source, policy, prompts);
  const std::vector<Answer> answers = engine.run();
  for (std::size_t i = 1; i < answers.size(); ++i) {
    if (i / 4 != (i - 1) / 4) continue;
    CHECK(answers[i].logits[0] == answers[i - 1].logits[0]);
    CHECK(answers[i].tokens[0] == answers[i - 1].tokens[0]);
  }
  const runtime::Totals totals = engine.session().executor().totals();
  CHECK(totals.first_tokens == 16);
  CHECK(totals.prompt_tokens + totals.shared_prompt_tokens == 16 * 5);
  if (continuous) CHECK(totals.shared_prompt_tokens >= 6 * 5);  // those that join in another sweep compute their own
  else CHECK(totals.prompt_tokens == 4 * 5);
}

TEST_CASE("prompts that begin alike are computed once, and wait in their places for others that do", "[runtime]") {
  const auto source = runtime::open_model(data_path("golden") / "sharded-bf16", "auto", "");
  const std::string retention = GENERATE("full", "h2o:0.1:0.1", "snapkv:0.2:0.2:window=8");
  CAPTURE(retention);
  std::vector<Prompt> prompts;
  for (int i = 0; i < 40; ++i) {  // two prefixes in turn
    Prompt prompt{.ids = std::vector<std::int32_t>(80), .tokens = 1 + i % 5, .forced = {}};
    for (int t = 0; t < 80; ++t) prompt.ids[static_cast<std::size_t>(t)] = 4 + (t < 64 ? i % 2 * 7 + t : i + t) % 90;
    prompt.prefix = 64;
    prompts.push_back(prompt);
  }
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 8;
  policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy::Fractions{};
  policy.retention = policy::Retention::from_text(retention);
  policy.continuous = true;
  const auto run = [&](bool shares) {
    Engine engine(*source, policy, prompts, {.backend = "cpu"}, shares);
    std::vector<Answer> answers = engine.run();
    return std::pair(std::move(answers), engine.session().executor().totals());
  };
  const auto [alone, none] = run(false);
  const auto [shared, totals] = run(true);
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(alone[i], shared[i]).empty());
  CHECK(none.prompt_tokens == 40 * 80);
  CHECK(none.shared_prompt_tokens == 0);
  CHECK(totals.prompt_tokens + totals.shared_prompt_tokens == 40 * 80);
  // A prefix serves two sequences or more, although places become free one by one, and for either prefix in turn.
  CHECK(totals.prompt_tokens <= 40 * 16 + 40 * 64 / 2);
  if (retention == "full") CHECK(totals.prompt_tokens == 40 * 16 + 2 * 64);  // slots hold both from then on
}

TEST_CASE("choices of one prompt join a sweep together, although one prompt alone is as many tokens as may join",
          "[runtime]") {
  constexpr int kPlaces = 6;
  std::vector<runtime::Sequence> block(kPlaces);
  const auto begin = [](runtime::Sequence& place, int prompt) {
    place = {};
    place.tokens = {prompt, 7, 9}, place.prompt_tokens = 3, place.max_tokens = 1;
    place.keep = {{kernels::Keep{}}};
  };
  for (runtime::Sequence& place : block) begin(place, 0);
  const std::vector<int> waits{1, 1, 1, 1, 2, 2};  // prompts
  std::size_t next = 0;
  runtime::Waiting waiting{.count = std::ssize(waits),
                           .next = [&](runtime::Sequence& place) { begin(place, waits[next++]); }};
  waiting.next_shares = [&](const runtime::Sequence& place) { return waits[next] == place.tokens.front(); };
  runtime::Places places({.gpu_batch_size = kPlaces, .admitted_tokens = 3}, block, waiting);
  const auto finish_all = [&] {
    for (runtime::Sequence& place : block)
      if (place.finish == runtime::Finish::none) place.finish = runtime::Finish::length, places.finished(0);
  };
  const auto counts = [](const runtime::RowCounts& rows) { return std::pair(rows.prompt_tokens, rows.shared_tokens); };
  CHECK(counts(places.gather(0, true)) == std::pair<std::int64_t, std::int64_t>{3, 15});
  finish_all();
  CHECK(counts(places.gather(0, false)) == std::pair<std::int64_t, std::int64_t>{3, 9});
  finish_all();
  CHECK(counts(places.gather(0, false)) == std::pair<std::int64_t, std::int64_t>{3, 3});
  CHECK_FALSE(places.any_waiting());
}

TEST_CASE("prompts with more tokens than may begin in the first sweep begin in later ones, in their order",
          "[runtime]") {
  std::vector<runtime::Sequence> block(5);
  for (std::size_t i = 0; i < block.size(); ++i) {
    const std::size_t lengths[] = {7, 3, 4, 12, 1};
    block[i].tokens.assign(lengths[i], static_cast<std::int32_t>(i));
    block[i].prompt_tokens = std::ssize(block[i].tokens), block[i].max_tokens = 9;
    block[i].keep = {{kernels::Keep{}}};
  }
  const runtime::Waiting none;
  runtime::Places places({.gpu_batch_size = 5, .admitted_tokens = 3, .first_tokens = 10}, block, none);
  const auto begins = [&](bool prefill) {
    places.gather(0, prefill);
    const runtime::BatchRows& rows = places.rows(0);
    for (const std::int32_t place : rows.sequence) block[static_cast<std::size_t>(place)].tokens.push_back(1);
    return std::vector<std::int32_t>(rows.sequence.begin() + rows.begun, rows.sequence.end());
  };
  using Begun = std::vector<std::int32_t>;
  CHECK(begins(true) == Begun{0, 1});  // 10 tokens
  CHECK(begins(false) == Begun{2});    // at least 3
  CHECK(begins(false) == Begun{3});
  CHECK(begins(false) == Begun{4});
  CHECK(begins(false).empty());
  CHECK(places.rows(0).begun == 5);
}

TEST_CASE("log-probabilities are of what the model said, and what is forbidden is not chosen", "[runtime]") {
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 3, policy.num_gpu_batches = 2;
  policy.weights = policy.kv = policy.activations = policy::Fractions{};
  std::vector<Prompt> prompts;
  for (int i = 0; i < 6; ++i) prompts.push_back({{3 + i, 9, 4}, 6, {}});
  const auto plain = Engine(*source, policy, prompts).run();
  constexpr std::int64_t kLeast = 3;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    prompts[i].alternatives = static_cast<std::int32_t>(i) - 1;
    if (i % 2 == 1) continue;
    prompts[i].min_tokens = kLeast;
    prompts[i].suppressed_until_min.assign(plain[i].tokens.begin(), plain[i].tokens.begin() + kLeast);
  }
  const auto answers = Engine(*source, policy, prompts).run();
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    CAPTURE(i);
    const auto& [tokens, logprobs, token_logprobs, logits] = answers[i];
    const auto& suppressed_until_min = prompts[i].suppressed_until_min;
    const std::size_t alternatives = i == 0 ? 0 : i - 1;
    REQUIRE(token_logprobs.chosen.size() == (i == 0 ? 0 : tokens.size()));
    REQUIRE(token_logprobs.top.size() == token_logprobs.chosen.size());
    if (suppressed_until_min.empty()) CHECK(tokens == plain[i].tokens);
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const bool bound = !suppressed_until_min.empty() && t < kLeast;
      for (const std::int32_t ender : suppressed_until_min)
        CHECK((logits[t][static_cast<std::size_t>(ender)] < -1e30f) == bound);
      if (bound) CHECK(std::count(suppressed_until_min.begin(), suppressed_until_min.end(), tokens[t]) == 0);
      if (i == 0 || (bound && t > 0)) continue;  // then what the model said is not known here
      std::vector<float> said = t == 0 ? plain[i].logits[0] : logits[t];
      double sum = 0;
      for (const float x : said) sum += std::exp(double(x));
      const auto logprob_of = [&](std::int32_t id) {
        return double(said[static_cast<std::size_t>(id)]) - std::log(sum);
      };
      CHECK(double(token_logprobs.chosen[t]) == Approx(logprob_of(tokens[t])).epsilon(1e-5));
      REQUIRE(token_logprobs.top[t].size() == alternatives);
      for (const auto& [token, logprob] : token_logprobs.top[t]) {
        CHECK(double(logprob) == Approx(logprob_of(token)).epsilon(1e-5));
        CHECK(said[static_cast<std::size_t>(token)] == *std::max_element(said.begin(), said.end()));
        said[static_cast<std::size_t>(token)] = -std::numeric_limits<float>::infinity();  // the next: of the rest
      }
    }
  }
}
