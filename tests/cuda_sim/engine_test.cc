// What only the simulator shows of the CUDA backend: what happens when the device or the system refuses, and that steps
// are repeated by graphs.
#include <algorithm>
#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cusim.h"
#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/machine/cuda.h"
#include "kernels/machine/host_memory_cuda.h"
#include "runtime/job/job.h"
#include "runtime/model/model_source.h"
#include "tests/cuda_sim/reset_after.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;
using kernels::Backend;

namespace {

/// What `work` throws, which must be an error of that type.
template <class Error> std::string message_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void wait(Backend& backend, kernels::Stream& stream) {
  const auto event = backend.make_event();
  backend.record(*event, stream);
  backend.synchronize(*event);
}

}  // namespace

TEST_CASE("host memory that cannot be pinned is copied by a ring, and the backend says so", "[gpu][faults]") {
  const ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  constexpr std::size_t bytes = (std::size_t{70} << 20) + 5;
  const auto device = backend->allocate_device(bytes);
  cusim::config().pinned_capacity = cusim::stats().pinned_live + (std::size_t{66} << 20);
  const auto from = backend->allocate_host(bytes), to = backend->allocate_host(bytes);
  CHECK_FALSE(backend->device_reaches(from->data() + bytes - 1, 1));
  CHECK_THAT(backend->warning(), Catch::Contains("copies go by a ring"));
  const auto small = backend->allocate_host(4096);
  CHECK(backend->device_reaches(small->data(), small->bytes()));

  for (std::size_t i = 0; i < bytes; ++i) from->data()[i] = static_cast<std::byte>(i * 7 + (i >> 9));
  const auto stream = backend->make_stream();
  backend->copy(device->data(), from->data(), bytes, *stream);
  backend->copy(to->data(), device->data(), bytes, *stream);
  wait(*backend, *stream);
  CHECK(std::memcmp(from->data(), to->data(), bytes) == 0);

  cusim::config().pinned_capacity = 0;
  CHECK_THAT(message_of<CapacityError>([&] { backend->allocate_host(4096); }), Catch::Contains("ulimit -l"));
}

TEST_CASE("a run goes on, with the same answers, whatever the system refuses to pin", "[gpu][faults]") {
  const ResetAfter reset_after;
  const TemporaryFolder folder;
  // Three layers have more weights than is small memory.
  write_text(folder / "config.json",
             R"({"model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 3,
                 "num_attention_heads": 16, "vocab_size": 300, "max_position_embeddings": 64,
                 "word_embed_proj_dim": 1024, "do_layer_norm_before": true, "torch_dtype": "float16"})");
  const auto source = runtime::open_model(folder.path().string(), "auto", "random:1");
  const std::vector<Prompt> prompts(2, {{5, 9, 7, 30, 4}, 2, {}});
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 1, policy.num_gpu_batches = 2;
  policy.weights = policy.kv = policy::Fractions{{0, 1, 0}};
  policy.activations = policy::Fractions{{1, 0, 0}};
  policy.attention_on_host = 0;
  const auto answers = [&](bool warns) {
    Engine engine(*source, policy, prompts);
    CHECK(engine.session().storage().buffers().bytes(policy::Tier::host) > kernels::cuda::CudaHostMemory::kPinned);
    CHECK(engine.session().backend().warning().empty() != warns);
    return engine.run();
  };
  const auto expected = answers(false);
  constexpr std::size_t kMiB = 1 << 20;
  const cusim::Config before = cusim::config();
  struct Case {
    const char* refused;
    std::size_t register_most, host_alloc_most;
    bool host_pointer, limited, warns;
  };
  for (const Case& each : {Case{"cudaHostAlloc of much", SIZE_MAX, 65 * kMiB, true, false, false},
                           {"registration", 0, SIZE_MAX, true, false, false},
                           {"registration, and cudaHostAlloc of much", 0, 65 * kMiB, true, false, true},
                           {"all but a part", 13 * kMiB, 65 * kMiB, true, true, true},
                           {"the host's addresses", SIZE_MAX, SIZE_MAX, false, false, false},
                           {"these, and cudaHostAlloc of much", SIZE_MAX, 65 * kMiB, false, false, true}}) {
    CAPTURE(each.refused);
    cusim::Config& config = cusim::config() = before;
    config.register_most = each.register_most, config.host_alloc_most = each.host_alloc_most;
    config.host_pointer = each.host_pointer;
    if (each.limited) config.pinned_capacity = cusim::stats().pinned_live + 120 * kMiB;
    const auto got = answers(each.warns);
    for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], got[i]) == "");
    CHECK(cusim::take_findings().empty());
  }
}

TEST_CASE("device memory that is not there is refused with what was wanted and what is free", "[gpu][faults]") {
  const ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  cusim::config().device_capacity = std::size_t{64} << 20;
  CHECK_THAT(
      message_of<CapacityError>([&] { backend->allocate_device(std::size_t{100} << 20); }),
      Catch::Contains("100 MiB wanted") && Catch::Contains("of 64 MiB are free") && Catch::Contains("--device-memory"));
}

TEST_CASE("a device that breaks says so at the next wait and from then on", "[gpu][faults]") {
  const ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto device = backend->allocate_device(4096);
  const auto host = backend->allocate_host(4096);
  const auto stream = backend->make_stream();
  cusim::fail_nth(cusim::What::copy, 1, cudaErrorECCUncorrectable, /*asynchronous=*/true);
  backend->copy(device->data(), host->data(), 4096, *stream);
  for (int again = 0; again < 2; ++again)
    CHECK_THAT(message_of<DeviceError>([&] { wait(*backend, *stream); }),
               Catch::Contains("cudaErrorECCUncorrectable") && Catch::Contains("--resume continues"));
}

TEST_CASE("a job on a device that breaks ends with its answers kept, and goes on by --resume", "[gpu][faults]") {
  const ResetAfter reset_after;
  const TemporaryFolder folder;
  std::string requests;
  for (int i = 0; i < 12; ++i)
    requests += R"({"id": ")" + std::to_string(i) + R"(", "prompt": "Request number )" + std::to_string(i) + "\"}\n";
  write_text(folder / "in.jsonl", requests);
  runtime::JobOptions job;
  job.model = source_path("models/demo").string();
  job.input = (folder / "in.jsonl").string(), job.output = (folder / "out.jsonl").string();
  job.max_tokens = 3;
  job.quiet = true;
  job.policy.gpu_batch_size = 2, job.policy.num_gpu_batches = 2;  // all of it said: planning would launch kernels too
  job.policy.weights = job.policy.kv = job.policy.activations = policy::Fractions{};
  job.machine.backend = "cuda";
  const std::atomic<bool> stop{false};
  const auto lines = [&] {
    const std::string text = read_text(folder / "out.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  };
  cusim::fail_nth(cusim::What::launch, 700, cudaErrorIllegalAddress, /*asynchronous=*/true);
  CHECK_THAT(message_of<DeviceError>([&] { runtime::run_job(job, stop); }), Catch::Contains("cudaErrorIllegalAddress"));
  const auto before = lines();
  CHECK(before > 0);
  CHECK(before < 12);
  cusim::reset();
  job.resume.on = true;
  CHECK(runtime::run_job(job, stop) == 0);
  CHECK(lines() == 12);
}

TEST_CASE("a resident model's steps are repeated by graphs, and answers stay the same", "[gpu][graphs]") {
  const std::string retention =
      GENERATE("full", "h2o:0.2:0.2", "defensive:0.2:0.2:window=8:rest=true", "h2o:8:8:positions=rolled");
  if (!exhaustive() && retention == "h2o:0.2:0.2") return;  // `rolled` and `defensive` do all that it does
  const bool rolled = retention.ends_with("rolled");
  const auto source =
      runtime::open_model(data_path("golden") / (rolled ? "llama-linear-biases-f16" : "prenorm-tied-f16"), "auto", "");
  if (rolled) source->spec.positions = 36;  // steps before which keys move come between those that are repeated
  std::vector<Prompt> prompts;
  for (int i = 0; i < 7; ++i) {  // they end one after another, and some are scored
    prompts.push_back({std::vector<std::int32_t>(static_cast<std::size_t>(3 + 5 * i), 7 + i), 12 + 3 * i, {}});
    if (i % 3 == 1) prompts.back().forced.assign(static_cast<std::size_t>(prompts.back().tokens), 9);
    if (i == 2) prompts.back().alternatives = 3;
    if (i == 5) prompts.back().rules = {.repetition_penalty = 1.5f, .frequency_penalty = 0.5f, .bias = {{9, 2}}};
    if (i == 6) prompts.back().min_tokens = 20, prompts.back().suppressed_until_min = {5, 6, 7};
  }
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 7, policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  policy.retention = policy::Retention::from_text(retention);
  Engine traced(*source, policy, prompts), repeated(*source, policy, prompts);
  traced.session().executor().set_trace([](const policy::Schedule&, const policy::Trace&) {});
  const auto before = cusim::stats().graphs;
  const auto expected = traced.run();
  CHECK(cusim::stats().graphs == before);
  for (int run = 0; run < 2; ++run) {  // the second time every step is one
    const auto answers = repeated.run();
    for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], answers[i]) == "");
    CHECK(cusim::stats().graphs >= before + (run == 0 ? 2 : 12));
  }
}

TEST_CASE("weights lie at words of 16 bytes on the device, wherever their file's data begin", "[gpu][weights]") {
  // The data of the second and third begin in the middle of a word, those of the fourth's shards here and there.
  const std::string name = GENERATE("prenorm-tied-f16", "llama-linear-biases-f16", "neox-parallel-f16", "sharded-bf16");
  CAPTURE(name);
  const ResetAfter reset_after;
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  const std::vector<Prompt> prompts(3, {{5, 9, 7, 30, 4}, 3, {}});
  std::vector<Answer> expected;
  for (const policy::Fractions placed : {policy::Fractions{{1, 0, 0}}, policy::Fractions{{0, 1, 0}},
                                         policy::Fractions{{0, 0, 1}}, policy::Fractions{{0.3, 0.4, 0.3}}}) {
    CAPTURE(placed.device(), placed.host());
    policy::PartialPolicy policy;
    policy.gpu_batch_size = 3, policy.num_gpu_batches = 1;
    policy.weights = placed;
    policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
    Engine engine(*source, policy, prompts);
    const cusim::Stats before = cusim::stats();
    const auto answers = engine.run();
    CHECK(cusim::stats().products > before.products);
    CHECK(cusim::stats().slow_products == before.slow_products);
    if (expected.empty()) expected = answers;
    for (std::size_t i = 0; i < prompts.size(); ++i) CHECK(difference(expected[i], answers[i]) == "");
  }
}

TEST_CASE("a prompt's layer is four products and what attention and norms need", "[gpu][prefill]") {
  const ResetAfter reset_after;
  // In a file that others wrote another matrix lies between those of k, q and v; in units that are made none does.
  const bool made = GENERATE(false, true);
  const auto folder = data_path("golden") / "prenorm-tied-f16";
  const auto source = made ? runtime::open_model(folder / "config.json", "float16", "random:1")
                           : runtime::open_model(folder, "auto", "");
  REQUIRE(source->spec.qkv_bias);
  policy::PartialPolicy policy;
  policy.gpu_batch_size = 1, policy.num_gpu_batches = 1;
  policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
  policy.retention = policy::Retention::from_text("full");
  Engine engine(*source, policy, {{{5, 9, 7, 30, 4, 8, 1}, 1, {}}});
  const auto products = cusim::stats().products;
  const auto named = [](const char* kernel) { return cusim::kernels_named(kernel); };
  const auto norms = named("layer_norm"), rounds = named("round_rows"), finishes = named("finish_rows"),
             converts = named("convert<");
  engine.run();
  const auto layers = static_cast<std::uint64_t>(source->spec.layers);
  CHECK(cusim::stats().products - products == (made ? 4 : 5) * layers + 1);  // q, k and v; o; up; down; and the head
  CHECK(named("layer_norm") - norms == 2 * layers + 1);
  CHECK(named("round_rows") - rounds == 2 * layers + 1);  // biases of what is added to hidden states; the head's rows
  CHECK(named("finish_rows") == finishes);
  CHECK(named("convert<") - converts <= 2);  // outside of the layers
}

TEST_CASE("batch-invariant, an answer does not depend on what else is computed with it", "[gpu][deterministic]") {
  const ResetAfter reset_after;
  cusim::config().products_by_shape = true;
  const std::string name = GENERATE("prenorm-tied-f16", "llama-linear-biases-f16");
  const bool deterministic = GENERATE(false, true);
  CAPTURE(name, deterministic);
  const auto source = runtime::open_model(data_path("golden") / name, "auto", "");
  std::vector<Prompt> prompts;
  for (int i = 0; i < 6; ++i)
    prompts.push_back({std::vector<std::int32_t>(static_cast<std::size_t>(2 + 4 * i), 7 + i), 5, {}});
  const auto run = [&](const std::vector<Prompt>& some, int batch) {
    policy::PartialPolicy policy;
    policy.gpu_batch_size = batch, policy.num_gpu_batches = 1;
    policy.weights = policy.kv = policy.activations = policy::Fractions{{1, 0, 0}};
    Engine engine(*source, policy, some, {.backend = "cuda", .deterministic = deterministic});
    return engine.run();
  };
  const auto together = run(prompts, 6);
  bool same = true;
  for (std::size_t i = 0; i < prompts.size(); ++i)
    same = same && difference(together[i], run({prompts[i]}, 1)[0]).empty();
  CHECK(same == deterministic);
}

TEST_CASE("batch-invariant, a GPU and the host share nothing between sequences", "[gpu][deterministic]") {
  const ResetAfter reset_after;
  const auto source = runtime::open_model(data_path("golden") / "moe-qwen2-f16", "auto", "");
  const std::vector<Prompt> prompts(4, {{1, 2, 3}, 3, {}});
  const auto run = [&](double experts, double attention, int batches, bool deterministic) {
    policy::PartialPolicy policy;
    policy.gpu_batch_size = 4 / batches, policy.num_gpu_batches = batches;
    policy.weights = policy.kv = policy::Fractions{{0, 1, 0}}, policy.activations = policy::Fractions{{1, 0, 0}};
    policy.experts_on_host = experts, policy.attention_on_host = attention;
    return Engine(*source, policy, prompts, {.backend = "cuda", .deterministic = deterministic}).run();
  };
  CHECK_THROWS_WITH(run(1, 0, 1, true), Catch::Contains("--deterministic") && Catch::Contains("leave --experts"));
  CHECK_THROWS_WITH(run(0, 0.5, 2, true),
                    Catch::Contains("--deterministic") && Catch::Contains("give --attention device"));
  CHECK_NOTHROW(run(1, 0.5, 2, false));
  CHECK_NOTHROW(run(0, 1, 2, true));
  CHECK_NOTHROW(run(0, 0, 2, true));
}

TEST_CASE("of KV at home on the host that is read in part all but low rows is copied to the device", "[gpu]") {
  const ResetAfter reset_after;
  constexpr std::int64_t kTokens = 6;
  const auto source = runtime::open_model(data_path("golden") / "prenorm-tied-f16", "auto", "");
  std::vector<Prompt> prompts(4, {{5, 9, 7, 30, 4, 11, 60, 8}, kTokens, {}});
  for (Prompt& prompt : prompts) prompt.forced.assign(kTokens, 9);
  struct Copied {
    std::uint64_t simulated, lane, from_host;
  };
  const auto run = [&](const std::string& retention) {
    policy::PartialPolicy policy;
    policy.gpu_batch_size = 2, policy.num_gpu_batches = 2;
    policy.weights = policy.activations = policy::Fractions{{1, 0, 0}};
    policy.kv = policy::Fractions{{0, 1, 0}}, policy.attention_on_host = 0;
    policy.retention = policy::Retention::from_text(retention);
    policy.kv_format = policy::KvFormat::from_text("int8", "kv");
    Engine engine(*source, policy, prompts);
    const std::uint64_t before = cusim::stats().to_device_bytes;
    engine.run();
    const runtime::Totals& totals = engine.session().executor().totals();
    const auto lane = static_cast<std::size_t>(offload::Lane::host_to_device);
    std::uint64_t from_host = 0;
    for (int layer = 0; layer < source->spec.layers; ++layer)
      from_host += 2 * engine.session().footprint().kv_bytes_from_host(layer);
    return Copied{cusim::stats().to_device_bytes - before, totals.lane_bytes[lane], (kTokens - 1) * from_host};
  };
  const Copied whole = run("full"), part = run("full:read=0.2");
  CHECK(whole.lane == whole.from_host);
  CHECK(part.lane == part.from_host);
  CHECK(part.from_host < whole.from_host);
  CHECK(whole.simulated - part.simulated == whole.from_host - part.from_host);
}
