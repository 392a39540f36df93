// tests/runtime/engine/expert_loads_test.cc: which experts are loaded, and how often.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "offload/memory.h"
#include "policy/planner/predict.h"
#include "runtime/engine/executor.h"
#include "runtime/model/model_source.h"
#include "runtime/planning/plan.h"
#include "tests/policy/machines.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using policy::Op;
using policy::Schedule;
using policy::Trace;

namespace {

std::vector<Prompt> prompts_of(std::size_t count) {
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < count; ++i)
    prompts.push_back({{static_cast<std::int32_t>(3 + 7 * i), static_cast<std::int32_t>(11 + i)}, 6, {}});
  return prompts;
}

policy::PartialPolicy policy_with(std::size_t sequences, double on_disk, bool overlap) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = static_cast<int>(sequences);
  policy.num_gpu_batches = 1;
  policy.continuous = false;
  policy.weights = policy::Fractions{{1 - on_disk, 0, on_disk}};
  policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  policy.overlap = overlap;
  return policy;
}

/// The bytes of what follows the last expert of each layer.
std::uint64_t bytes_of_end(const runtime::ModelSource& source) {
  std::uint64_t bytes = 0;
  for (const policy::Unit& unit : source.units)
    for (const policy::TensorSpec& tensor : unit.tensors)
      if (unit.layer == 0 && unit.kind == policy::Unit::Kind::experts && tensor.expert == unit.experts)
        bytes += sizeof(float) * static_cast<std::uint64_t>(tensor.elements());
  return bytes;
}

/// The bytes of experts that each layer of each decode sweep loaded, and how often a unit was loaded in one.
struct Loads {
  std::map<std::pair<std::uint32_t, int>, std::uint64_t> bytes;
  std::size_t twice = 0;
};
Loads loads_of(const runtime::ModelSource& source, Engine& engine) {
  Loads loads;
  engine.session().executor().set_trace([&](const Schedule& schedule, const Trace& trace) {
    std::set<std::pair<std::uint32_t, std::uint32_t>> seen;
    for (std::size_t i = 0; i < schedule.ops.size(); ++i) {
      const Op& op = schedule.ops[i];
      if (op.kind != Op::Kind::load || op.lane != offload::Lane::disk_read || op.subject >= source.units.size())
        continue;
      const policy::Unit& unit = source.units[op.subject];
      if (unit.kind != policy::Unit::Kind::experts) continue;
      if (!seen.insert({op.sweep, op.subject}).second) ++loads.twice;
      if (op.sweep > 0) loads.bytes[{op.sweep, unit.layer}] += trace.bytes[i];
    }
  });
  engine.run();
  return loads;
}

}  // namespace

TEST_CASE("each expert is loaded at most once a sweep, and only if a row chose it", "[runtime][executor][experts]") {
  const std::size_t sequences = GENERATE(std::size_t{1}, std::size_t{2}, std::size_t{5});
  const bool overlap = GENERATE(false, true);
  const auto [name, follows] =
      GENERATE(table<const char*, bool>({{"moe-olmoe-f32", false}, {"gemma4-slides-experts-f32", true}}));
  CAPTURE(name, sequences, overlap);
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / name, "float32", "");
  const policy::Experts& experts = source->spec.experts;
  const std::uint64_t end = bytes_of_end(*source);
  REQUIRE((end > 0) == follows);
  const std::uint64_t expert_bytes = sizeof(float) * 3 * static_cast<std::uint64_t>(source->spec.hidden * experts.ffn);
  const runtime::MachineOptions machine{.backend = backend_name(), .disk_directory = spill.path().string()};
  Engine resident(*source, policy_with(sequences, 0, true), prompts_of(sequences), machine);
  Engine streamed(*source, policy_with(sequences, 1, overlap), prompts_of(sequences), machine);
  const std::vector<Answer> expected = resident.run();
  const Loads loads = loads_of(*source, streamed);
  CHECK(loads.twice == 0);
  REQUIRE(loads.bytes.size() == 5 * static_cast<std::size_t>(source->spec.layers));
  const std::uint64_t chosen = static_cast<std::uint64_t>(experts.chosen),
                      all = static_cast<std::uint64_t>(experts.count);
  for (const auto& [where, bytes] : loads.bytes) {
    CAPTURE(where.first, where.second);
    CHECK(bytes >= chosen * expert_bytes + end);
    CHECK(bytes <= all * (expert_bytes + 2 * offload::kPage) + end);  // direct reads take whole sectors
    // One after the other, so that the router has run before the first load.
    if (overlap || on_gpu()) continue;
    if (follows) {  // the experts are in stacks, whose parts begin anywhere in a sector
      if (sequences == 1) CHECK(bytes < (chosen + 1) * expert_bytes + end);
      continue;
    }
    CHECK(bytes <= std::min(sequences * chosen, all) * expert_bytes);
    if (sequences == 1) CHECK(bytes == chosen * expert_bytes);
  }
  Engine again(*source, policy_with(sequences, 1, overlap), prompts_of(sequences), machine);
  const std::vector<Answer> got = again.run();
  for (std::size_t i = 0; i < sequences; ++i) CHECK(difference(expected[i], got[i]).empty());
}

TEST_CASE("predicted bytes of experts are those that a sweep loads", "[runtime][executor][experts]") {
  const std::size_t sequences = GENERATE(std::size_t{1}, std::size_t{4}, std::size_t{64});
  CAPTURE(sequences);
  if (on_gpu()) return;  // its routers are known later
  constexpr std::int64_t kTokens = 24;
  const TemporaryFolder spill;
  const auto source = runtime::open_model(data_path("golden") / "moe-olmoe-f32", "float32", "");
  // Tokens at random: those that a tiny model chooses are soon the same in all sequences, and so are their experts.
  std::mt19937 random(5);
  const auto token = [&] { return static_cast<std::int32_t>(random() % 131); };
  std::vector<Prompt> prompts(sequences);
  for (Prompt& prompt : prompts) {
    prompt = {{token(), token()}, kTokens, {}};
    for (std::int64_t i = 0; i < kTokens; ++i) prompt.forced.push_back(token());
  }
  Engine engine(*source, policy_with(sequences, 1, false), prompts,
                {.backend = backend_name(), .disk_directory = spill.path().string()});
  engine.run();
  const runtime::Totals& totals = engine.session().executor().totals();
  constexpr auto lane = static_cast<std::size_t>(offload::Lane::disk_read);
  const auto measured = double(totals.lane_bytes[lane] - totals.prefill_lane_bytes[lane]) / (kTokens - 1);

  constexpr std::uint64_t kRoom = std::uint64_t{64} << 30;
  const policy::Machine machine = machine_of({}, {kRoom, kRoom, kRoom}, true);
  const policy::SizingInputs sizing = runtime::sizing_inputs(*source, machine);
  const policy::Workload work = policy::alike(static_cast<std::int64_t>(sequences), 2, kTokens, {});
  const policy::Problem problem{source->spec, source->units, work, sizing, machine};
  const policy::Prediction prediction =
      policy::predict(problem, engine.session().policy(), engine.session().footprint());
  CHECK(measured == Approx(prediction.decode.bytes[lane] / (kTokens - 1)).epsilon(0.1));
}
