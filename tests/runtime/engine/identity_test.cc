// An answer depends on its own request alone: on no placement, block, order, overlap, engine or number of threads.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kernel_kind.h"
#include "runtime/engine/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using policy::Fractions;

namespace {

const char* const kTinyConfig = R"({"model_type": "opt", "architectures": ["OPTForCausalLM"], "torch_dtype": "float16",
  "hidden_size": 64, "word_embed_proj_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 160,
  "vocab_size": 700, "max_position_embeddings": 128})";
constexpr int kMostBatches = 8, kMostInBatch = 16;
constexpr std::array kEngines{"io_uring", "threads", "buffered"};

/// A checkpoint whose units are ranges of its files, or a shape with random weights, whose units are made.
/// With "int4" or "int8" behind the name, a blank between, the weights are quantised; with "bfloat16" they are of that
/// type, and multiplied in its arithmetic where this processor can.
std::unique_ptr<runtime::ModelSource> open_source(const std::string& model, const TemporaryFolder& folder) {
  const std::string name = model.substr(0, model.find(' ')),
                    dtype = model.substr(std::min(name.size() + 1, model.size()));
  auto format = policy::weight_format_from_text(dtype.empty() ? "auto" : dtype, "test");
  if (format && format->dtype == DType::bf16 && kernels::multiplies_bf16()) format->arithmetic = Arithmetic::bfloat16;
  if (name != "random") return runtime::open_model(data_path("golden") / name, "auto", "", format);
  write_text(folder / "config.json", kTinyConfig);
  return runtime::open_model(folder / "config.json", "auto", "random:5", format);
}

/// With "by layer" behind it, a blank between, layers keep differently; with "by head", KV heads too.
policy::Retention retention_of(const std::string& text, const policy::ModelSpec& model) {
  const std::string rule = text.substr(0, text.find(' '));
  if (rule == text) return policy::Retention::from_text(text);
  return policy::Retention::from_text(text.ends_with("by head") ? by_head(rule, model.layers, model.kv_heads)
                                                                : by_layer(rule, model.layers));
}

/// Of all lengths from one token on; every other one is scored instead of generated, some may not end before a length,
/// some report log-probabilities.
std::vector<Prompt> random_prompts(std::size_t count, int vocab, std::mt19937& random) {
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const auto ids = [&](int length) {
    std::vector<std::int32_t> list(static_cast<std::size_t>(length));
    for (std::int32_t& id : list) id = pick(0, vocab - 1);
    return list;
  };
  std::vector<Prompt> prompts(count);
  for (std::size_t i = 0; i < count; ++i) {
    prompts[i].ids = ids(i % 4 == 0 ? pick(1, 48) : pick(1, 12));
    prompts[i].tokens = pick(1, 9);
    if (i % 2 == 1) {
      prompts[i].forced = ids(static_cast<int>(prompts[i].tokens));
      continue;
    }
    prompts[i].alternatives = pick(-1, 5);
    prompts[i].min_tokens = pick(0, static_cast<int>(prompts[i].tokens));
    prompts[i].suppressed_until_min = ids(20);
  }
  return prompts;
}

/// One way to run the same requests.
struct Way {
  Fractions weights, kv, activations;
  int gpu_batch_size = 1, num_gpu_batches = 1;
  double attention_on_host = 0;
  bool overlap = false, continuous = false;
  int threads = 1;
  std::string engine = "auto";
  bool separate_device = false;
  bool in_order = false;  ///< of the requests, so that those with one prompt are neighbours

  std::string text() const {
    std::ostringstream out;
    for (const Fractions& f : {weights, kv, activations})
      out << f.device() << "/" << f.host() << "/" << f.disk() << " ";
    out << gpu_batch_size << "x" << num_gpu_batches << " host attends " << attention_on_host << " "
        << (overlap ? "overlap " : "serial ") << (continuous ? "continuous " : "static ") << threads << " " << engine
        << (separate_device ? " separate device" : "");
    return out.str();
  }
};

constexpr std::array<Fractions, 3> kCorners{{{{1, 0, 0}}, {{0, 1, 0}}, {{0, 0, 1}}}};
constexpr Fractions kThirds{{0.34, 0.33, 0.33}};

class Requests {
 public:
  /// `to_a_prompt` neighbours begin with the same prompt.
  Requests(const std::string& model, const std::string& retention, std::size_t count, unsigned seed,
           std::size_t to_a_prompt = 1, const policy::KvFormat& format = {}, int context = 0)
      : random_(seed), source_(open_source(model, folder_)), retention_(retention_of(retention, source_->spec)),
        format_(format), prompts_(random_prompts(count, source_->spec.vocab, random_)) {
    if (context > 0) go_past(context);
    for (std::size_t i = 0; i < count; ++i) prompts_[i].ids = prompts_[i - i % to_a_prompt].ids;
    // A few per session, so that the sessions' capacities differ.
    for (std::size_t first = 0; first < count; first += kTogether) {
      const std::vector some(prompts_.begin() + static_cast<std::ptrdiff_t>(first),
                             prompts_.begin() + static_cast<std::ptrdiff_t>(std::min(first + kTogether, count)));
      for (Answer& answer : run(Way{}, some, in_order(some.size()))) expected_.push_back(std::move(answer));
    }
  }

  /// With KV on each tier and on all of them, attended by the device, the host and both.
  void check_everywhere() {
    for (const Fractions& kv : {kCorners[0], kCorners[1], kCorners[2], kThirds})
      for (const double on_host : {0.0, 0.5, 1.0}) {
        Way way = random_way();
        way.weights = way.activations = kThirds, way.kv = kv, way.attention_on_host = on_host;
        way.in_order = pick(0, 1) == 1;
        check(way);
      }
  }

  /// All requests in a random order; compares with each run alone in its block, where nothing moves, on one thread.
  void check(const Way& way) {
    INFO(way.text());
    std::vector<std::size_t> order = in_order(prompts_.size());
    if (!way.in_order) std::shuffle(order.begin(), order.end(), random_);
    const std::vector<Answer> answers = run(way, prompts_, order);
    std::string faults;
    for (std::size_t i = 0; i < answers.size(); ++i)
      if (const std::string fault = difference(expected_[i], answers[i]); !fault.empty())
        faults += "request " + std::to_string(i) + ": " + fault + "; ";
    CHECK(faults == "");
  }

  /// Everything but the placement at random, a few batches of a few sequences.
  Way random_way() {
    return {.weights = {},
            .kv = {},
            .activations = {},
            .gpu_batch_size = pick(1, 6),
            .num_gpu_batches = pick(1, 4),
            .attention_on_host = pick(0, 3) / 3.0,
            .overlap = pick(0, 1) == 1,
            .continuous = pick(0, 1) == 1,
            .threads = pick(1, 2),
            .engine = kEngines[static_cast<std::size_t>(pick(0, 2))],
            .separate_device = pick(0, 1) == 1};
  }

  Fractions random_fractions() {
    std::exponential_distribution<double> share;
    Fractions f{{share(random_), share(random_), share(random_)}};
    const double sum = f.device() + f.host() + f.disk();
    for (double& value : f.of) value /= sum;
    return f;
  }

  int pick(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

 private:
  static constexpr std::size_t kTogether = 7;

  /// The model's context becomes that short, and most answers several times as long.
  void go_past(int context) {
    source_->spec.positions = context;
    for (Prompt& prompt : prompts_) {
      if (prompt.ids.size() >= static_cast<std::size_t>(context))
        prompt.ids.resize(static_cast<std::size_t>(context) - 1);
      prompt.tokens = pick(1, 4 * context);
      prompt.min_tokens = std::min(prompt.min_tokens, prompt.tokens);
      if (prompt.forced.empty()) continue;
      prompt.forced.resize(static_cast<std::size_t>(prompt.tokens));
      for (std::int32_t& token : prompt.forced) token = pick(0, source_->spec.vocab - 1);
    }
  }

  static std::vector<std::size_t> in_order(std::size_t count) {
    std::vector<std::size_t> order(count);
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }

  std::vector<Answer> run(const Way& way, const std::vector<Prompt>& prompts, const std::vector<std::size_t>& order) {
    policy::PartialPolicy policy;
    policy.weights = way.weights;
    policy.kv = way.kv;
    policy.kv_format = format_;
    policy.activations = way.activations;
    policy.gpu_batch_size = way.gpu_batch_size;
    policy.num_gpu_batches = way.num_gpu_batches;
    policy.attention_on_host = way.attention_on_host;
    policy.retention = retention_;
    policy.overlap = way.overlap;
    policy.continuous = way.continuous;
    const runtime::MachineOptions machine{.backend = "cpu",
                                          .disk_engine = way.engine,
                                          .disk_directory = folder_.path().string(),
                                          .threads = way.threads,
                                          .separate_device = way.separate_device};
    return Engine(*source_, policy, prompts, machine).run(order);
  }

  TemporaryFolder folder_;
  std::mt19937 random_;
  std::unique_ptr<runtime::ModelSource> source_;
  policy::Retention retention_;
  policy::KvFormat format_;
  std::vector<Prompt> prompts_;
  std::vector<Answer> expected_;
};

}  // namespace

TEST_CASE("answers do not depend on the tiers: every corner and random points", "[runtime]") {
  const std::string model = GENERATE("sharded-bf16", "random", "neox-parallel-f16", "llama-linear-biases-f16"),
                    retention = GENERATE("full", "h2o:0.1:0.1");
  CAPTURE(model, retention);
  Requests requests(model, retention, 14, /*seed=*/1);
  for (const Fractions& weights : kCorners)
    for (const Fractions& kv : kCorners)
      for (const Fractions& activations : kCorners) {
        Way way = requests.random_way();
        way.weights = weights, way.kv = kv, way.activations = activations;
        requests.check(way);
      }
  for (int point = 0; point < 20; ++point) {
    Way way = requests.random_way();
    way.weights = requests.random_fractions(), way.kv = requests.random_fractions(),
    way.activations = requests.random_fractions();
    requests.check(way);
  }
}

TEST_CASE("answers by other arithmetic do not depend on the tiers or the block", "[runtime][quantised]") {
  const std::string model = GENERATE("sharded-bf16 int4", "random int4", "llama-linear-biases-f16 int8",
                                     "sharded-bf16 bfloat16", "random bfloat16"),
                    retention = GENERATE("full", "h2o:0.1:0.1");
  CAPTURE(model, retention);
  Requests requests(model, retention, 14, /*seed=*/6);
  for (const Fractions& weights : kCorners)
    for (const Fractions& kv : kCorners) {
      Way way = requests.random_way();
      way.weights = weights, way.kv = kv, way.activations = kThirds;
      requests.check(way);
    }
  for (int point = 0; point < 12; ++point) {
    Way way = requests.random_way();
    way.weights = requests.random_fractions(), way.kv = requests.random_fractions(), way.activations = kThirds;
    way.gpu_batch_size = requests.pick(1, kMostInBatch);
    requests.check(way);
  }
}

TEST_CASE("answers do not depend on whether finished sequences give their places away", "[runtime]") {
  const std::string retention = GENERATE("full", "h2o:0.1:0.1");
  Requests requests("random", retention, 30, /*seed=*/4);
  for (const Fractions& kv : {kCorners[0], kCorners[1], kCorners[2], kThirds})
    for (const bool separate_device : {false, true})
      for (const double on_host : {0.0, 0.5, 1.0})
        for (const auto& [size, batches] : {std::pair{1, 1}, {3, 1}, {2, 3}, {8, 2}})
          requests.check({.weights = kThirds,
                          .kv = kv,
                          .activations = kThirds,
                          .gpu_batch_size = size,
                          .num_gpu_batches = batches,
                          .attention_on_host = on_host,
                          .overlap = true,
                          .continuous = true,
                          .threads = 2,
                          .separate_device = separate_device});
}

TEST_CASE("answers do not depend on whether a prompt's prefill is shared", "[runtime]") {
  const std::string retention = GENERATE("full", "h2o:0.2:0.2", "random:0.2:0.2", "recent:0.3");
  const std::string model = GENERATE("random", "llama-linear-biases-f16");
  CAPTURE(model, retention);
  Requests requests(model, retention, 24, /*seed=*/5, /*to_a_prompt=*/5);
  for (const Fractions& kv : kCorners)
    for (const bool continuous : {false, true})
      for (const auto& [size, batches] : {std::pair{12, 1}, {6, 3}})
        requests.check({.weights = kThirds,
                        .kv = kv,
                        .activations = kThirds,
                        .gpu_batch_size = size,
                        .num_gpu_batches = batches,
                        .continuous = continuous,
                        .threads = 2,
                        .in_order = true});
}

TEST_CASE("answers by every retention rule do not depend on how they are computed", "[runtime][kv]") {
  const std::string retention =
      GENERATE("tova:0.3", "mean:0.2:0.2", "snapkv:0.2:0.2:window=3:rest=true", "defensive:0.2:0.2:window=4",
               "h2o:0.2:0.2:window=4:pool=3:decay=0.9:sinks=1:rest=true", "recent:0.3:sinks=1:rest=true",
               "scissorhands:0.2:0.2:decay=0.9:weight=value", "keydiff:0.3:0.1:rest=true", "strided:0.2:0.2:stride=3",
               "snapkv:0.2:0.2:window=3:weight=value", "keydiff:0.2:0.1:once=true", "tova:0.3:heads=together");
  const DType dtype = GENERATE(DType::f16, DType::i4);
  CAPTURE(retention, name_of(dtype));
  Requests requests("llama-linear-biases-f16", retention, 16, /*seed=*/7, /*to_a_prompt=*/3,
                    {dtype, std::nullopt, std::nullopt});
  for (const Fractions& kv : kCorners)
    for (const double on_host : {0.0, 0.5, 1.0}) {
      Way way = requests.random_way();
      way.weights = way.activations = kThirds, way.kv = kv, way.attention_on_host = on_host;
      requests.check(way);
    }
}

TEST_CASE("answers do not depend on how they are computed where layers keep differently", "[runtime][kv][layers]") {
  const std::string model = GENERATE("random", "sharded-bf16", "llama-llama3-gqa-bf16"),
                    retention = GENERATE("h2o:0.2:0.2 by layer", "random:0.2:0.2 by layer", "keydiff:0.2:0.2 by layer",
                                         "h2o:0.2:0.2:weight=value by layer", "recent:0.3 by layer",
                                         "snapkv:0.2:0.2:window=3:rest=true by layer",
                                         "defensive:0.2:0.2:window=4:rest=true by layer");
  const DType dtype = GENERATE(DType::f16, DType::i8, DType::i4);
  CAPTURE(model, retention, name_of(dtype));
  std::optional<DType> type;
  if (dtype != DType::f16) type = dtype;
  Requests requests(model, retention, 14, /*seed=*/8, /*to_a_prompt=*/3, {type, std::nullopt, std::nullopt});
  requests.check_everywhere();
}

TEST_CASE("answers do not depend on how they are computed where KV heads keep differently", "[runtime][kv][layers]") {
  const std::string model = GENERATE("prenorm-tied-f16", "smollm2-gqa-tied-bf16"),
                    retention =
                        GENERATE("h2o:0.2:0.2 by head", "random:0.2:0.2 by head", "keydiff:0.2:0.2:rest=true by head",
                                 "snapkv:0.2:0.2:window=3:weight=value by head", "recent:0.3:sinks=1 by head");
  const DType dtype = GENERATE(DType::f16, DType::i4);
  CAPTURE(model, retention, name_of(dtype));
  Requests requests(model, retention, 14, /*seed=*/9, /*to_a_prompt=*/3, policy::KvFormat::of(dtype));
  requests.check_everywhere();
}

TEST_CASE("answers from quantised keys and values do not depend on how they are computed", "[runtime][kv]") {
  const policy::KvFormat format = GENERATE(policy::KvFormat::of(DType::i8), policy::KvFormat::of(DType::i4),
                                           policy::KvFormat{DType::i4, true, DType::i4});
  const std::string model = GENERATE("random", "llama-linear-biases-f16"),
                    retention = GENERATE("full", "h2o:0.2:0.2", "random:0.2:0.2", "recent:0.3");
  const bool rotate = retention != "recent:0.3";
  CAPTURE(policy::to_text(format, DType::f16), model, retention, rotate);
  Requests requests(model, retention, 16, /*seed=*/6, /*to_a_prompt=*/3, {format.dtype, rotate, format.keys});
  requests.check_everywhere();
}

TEST_CASE("answers that go on past the context do not depend on how they are computed", "[runtime][rolled]") {
  const auto [model, retention, dtype] = GENERATE(table<const char*, const char*, DType>(
      {{"llama-llama3-gqa-bf16", "h2o:4:4:positions=rolled", DType::bf16},
       {"llama-linear-biases-f16", "recent:5:sinks=2:positions=rolled", DType::i4},
       {"smollm3-interval-bf16", "h2o-flexgen:4:3:sinks=1:positions=rolled", DType::i8},
       {"neox-parallel-f16", "tova:6:positions=rolled", DType::f16}}));
  CAPTURE(model, retention);
  Requests requests(model, retention, 12, /*seed=*/8, /*to_a_prompt=*/3, policy::KvFormat::of(dtype), /*context=*/16);
  for (const Fractions& kv : {kCorners[0], kCorners[1], kCorners[2], kThirds})
    for (const double on_host : {0.0, 0.5, 1.0}) {
      Way way = requests.random_way();
      way.weights = way.activations = kThirds, way.kv = kv, way.attention_on_host = on_host;
      requests.check(way);
    }
}

TEST_CASE("answers do not depend on overlap, the disk engine, the threads or the attention's place", "[runtime]") {
  const std::string model = GENERATE("sharded-bf16", "random"), retention = GENERATE("full", "h2o:0.1:0.1");
  CAPTURE(model, retention);
  Requests requests(model, retention, 14, /*seed=*/2);
  for (const char* engine : kEngines)
    for (const int threads : {1, 2})
      for (const bool overlap : {false, true})
        for (const double on_host : {0.0, 0.5, 1.0})
          for (const bool separate_device : {false, true})
            requests.check({.weights = kThirds,
                            .kv = kThirds,
                            .activations = kThirds,
                            .gpu_batch_size = 4,
                            .num_gpu_batches = 3,
                            .attention_on_host = on_host,
                            .overlap = overlap,
                            .threads = threads,
                            .engine = engine,
                            .separate_device = separate_device});
}

TEST_CASE("answers do not depend on the block: 1 to 8 batches of 1 to 16 sequences", "[runtime]") {
  const std::string model = GENERATE("sharded-bf16", "random"), retention = GENERATE("full", "h2o:0.1:0.1");
  CAPTURE(model, retention);
  Requests requests(model, retention, kMostBatches * kMostInBatch + 3, /*seed=*/3);
  std::vector<std::pair<int, int>> shapes{{1, 8}, {16, 1}, {16, 8}};
  for (int i = 0; i < 4; ++i) shapes.emplace_back(requests.pick(2, kMostInBatch), requests.pick(2, kMostBatches));
  for (const auto& [size, batches] : shapes) {
    Way way = requests.random_way();
    way.gpu_batch_size = size, way.num_gpu_batches = batches;
    way.weights = way.kv = way.activations = kThirds;
    requests.check(way);
  }
}
