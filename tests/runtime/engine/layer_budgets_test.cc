// Where layers or KV heads keep differently: what each of them holds after a run, on every tier.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/job/kv_rows.h"
#include "runtime/model/model_source.h"
#include "tests/runtime/engine/slot_records.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

constexpr std::int64_t kPrompt = 50, kTokens = 30, kLookedAt = 1;

std::vector<Prompt> prompts_of(int vocab) {
  std::vector<Prompt> prompts(6);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    for (std::int64_t t = 0; t < kPrompt; ++t)
      prompts[i].ids.push_back(
          static_cast<std::int32_t>((7 * t + 13 * static_cast<std::int64_t>(i)) % (vocab - 4) + 4));
    // What is looked at ends before its gpu batch, whose last sweep need not be stored.
    prompts[i].tokens = i % 3 == kLookedAt ? kTokens : kTokens + 4;
  }
  return prompts;
}

policy::PartialPolicy policy_of(const policy::Retention& retention, const policy::Fractions& kv) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 3, policy.num_gpu_batches = 2;
  policy.weights = policy.activations = policy::Fractions{};
  policy.kv = kv;
  policy.attention_on_host = 0;
  policy.retention = retention;
  return policy;
}

/// The positions that one sequence's heads hold in a run of a layer's heads, head after head in order.
std::vector<std::vector<std::int32_t>> positions(runtime::Session& session, runtime::SlotRecords& rows,
                                                 const runtime::SlotRecords::Run& run, int batch,
                                                 std::int64_t sequence) {
  std::uint32_t slots = 0;
  const auto record = rows.read(run, batch, sequence, slots);
  const offload::KvShape& shape = session.footprint().kv_runs(run.layer)[static_cast<std::size_t>(run.run)];
  const auto heads = static_cast<std::size_t>(shape.kv_heads);
  std::size_t at = positions_in_record(shape, slots);
  std::vector<std::vector<std::int32_t>> all(heads);
  for (std::vector<std::int32_t>& of_head : all) {
    of_head.resize(slots);
    std::memcpy(of_head.data(), record.data() + at, slots * sizeof(std::int32_t));
    at += slots * sizeof(std::int32_t);
    std::sort(of_head.begin(), of_head.end());
    of_head.erase(of_head.begin(), std::find_if(of_head.begin(), of_head.end(), [](auto p) { return p >= 0; }));
  }
  return all;
}

}  // namespace

TEST_CASE("each layer holds its own budget of tokens, and its most recent ones", "[runtime][layers]") {
  const int model = GENERATE(range(0, 4)), of_rules = GENERATE(range(0, 3)), spread = GENERATE(0, 1);
  if (on_gpu() && !exhaustive() && (model + of_rules + 2 * spread) % 4 != 0)
    return;  // of each rule and place one model
  const std::string name = std::array{"sharded-bf16", "llama-llama3-gqa-bf16", "prenorm-tied-f16",
                                      "smollm2-gqa-tied-bf16"}[static_cast<std::size_t>(model)],
                    rule = std::array{"h2o:0.2:0.1", "random:0.1:0.2",
                                      "snapkv:0.2:0.1:window=4"}[static_cast<std::size_t>(of_rules)];
  const policy::Fractions kv = spread ? policy::Fractions{{0.4, 0.3, 0.3}} : policy::Fractions{};
  const bool heads = name == "prenorm-tied-f16" || name == "smollm2-gqa-tied-bf16";
  CAPTURE(name, rule, heads, kv.device());
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  const policy::ModelSpec& spec = source->spec;
  const auto retention =
      policy::Retention::from_text(heads ? by_head(rule, spec.layers, spec.kv_heads) : by_layer(rule, spec.layers));
  Engine engine(*source, policy_of(retention, kv), prompts_of(source->spec.vocab),
                {.backend = backend_name(), .disk_directory = spill.path().string()});
  engine.run();
  runtime::SlotRecords rows(engine.session().storage(), engine.session().footprint(), engine.session().backend());
  std::vector<std::size_t> counts;
  for (const runtime::SlotRecords::Run& run : runtime::SlotRecords::runs(engine.session().footprint())) {
    const int first = retention.runs(run.layer, spec.kv_heads)[static_cast<std::size_t>(run.run)].first;
    const kernels::Keep kept = retention.kept(kPrompt, kTokens, run.layer, first);
    const std::int64_t stored = kPrompt + kTokens - 1,  // the last token is never fed
        of_prompt = std::min<std::int64_t>(kept.heavy + kept.recent, kPrompt),
                       wanted = std::min<std::int64_t>(kept.heavy + kept.recent + kept.spare,
                                                       kept.spare > 0 ? of_prompt + kTokens - 1 : stored);
    for (int batch = 0; batch < 2; ++batch)
      for (const auto& of_head : positions(engine.session(), rows, run, batch, kLookedAt)) {
        CAPTURE(run.layer, first, batch);
        REQUIRE(std::ssize(of_head) == wanted);
        for (std::int64_t back = 1; back <= std::min<std::int64_t>(kept.recent, wanted); ++back)
          CHECK(of_head[of_head.size() - static_cast<std::size_t>(back)] == stored - back);
      }
    counts.push_back(static_cast<std::size_t>(wanted));
  }
  CHECK(counts[0] < counts[1]);
  if (heads) CHECK(counts.size() > static_cast<std::size_t>(spec.layers));
}

TEST_CASE("a factor of 1 in every layer changes nothing, another one does", "[runtime][layers]") {
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  const auto run = [&](const std::string& retention) {
    return Engine(*source, policy_of(policy::Retention::from_text(retention), {}), prompts_of(source->spec.vocab),
                  {.backend = backend_name(), .disk_directory = spill.path().string()})
        .run();
  };
  const auto same = [](const std::vector<Answer>& a, const std::vector<Answer>& b) {
    for (std::size_t i = 0; i < a.size(); ++i)
      if (!difference(a[i], b[i]).empty()) return false;
    return true;
  };
  const bool few = on_gpu() && !exhaustive();
  const auto alike = run("h2o:0.1:0.1"), full = run("full");
  if (!few) CHECK(same(alike, run("h2o:0.1:0.1:layers=1,1,1")));
  CHECK(same(alike, run("h2o:0.1:0.1:layers=1,1/1/1/1,1/1/1/1")));
  for (const char* factors : few ? std::vector{"1,0.5/1.5/0.5/1.5,full"}
                                 : std::vector{"0.5,1.5,1", "1,0.5,1.5", "1.5,1,0.5", "full,1,1", "1,0.5/1.5/0.5/1.5,1",
                                               "1,1,1/1/1/full", "1,1/0.5/1.5/1,1"})
    CHECK_FALSE(same(alike, run(std::string("h2o:0.1:0.1:layers=") + factors)));
  // A budget for all that is stored is the full cache, by the other path.
  if (!few) CHECK(same(full, run("h2o:42:42:layers=full,1,full")));
  CHECK(same(full, run("h2o:42:42:layers=full,1/full/1/1,1/1/full/full")));
}
