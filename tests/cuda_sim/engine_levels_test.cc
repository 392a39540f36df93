// Quantised weights and KV in the engine on the simulated GPU: what is unpacked, what is multiplied as it lies, and how
// far answers are from the CPU's.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cusim.h"
#include "runtime/model/model_source.h"
#include "tests/cuda_sim/reset_after.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;

namespace {

/// What is unpacked in a run: how often by sweep and sublayer, as its trace has it.
using Unpacked = std::map<std::pair<std::uint32_t, std::uint32_t>, int>;

/// Kernels that unpack all quantised matrices once.
std::uint64_t matrices_of(const runtime::ModelSource& source) {
  std::uint64_t count = 0;
  for (const policy::Unit& unit : source.units)
    for (const policy::TensorSpec& tensor : unit.tensors) count += policy::quantises(unit, tensor);
  return count;
}

std::uint64_t unpacking_kernels() { return cusim::kernels_named("unpack_tiles"); }

/// Prompts of several chunks, whose tokens are given, so that every run computes the same logits.
std::vector<Prompt> forced_prompts(std::size_t count) {
  std::vector<Prompt> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    const auto id = static_cast<std::int32_t>(7 + i);
    prompts.push_back({std::vector<std::int32_t>(5 + 4 * i, id), 6, {}});
    prompts.back().forced.assign(6, static_cast<std::int32_t>(id + 2));
  }
  return prompts;
}

policy::PartialPolicy layout(int size, int batches, policy::Fractions weights) {
  policy::PartialPolicy policy;
  policy.gpu_batch_size = size, policy.num_gpu_batches = batches;
  policy.weights = weights;
  policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  policy.attention_on_host = 0;
  policy.continuous = false;
  return policy;
}

/// How far two answers' logits are apart, of the largest.
double deviation(const std::vector<Answer>& expected, const std::vector<Answer>& got) {
  double worst = 0, most = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    for (std::size_t token = 0; token < expected[i].logits.size(); ++token)
      for (std::size_t j = 0; j < expected[i].logits[token].size(); ++j) {
        const float wanted = expected[i].logits[token][j];
        worst = larger_error(worst, std::abs(double(got[i].logits.at(token)[j]) - double(wanted)));
        most = std::max(most, std::abs(double(wanted)));
      }
  return worst / most;
}

}  // namespace

TEST_CASE("quantised weights are unpacked once a unit in sweeps of many rows, whatever shares it", "[gpu][quantised]") {
  const std::size_t model = GENERATE(range(0, 3));
  const DType dtype = GENERATE(DType::i4, DType::i8);
  const std::string name = std::array{"prenorm-tied-f16", "neox-parallel-f16", "llama-llama3-gqa-bf16"}[model];
  const std::size_t sixth = 2 * model + (dtype == DType::i4);
  const TemporaryFolder spill;
  const policy::WeightFormat format{.dtype = dtype, .group = 64};
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "", format);
  const auto prompts = forced_prompts(10);
  const runtime::MachineOptions machine{.backend = backend_name(), .disk_directory = spill.path().string()};
  const policy::Fractions device{{1, 0, 0}}, host{{0, 1, 0}}, mixed{{0.3, 0.4, 0.3}};
  std::vector<policy::PartialPolicy> layouts{layout(10, 1, device), layout(4, 3, device), layout(3, 4, host),
                                             layout(2, 5, mixed), layout(2, 2, host)};
  layouts.back().continuous = true;  // six prompts join later sweeps
  layouts.push_back(layouts.back()), layouts.back().kv = mixed;
  layouts.push_back(layout(2, 5, mixed)), layouts.back().overlap = false;
  for (const double share : {0.5, 1.0}) {  // attention in parts: up to three units are unpacked at once
    layouts.push_back(layout(2, 5, mixed));
    layouts.back().kv = mixed, layouts.back().attention_on_host = share;
    layouts.push_back(layouts.back()), layouts.back().gpu_batch_size = 2, layouts.back().num_gpu_batches = 2;
    layouts.back().continuous = true;
  }
  std::vector<Answer> expected;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    if (!exhaustive() && i > 0 && i % 6 != sixth) continue;
    CAPTURE(name, name_of(dtype), i);
    Engine engine(*source, layouts[i], prompts, machine);
    const policy::Footprint& print = engine.session().footprint();
    CHECK(print.workspace.unpacked.bytes > 0);
    CHECK(engine.session().storage().buffers().bytes(policy::Tier::device) + print.job +
              engine.session().backend().device_overhead() ==
          print[policy::Tier::device]);
    Unpacked unpacked;
    engine.session().executor().set_trace([&](const policy::Schedule& schedule, const policy::Trace&) {
      for (const policy::Op& op : schedule.ops)
        if (op.kind == policy::Op::Kind::compute && op.part == policy::Op::Part::unpack)
          ++unpacked[{op.sweep, op.subject}];
    });
    const std::uint64_t before = unpacking_kernels();
    const auto answers = engine.run();
    for (const auto& [at, times] : unpacked) CHECK(times == 1);
    // Four places take ten prompts in three turns; sweeps that the trace has after the last answer do nothing.
    const std::uint64_t sweeps = engine.session().policy().continuous ? 3 * 6 : 6,
                        queued = std::prev(unpacked.end())->first.first + 1;
    std::size_t units = 0;
    for (const bool unpacks : print.shape.unpacks) units += unpacks;
    CHECK(queued >= sweeps);
    CHECK(unpacked.size() == queued * units);
    // Of each layout one sweep has a gpu batch of more rows than are multiplied by weights as they lie: the first, or
    // that in which the longest prompts join.
    CHECK(unpacking_kernels() - before == matrices_of(*source));
    if (expected.empty()) expected = answers;
    CHECK(deviation(expected, answers) < 1e-2);  // sums are in another order, which numbers of 16 bits make larger
  }
}

TEST_CASE("the GPU's and the CPU's logits over levels part by no more than levels cost", "[gpu][quantised]") {
  const std::string model = GENERATE("prenorm-tied-f16", "mistral-gqa-f16");
  const auto source = runtime::open_model(data_path("golden") / model, "auto", "");
  std::vector<Prompt> prompts(3);
  for (int i = 0; i < 3; ++i) {
    Prompt& prompt = prompts[static_cast<std::size_t>(i)];
    prompt.tokens = 16;
    for (int t = 0; t < 20 + 9 * i; ++t) prompt.ids.push_back(3 + (17 * t + 5 * i) % 60);
    for (int t = 0; t < prompt.tokens; ++t) prompt.forced.push_back(3 + (23 * t + 7 * i) % 60);
  }
  const auto answers = [&](const policy::KvFormat& kv, const std::string& backend) {
    policy::PartialPolicy policy = layout(3, 1, policy::Fractions{{1, 0, 0}});
    policy.kv_format = kv;
    return Engine(*source, policy, prompts, {.backend = backend}).run();
  };
  const auto distance = [](const std::vector<Answer>& a, const std::vector<Answer>& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
      for (std::size_t t = 1; t < a[i].logits.size(); ++t)  // the prompt's own attention reads no levels
        for (std::size_t n = 0; n < a[i].logits[t].size(); ++n)
          sum += std::pow(double(a[i].logits[t][n]) - double(b[i].logits[t][n]), 2);
    return std::sqrt(sum);
  };
  const auto plain = answers({}, "cpu");
  for (const DType dtype : {DType::i8, DType::i4}) {
    const auto format = policy::KvFormat::of(dtype);
    const auto on_cpu = answers(format, "cpu"), on_gpu = answers(format, backend_name());
    const double parted = distance(on_cpu, on_gpu), cost = distance(on_cpu, plain);
    CAPTURE(model, name_of(dtype), parted, cost);
    CHECK(parted > 0);
    CHECK(parted < cost);
  }
}

TEST_CASE("a recorded step of few rows multiplies by quantised weights as they lie", "[gpu][quantised][graphs]") {
  const policy::WeightFormat format{.dtype = DType::i4, .group = 64};
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "", format);
  std::vector<Prompt> prompts(3, {{5, 9, 7, 30, 4}, 12, {}});
  const policy::PartialPolicy policy = layout(3, 1, policy::Fractions{{1, 0, 0}});
  Engine traced(*source, policy, prompts), repeated(*source, policy, prompts);
  traced.session().executor().set_trace([](const policy::Schedule&, const policy::Trace&) {});
  const auto expected = traced.run();
  const std::uint64_t graphs = cusim::stats().graphs, unpacked = unpacking_kernels(),
                      before = cusim::kernels_named("multiply_levels");
  const auto answers = repeated.run();
  CHECK(cusim::stats().graphs > graphs + 3);
  CHECK(unpacking_kernels() == unpacked);
  CHECK(cusim::kernels_named("multiply_levels") - before == 12 * matrices_of(*source));
  for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], answers[i]) == "");
}
