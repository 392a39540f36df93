// tests/runtime/engine/host_experts_test.cc: experts that the host computes where their weights lie. Answers are the
// same to the last bit for any share of them.
#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "policy/layout/host_experts.h"
#include "runtime/cli/policy_flags.h"
#include "runtime/engine/executor.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Contains;
using offload::Lane;
using policy::Fractions;
using policy::Op;

namespace {

std::unique_ptr<runtime::ModelSource> open(const std::string& name, const std::string& weights = "auto") {
  return runtime::open_model(data_path("golden") / name, "auto", "", policy::weight_format_from_text(weights, "test"));
}

std::vector<Prompt> prompts_of(const runtime::ModelSource& source, int count) {
  std::vector<Prompt> prompts(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < 1 + 7 * i % 23; ++j) prompts[i].ids.push_back((5 + 11 * i + 3 * j) % source.spec.vocab);
    prompts[i].tokens = 2 + 3 * i % 7;
  }
  return prompts;
}

policy::PartialPolicy policy_of(int size, int batches, Fractions weights = {}) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = size, policy.num_gpu_batches = batches;
  policy.weights = weights;
  policy.kv = policy.activations = Fractions{};
  return policy;
}

std::vector<Answer> answers_of(const runtime::ModelSource& source, const policy::PartialPolicy& policy,
                               const std::vector<Prompt>& prompts, int threads = 1, bool separate = true) {
  const TemporaryFolder spill;
  return Engine(source, policy, prompts,
                {.backend = "cpu",
                 .disk_directory = spill.path().string(),
                 .threads = threads,
                 .separate_device = separate})
      .run();
}

void check_same(const std::vector<Answer>& expected, const std::vector<Answer>& answers) {
  for (std::size_t i = 0; i < answers.size(); ++i) {
    CAPTURE(i);
    CHECK(difference(expected[i], answers[i]) == "");
  }
}

}  // namespace

TEST_CASE("answers are the same for any share of the experts on the host", "[runtime][experts]") {
  const auto [name, weights] = GENERATE(table<std::string, std::string>({{"moe-qwen2-f16", "auto"},
                                                                         {"moe-qwen2-shared-f16", "int4"},
                                                                         {"moe-gpt-oss-f32", "auto"},
                                                                         {"gemma4-slides-experts-f32", "auto"}}));
  const auto source = open(name, weights);
  const std::vector<Prompt> prompts = prompts_of(*source, 11);
  const auto expected = answers_of(*source, policy_of(1, 1), prompts);
  for (const double share : {0.0, 0.25, 0.5, 1.0})
    for (const auto& [size, batches] : {std::pair{11, 1}, {2, 3}, {1, 1}}) {
      CAPTURE(name, share, size, batches);
      policy::PartialPolicy policy = policy_of(size, batches);
      policy.experts_on_host = share;
      check_same(expected, answers_of(*source, policy, prompts));
      policy.weights = Fractions{{0.2, 0.4, 0.4}};
      policy.activations = Fractions{{0.3, 0.3, 0.4}};
      policy.kv = Fractions{{0.3, 0.7, 0}};
      policy.attention_on_host = 0.5;
      policy.overlap = size > 1;
      policy.continuous = batches > 1;
      check_same(expected, answers_of(*source, policy, prompts, 2, size > 2));
    }
}

TEST_CASE("an expert of the host is never loaded after a block's first sweep", "[runtime][executor][experts]") {
  const double share = GENERATE(0.5, 1.0);
  const auto source = open("moe-qwen2-f16");
  policy::PartialPolicy policy = policy_of(3, 2, Fractions{{0, 1, 0}});
  policy.continuous = false;
  policy.experts_on_host = share;
  Engine engine(*source, policy, prompts_of(*source, 6), {.backend = "cpu", .threads = 1, .separate_device = true});
  const policy::ScheduleShape& shape = engine.session().footprint().shape;
  std::size_t of_host = 0, of_device = 0, loads = 0, cores = 0;
  for (std::size_t u = 0; u < source->units.size(); ++u)
    if (source->units[u].kind == policy::Unit::Kind::experts) ++(shape.host_computes[u] ? of_host : of_device);
  REQUIRE(of_host > 0);
  CHECK((of_device > 0) == (share < 1));
  std::string faults;
  engine.session().executor().set_trace([&](const policy::Schedule& schedule, const policy::Trace&) {
    for (const Op& op : schedule.ops) {
      if (op.sweep == 0) continue;
      if (op.kind == Op::Kind::compute) cores += op.lane == Lane::host_compute ? 1 : 0;
      else if (op.subject < source->units.size()) {
        ++loads;
        if (shape.host_computes[op.subject]) faults += "unit " + std::to_string(op.subject) + " was loaded; ";
      }
    }
  });
  engine.run();
  CHECK(faults == "");
  CHECK(loads > 0);
  CHECK(cores > 0);
  CHECK(cores % of_host == 0);
  const runtime::Totals totals = engine.session().executor().totals();
  CHECK(totals.lane_busy[static_cast<std::size_t>(Lane::host_compute)] > 0);
}

TEST_CASE("a share of the experts is at home on the host, whatever the weights' shares are", "[runtime][experts]") {
  const auto source = open("moe-qwen2-f16");
  for (const double share : {0.0, 0.25, 0.5, 1.0}) {
    CAPTURE(share);
    policy::PartialPolicy policy = policy_of(2, 1, Fractions{{1, 0, 0}});
    policy.experts_on_host = share;
    Engine engine(*source, policy, prompts_of(*source, 2), {.backend = "cpu", .threads = 1, .separate_device = true});
    const policy::ScheduleShape& shape = engine.session().footprint().shape;
    double on_host = 0, all = 0;
    for (std::size_t u = 0; u < source->units.size(); ++u) {
      if (source->units[u].kind == policy::Unit::Kind::experts) {
        ++all;
        on_host += shape.unit_home[u] == offload::Tier::host ? 1 : 0;
      } else {
        CHECK(shape.unit_home[u] == offload::Tier::device);
      }
    }
    CHECK(std::abs(on_host - share * all) <= 1);
  }
}

TEST_CASE("experts of a model without any are refused", "[runtime][experts]") {
  const auto source = open("prenorm-tied-f16");
  policy::PartialPolicy policy = policy_of(2, 1);
  policy.experts_on_host = 0.5;
  CHECK_THROWS_WITH(answers_of(*source, policy, prompts_of(*source, 2)),
                    Contains("the model has no experts") && Contains("leave --experts"));
  policy.experts_on_host = 0;
  CHECK_NOTHROW(answers_of(*source, policy, prompts_of(*source, 2)));
}

TEST_CASE("a share of the experts that makes no unit is refused", "[runtime][experts]") {
  const auto source = open("moe-qwen2-f16");
  policy::PartialPolicy policy = policy_of(2, 1);
  policy.experts_on_host = 1e-9;
  CHECK_THROWS_WITH(answers_of(*source, policy, prompts_of(*source, 2)),
                    Contains("less than half of one of the") && Contains("leave --experts"));
}

TEST_CASE("with --deterministic no plan searches for a share of the experts", "[runtime][experts]") {
  runtime::PolicyFlags flags;
  CHECK_FALSE(flags.policy("", "auto").experts_on_host);
  flags.machine.deterministic = true;
  CHECK(flags.policy("", "auto").experts_on_host == 0);
  flags.experts = "0.5";
  CHECK(flags.policy("", "auto").experts_on_host == 0.5);  // a run on a GPU refuses it
}
