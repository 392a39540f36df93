// tests/policy/flexgen_test.cc: FlexGen's arithmetic against another implementation of it, and what must always hold.
#include "policy/planner/flexgen.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>

#include "kernels/error.h"
#include "tests/support/files.h"
#include "tests/support/model_config.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::flexgen_times;
using policy::FlexGenMachine;
using policy::FlexGenRun;
using policy::FlexGenTimes;
using System = FlexGenRun::System;

namespace {

nlohmann::json t4_json() {
  return nlohmann::json::parse(test::read_text(test::source_path("configs/machines/t4-flexgen.json")));
}
FlexGenMachine t4() { return FlexGenMachine::from_json(t4_json(), "t4.json"); }

FlexGenRun all_on_device(int batch, int generation) {
  return {.gpu_batch_size = batch, .prompt = 512, .generation = generation};
}
/// Weights, KV and activations on the host, where attention runs.
FlexGenRun all_on_host(int batch, int batches, int generation) {
  return {.gpu_batch_size = batch,
          .num_gpu_batches = batches,
          .prompt = 512,
          .generation = generation,
          .weights_on_device = 0,
          .kv_on_device = 0,
          .activations_on_device = 0,
          .attention_on_host = true};
}

FlexGenRun random_run(std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  FlexGenRun run;
  run.gpu_batch_size = pick(1, 80);
  run.num_gpu_batches = pick(1, 10);
  run.prompt = pick(1, 1000);
  run.generation = pick(2, 200);
  run.weights_on_device = pick(0, 4) / 4.0;
  run.kv_on_device = pick(0, 2) / 2.0;
  run.activations_on_device = pick(0, 1);
  run.attention_on_host = pick(0, 1) == 1;
  run.slots = pick(0, 1) * pick(1, 1200);
  run.weight_bits = pick(0, 1) == 1 ? 4 : 16;
  run.kv_bits = pick(0, 1) == 1 ? 4 : 16;
  return run;
}

double total(const FlexGenTimes& times) { return times.prefill + times.decode; }

}  // namespace

TEST_CASE("FlexGen's arithmetic gives what another implementation of it gave", "[policy]") {
  struct Case {
    const char* model;
    int generation, batch, batches;
    double weights;
    int slots;
    double prefill, decode, tokens_per_second;
  };
  for (const Case& c : {Case{"opt-6.7b", 32, 2, 1, 1, 0, 0.6489, 1.866, 25.449},
                        {"opt-6.7b", 1024, 1, 1, 1, 0, 0.3245, 61.36, 16.600},
                        {"opt-6.7b", 512, 4, 1, 1, 204, 1.2979, 29.945, 65.550},
                        {"opt-30b", 32, 48, 3, 0.2, 0, 210.67, 438.4, 7.099},
                        {"opt-30b", 512, 40, 2, 0.2, 0, 117.04, 5955.2, 6.745},
                        {"opt-30b", 1024, 48, 1, 0.2, 0, 70.22, 9975.6, 4.893},
                        {"opt-30b", 32, 48, 16, 0.2, 108, 1123.58, 733.2, 13.236},
                        {"opt-30b", 512, 52, 8, 0, 204, 608.60, 10111.2, 19.869},
                        {"opt-30b", 1024, 40, 7, 0.2, 307, 409.64, 17653.5, 15.873},
                        {"opt-30b", 1024, 44, 6, 1 / 12.0, 307, 386.23, 17328.8, 15.260}}) {
    CAPTURE(c.model, c.generation, c.batch, c.batches, c.slots);
    FlexGenRun run =
        c.weights == 1 ? all_on_device(c.batch, c.generation) : all_on_host(c.batch, c.batches, c.generation);
    run.weights_on_device = c.weights;
    run.slots = c.slots;
    const FlexGenTimes times = flexgen_times(test::shipped_model(c.model), t4(), run);
    CHECK(times.prefill == Approx(c.prefill).epsilon(0.01));
    CHECK(times.decode == Approx(c.decode).epsilon(0.002));
    CHECK(times.tokens_per_second == Approx(c.tokens_per_second).epsilon(0.002));
  }
}

TEST_CASE("a context frozen at the first step flatters whole KV and leaves H2O alone", "[policy]") {
  FlexGenRun run = all_on_host(40, 2, 512);
  run.weights_on_device = 0.2;
  const double growing = flexgen_times(test::shipped_model("opt-30b"), t4(), run).tokens_per_second;
  run.timed_steps = 1;
  const double frozen = flexgen_times(test::shipped_model("opt-30b"), t4(), run).tokens_per_second;
  CHECK(growing == Approx(6.75).epsilon(0.002));
  CHECK(frozen == Approx(8.39).epsilon(0.002));
  run.slots = 204;
  const double h2o_frozen = flexgen_times(test::shipped_model("opt-30b"), t4(), run).decode;
  run.timed_steps = 0;
  CHECK(flexgen_times(test::shipped_model("opt-30b"), t4(), run).decode == Approx(h2o_frozen));
  run.slots = 513;  // what one step of whole KV reads
  run.timed_steps = 1;
  CHECK(flexgen_times(test::shipped_model("opt-30b"), t4(), run).tokens_per_second == Approx(frozen));
}

TEST_CASE("the decode step waits for what each run is known to wait for", "[policy]") {
  const auto bound = [](const std::string& model, const FlexGenRun& run) {
    return std::string(flexgen_times(test::shipped_model(model), t4(), run).layer.bound());
  };
  CHECK(bound("opt-6.7b", all_on_device(2, 32)) == "products");
  CHECK(bound("opt-30b", all_on_host(48, 3, 32)) == "host attention");
  CHECK(bound("opt-30b", all_on_host(1, 1, 32)) == "weights to the device");
  FlexGenRun run = all_on_host(64, 8, 32);
  run.attention_on_host = false;
  CHECK(bound("opt-30b", run) == "KV to the device");
  run = all_on_device(72, 32);
  run.weight_bits = run.kv_bits = 4;
  CHECK(bound("opt-6.7b", run) == "unpacking");
}

TEST_CASE("whatever the run: more on the device, fewer slots, fewer tokens are never slower", "[policy]") {
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  const policy::ModelSpec model = test::shipped_model("opt-1.3b");
  const FlexGenMachine machine = t4();
  for (int i = 0; i < 200; ++i) {
    const FlexGenRun run = random_run(random);
    CAPTURE(i, run.gpu_batch_size, run.num_gpu_batches, run.prompt, run.generation, run.slots, run.weight_bits);
    const FlexGenTimes times = flexgen_times(model, machine, run);
    CHECK(std::isfinite(total(times)));
    CHECK(times.tokens_per_second * total(times) == Approx(double(run.block_size()) * run.generation));
    FlexGenRun better = run;
    better.weights_on_device = 1;
    CHECK(total(flexgen_times(model, machine, better)) <= total(times) * (1 + 1e-12));
    better = run;
    better.slots = run.slots > 1 ? run.slots / 2 : run.prompt;
    CHECK(total(flexgen_times(model, machine, better)) <= total(times) * (1 + 1e-12));
    better = run;
    better.generation -= 1;
    CHECK(total(flexgen_times(model, machine, better)) < total(times));
  }
}

TEST_CASE("one token is all prefill", "[policy]") {
  const FlexGenTimes times = flexgen_times(test::shipped_model("opt-1.3b"), t4(), all_on_device(4, 1));
  CHECK(times.decode == 0);
  CHECK(times.tokens_per_second == Approx(4 / times.prefill));
}

TEST_CASE("Accelerate adds copies to compute, DeepSpeed hides the shorter", "[policy]") {
  FlexGenMachine machine = t4();
  machine.deepspeed_link = machine.accelerate_link;
  FlexGenRun run = all_on_device(16, 2);  // one decode step
  run.weights_on_device = 0;
  const policy::ModelSpec model = test::shipped_model("opt-6.7b");
  run.system = System::accelerate;
  const FlexGenTimes accelerate = flexgen_times(model, machine, run);
  run.system = System::deepspeed;
  const FlexGenTimes deepspeed = flexgen_times(model, machine, run);
  CHECK(accelerate.layer.weights == Approx(deepspeed.layer.weights));
  CHECK(accelerate.layer.compute() == Approx(deepspeed.layer.compute()));
  CHECK(accelerate.prefill ==
        Approx(model.layers * accelerate.layer.weights + deepspeed.prefill));  // compute is longer
  CHECK(accelerate.decode > model.layers * (accelerate.layer.weights + accelerate.layer.compute()));
  // DeepSpeed brings the embedding and the head too.
  const double table_bytes = 2.0 * 2 * model.vocab * model.embed;
  CHECK(deepspeed.decode == Approx(model.layers * deepspeed.layer.weights + table_bytes / machine.deepspeed_link));

  // With everything resident nothing tells the three apart.
  run.weights_on_device = 1;
  const double resident = total(flexgen_times(model, machine, run));
  run.system = System::accelerate;
  CHECK(total(flexgen_times(model, machine, run)) == Approx(resident));
  run.system = System::flexgen;
  CHECK(total(flexgen_times(model, machine, run)) == Approx(resident));
}

TEST_CASE("row by row, a pass over the weights serves one batch", "[policy]") {
  for (const System system : {System::accelerate, System::deepspeed}) {
    FlexGenRun run = all_on_device(4, 100);
    run.system = system;
    run.weights_on_device = 0;
    const double four = flexgen_times(test::shipped_model("opt-30b"), t4(), run).tokens_per_second;
    run.gpu_batch_size = 8;
    CHECK(flexgen_times(test::shipped_model("opt-30b"), t4(), run).tokens_per_second == Approx(2 * four).epsilon(0.08));
  }
}

TEST_CASE("FlexGen's percentages place whole tensors", "[policy]") {
  const policy::ModelSpec model = test::shipped_model("opt-30b");
  for (const auto& [asked, placed] : {std::pair{0.0, 0.0},
                                      {4.0, 0.0},
                                      {10.0, 0.0},
                                      {15.0, 0.083},
                                      {20.0, 0.083},
                                      {25.0, 0.083},
                                      {30.0, 0.417},
                                      {50.0, 0.5},
                                      {75.0, 0.583},
                                      {90.0, 1.0},
                                      {100.0, 1.0}}) {
    CAPTURE(asked);
    CHECK(policy::flexgen_weights_on_device(model, asked) == Approx(placed).margin(0.001));
  }
}

TEST_CASE("runs that no system has are refused", "[policy]") {
  const auto refused = [](auto change, const std::string& what) {
    FlexGenRun run;
    change(run);
    CHECK_THROWS_AS(flexgen_times(test::shipped_model("opt-125m"), t4(), run), UsageError);
    CHECK_THROWS_WITH(run.require_valid("rows[3]"), Contains("rows[3]: ") && Contains(what));
  };
  refused([](FlexGenRun& run) { run.gpu_batch_size = 0; }, "at least 1");
  refused([](FlexGenRun& run) { run.generation = 0; }, "at least 1");
  refused([](FlexGenRun& run) { run.kv_on_device = 1.5; }, "from 0 to 1");
  refused([](FlexGenRun& run) { run.weights_on_device = std::nan(""); }, "from 0 to 1");
  refused([](FlexGenRun& run) { run.kv_bits = 8; }, "16 or 4");
  refused([](FlexGenRun& run) { run.slots = -1; }, "negative");
  refused([](FlexGenRun& run) { run.system = System::accelerate, run.num_gpu_batches = 2; }, "one batch");
  refused([](FlexGenRun& run) { run.system = System::deepspeed, run.slots = 100; }, "all KV");
}

TEST_CASE("a machine without a constant, or an assumption without a reason, is refused", "[policy]") {
  const auto refused = [](auto change, const std::string& what) {
    nlohmann::json json = t4_json();
    change(json);
    CHECK_THROWS_AS(FlexGenMachine::from_json(json, "t4.json"), UsageError);
    CHECK_THROWS_WITH(FlexGenMachine::from_json(json, "t4.json"), Contains("t4.json") && Contains(what));
  };
  refused([](auto& json) { json["fitted"].erase("kv_to_host"); }, "'kv_to_host' is missing");
  refused([](auto& json) { json["fitted"]["kv_to_hosts"] = 1e9; }, "did you mean 'kv_to_host'");
  refused([](auto& json) { json["fitted"]["decode_products"] = 0; }, "'decode_products' must be a number from");
  refused([](auto& json) { json["fitted"]["host_to_device"] = "fast"; }, "\"fast\"");
  refused([](auto& json) { json["assumed"]["device_memory"].erase("why"); }, "device_memory");
  refused([](auto& json) { json["assumed"]["deepspeed_link"]["why"] = ""; }, "a reason");
  refused([](auto& json) { json["assumed"]["accelerate_link"] = 5e9; }, "must be an object");
  refused([](auto& json) { json["version"] = 2; }, "version");
  refused([](auto& json) { json = nlohmann::json::array(); }, "object");
}
