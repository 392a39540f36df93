// An answer depends on its own request alone, to the last bit: on no placement, block, order, overlap, disk engine,
// number of threads, place of attention and of experts, prefix that others share or chunks of prompts. One product of
// all these parameters is sampled: each value of a parameter comes equally often, and which values meet is drawn by the
// seed. WEFT_TEST_SEED draws another sample.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "runtime/model/model_source.h"
#include "tests/runtime/engine/drawn_ways.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;

namespace {

const char* const kTinyConfig = R"({"model_type": "opt", "architectures": ["OPTForCausalLM"], "torch_dtype": "float16",
  "hidden_size": 64, "word_embed_proj_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 160,
  "vocab_size": 700, "max_position_embeddings": 128})";

/// Which answers are compared: everything that an answer may depend on besides its prompt.
struct Subject {
  std::string model, weights, retention;
  policy::KvFormat kv;
  std::size_t to_a_prompt = 1;  ///< neighbours that begin with the same prompt
  int prefix = 0;               ///< tokens with which many prompts begin
  int context = 0;              ///< of the model, made so short that answers outgrow it; 0: as it is

  std::string text() const {
    return model + (weights.empty() ? "" : ", weights " + weights) + ", " + retention + ", KV " +
           policy::to_text(kv, DType::f16) + ", " + std::to_string(to_a_prompt) + " to a prompt, prefix " +
           std::to_string(prefix) + (context > 0 ? ", context " + std::to_string(context) : "");
  }
};

/// A checkpoint whose units are ranges of its files, or the shape "random" with random weights, whose units are made.
/// `weights`: "int4", "int8" or "bfloat16".
std::unique_ptr<runtime::ModelSource> open_source(const Subject& subject, const TemporaryFolder& folder) {
  const auto format = policy::weight_format_from_text(subject.weights.empty() ? "auto" : subject.weights, "test");
  if (subject.model == "sinks") return open_sinks(format);
  if (subject.model != "random") return runtime::open_model(data_path("golden") / subject.model, "auto", "", format);
  write_text(folder / "config.json", kTinyConfig);
  return runtime::open_model(folder / "config.json", "auto", "random:5", format);
}

/// "RULE by layer": layers keep differently; "RULE by head": KV heads too.
policy::Retention retention_of(const std::string& text, const policy::ModelSpec& model) {
  const std::string rule = text.substr(0, text.find(' '));
  if (rule == text) return policy::Retention::from_text(text);
  return policy::Retention::from_text(text.ends_with("by head") ? by_head(rule, model.layers, model.kv_heads)
                                                                : by_layer(rule, model.layers));
}

/// Prompts of all lengths from one token on; every other one is scored instead of generated, some may not end before a
/// length, some report log-probabilities, some have rules for their logits. Half of them begin with one of two
/// prefixes, which begin alike.
std::vector<Prompt> random_prompts(std::size_t count, int vocab, int prefix, Dice& dice) {
  const auto ids = [&](int length) {
    std::vector<std::int32_t> list(static_cast<std::size_t>(length));
    for (std::int32_t& id : list) id = dice.pick(0, vocab - 1);
    return list;
  };
  std::vector<Prompt> prompts(count);
  std::vector<std::int32_t> beginning = ids(prefix);
  for (std::size_t i = 0; i < count; ++i) {
    prompts[i].ids = ids(i % 4 == 0 ? dice.pick(1, 48) : dice.pick(1, 12));
    if (prefix > 0 && dice.pick(0, 1) == 1) {
      beginning.back() = dice.pick(0, 3) == 0 ? 1 : 2;
      prompts[i].ids.insert(prompts[i].ids.begin(), beginning.begin(), beginning.end());
      prompts[i].prefix = prefix;
    }
    prompts[i].tokens = dice.pick(1, 9);
    if (i % 2 == 1) {
      prompts[i].forced = ids(static_cast<int>(prompts[i].tokens));
      continue;
    }
    prompts[i].alternatives = dice.pick(-1, 5);
    prompts[i].min_tokens = dice.pick(0, static_cast<int>(prompts[i].tokens));
    prompts[i].suppressed_until_min = ids(20);
    if (i % 3 == 0) continue;
    runtime::LogitRules& rules = prompts[i].rules;
    rules.repetition_penalty = static_cast<float>(dice.pick(8, 16)) / 8;
    rules.presence_penalty = 0.5f, rules.frequency_penalty = -0.25f;
    for (int id = dice.pick(0, 9); id < vocab; id += dice.pick(5, 50)) rules.bias.push_back({id, 1.5f});
    rules.bad_words = {ids(1), ids(2)};
    if (i % 4 != 0) continue;
    rules.allowed = {0};
    for (int id = 4; id < vocab - 9; ++id) rules.allowed.push_back(id);
  }
  return prompts;
}

/// Some requests, and their answers as each is computed alone in its block, where nothing moves, on one thread.
class Requests {
 public:
  Requests(const Subject& subject, std::size_t count, Dice& dice)
      : dice_(dice), source_(open_source(subject, folder_)), retention_(retention_of(subject.retention, source_->spec)),
        format_(subject.kv), prompts_(random_prompts(count, source_->spec.vocab, subject.prefix, dice)) {
    if (subject.context > 0) go_past(subject.context);
    for (std::size_t i = 0; i < count; ++i) {
      const Prompt& first = prompts_[i - i % subject.to_a_prompt];
      prompts_[i].ids = first.ids, prompts_[i].prefix = first.prefix;
    }
    // A few per session, so that the sessions' capacities differ.
    for (std::size_t first = 0; first < count; first += kTogether) {
      const std::vector some(prompts_.begin() + static_cast<std::ptrdiff_t>(first),
                             prompts_.begin() + static_cast<std::ptrdiff_t>(std::min(first + kTogether, count)));
      for (Answer& answer : run(Way{}, some, in_order(some.size()))) expected_.push_back(std::move(answer));
    }
  }

  void check(const Way& way) {
    INFO(way.text());
    std::vector<std::size_t> order = in_order(prompts_.size());
    if (!way.in_order) dice_.shuffle(order);
    const std::vector<Answer> answers = run(way, prompts_, order);
    std::string faults;
    for (std::size_t i = 0; i < answers.size(); ++i)
      if (const std::string fault = difference(expected_[i], answers[i]); !fault.empty())
        faults += "request " + std::to_string(i) + ": " + fault + "; ";
    CHECK(faults == "");
  }

 private:
  static constexpr std::size_t kTogether = 7;

  /// The model's context becomes that short, and most answers several times as long.
  void go_past(int context) {
    source_->spec.positions = context;
    for (Prompt& prompt : prompts_) {
      if (prompt.ids.size() >= static_cast<std::size_t>(context))
        prompt.ids.resize(static_cast<std::size_t>(context) - 1);
      prompt.tokens = dice_.pick(1, 4 * context);
      prompt.min_tokens = std::min(prompt.min_tokens, prompt.tokens);
      if (prompt.forced.empty()) continue;
      prompt.forced.resize(static_cast<std::size_t>(prompt.tokens));
      for (std::int32_t& token : prompt.forced) token = dice_.pick(0, source_->spec.vocab - 1);
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
    if (source_->spec.experts.count > 0) policy.experts_on_host = way.experts_on_host;
    policy.retention = retention_;
    policy.overlap = way.overlap;
    policy.continuous = way.continuous;
    if (way.tokens > 0) policy.max_batched_tokens = way.tokens;
    const runtime::MachineOptions machine{.backend = "cpu",
                                          .disk_engine = way.engine,
                                          .disk_directory = folder_.path().string(),
                                          .threads = way.threads,
                                          .separate_device = way.separate_device};
    return Engine(*source_, policy, prompts, machine, way.shares).run(order);
  }

  Dice& dice_;
  TemporaryFolder folder_;
  std::unique_ptr<runtime::ModelSource> source_;
  policy::Retention retention_;
  policy::KvFormat format_;
  std::vector<Prompt> prompts_;
  std::vector<Answer> expected_;
};

/// Deals the subjects. What cannot meet (rolled positions without rotary embedding, the mean of evicted tokens with
/// sliding windows, bfloat16 products of other weights, heads that keep differently with one KV head, cold tokens and
/// tokens that are not read in full beside keys and values that are not int8) is left out here and refused by the
/// program.
class Subjects {
 public:
  explicit Subjects(Dice& dice)
      : model_({{"sharded-bf16", "int4"},
                {"sharded-bf16", "bfloat16"},
                {"random", ""},
                {"random", "int4"},
                {"random", "bfloat16"},
                {"neox-parallel-f16", ""},
                {"llama-linear-biases-f16", "int8"},
                {"llama-linear-biases-f16", ""},
                {"llama-llama3-gqa-bf16", ""},
                {"prenorm-tied-f16", ""},
                {"smollm2-gqa-tied-bf16", "int4"},
                {"smollm2-gqa-tied-bf16", ""},
                {"smollm3-interval-bf16", ""},
                {"gemma3-text-slides-bf16", ""},
                {"gemma2-slides-bf16", ""},
                {"gemma4-slides-bf16", ""},
                {"gemma4-slides-heads-f32", "int8"},
                {"gemma4-slides-experts-f32", ""},
                {"gemma4-slides-experts-f32", "int4"},
                {"gemma4-slides-shared-bf16", ""},
                {"gemma4-slides-shared-bf16", "int4"},
                {"gemma4-slides-shared-f32", "int8"},
                {"sinks", ""},
                {"sinks", "int8"},
                {"olmo3-slides-yarn-bf16", "int4"},
                {"mistral-slides-f16", ""},
                {"phi3-longrope-bf16", "int8"},
                {"moe-qwen2-shared-f16", ""},
                {"moe-mixtral-slides-sharded-bf16", "int4"},
                {"moe-glm4-groups-f16", "int8"},
                {"moe-gpt-oss-bf16", "int8"},
                {"moe-granite-f32", ""},
                {"sharded-bf16", ""}},
               dice),
        retention_({"full",
                    "h2o:0.1:0.1",
                    "h2o:0.2:0.2 by layer",
                    "h2o:0.2:0.2 by head",
                    "heavy:0.3",
                    "h2o:0.2:0.2:window=4:pool=3:decay=0.9:sinks=1:rest=true",
                    "h2o-flexgen:0.2:0.1:sinks=1",
                    "random:0.2:0.2",
                    "random:0.2:0.2 by layer",
                    "random:0.2:0.2 by head",
                    "recent:0.3",
                    "recent:0.3:sinks=1:rest=true",
                    "recent:0.3 by layer",
                    "recent:0.3:sinks=1 by head",
                    "tova:0.3",
                    "snapkv:0.2:0.2:window=3:rest=true",
                    "snapkv:0.2:0.2:window=3:rest=true by layer",
                    "snapkv:0.2:0.2:window=3 by head",
                    "defensive:0.2:0.2:window=4",
                    "defensive:0.2:0.2:window=4:rest=true by layer",
                    "keydiff:0.3:0.1:rest=true",
                    "keydiff:0.2:0.1:once=true",
                    "keydiff:0.2:0.2 by layer",
                    "keydiff:0.2:0.2:rest=true by head",
                    "h2o:0.1:0.1:cold=1.0",
                    "h2o:0.2:0.1:sinks=1:cold=0.4 by head",
                    "snapkv:0.1:0.1:window=3:cold=0.6",
                    "recent:0.2:cold=0.5 by layer",
                    "full:read=0.2",
                    "full:read=7",
                    "h2o:0.3:0.1:sinks=1:read=0.15 by layer",
                    "snapkv:0.3:0.1:window=3:read=0.1 by head",
                    "recent:0.5:read=0.2"},
                   dice),
        rolled_({"h2o:4:4:positions=rolled", "recent:5:sinks=2:positions=rolled",
                 "h2o-flexgen:4:3:sinks=1:positions=rolled", "tova:6:positions=rolled"},
                dice),
        kv_({{},
             policy::KvFormat::of(DType::i8),
             policy::KvFormat::of(DType::i4),
             {DType::i4, true, DType::i4},
             {DType::i8, false, {}},
             {}},
            dice),
        coarse_({{DType::i8, true, {}, kernels::CoarseBits{3, 2}}, {DType::i8, false, {}, kernels::CoarseBits{4, 1}}},
                dice),
        to_a_prompt_({1, 3, 5}, dice), prefix_({64, 0, 64, 70, 64}, dice) {}

  Subject draw() {
    const auto [model, weights] = model_.draw();
    Subject subject{model, weights, retention_.draw(), kv_.draw(), to_a_prompt_.draw(), prefix_.draw()};
    const auto rest = subject.retention.find(":rest=true");
    const bool windows = model.find("slides") != std::string::npos || model.starts_with("moe-gpt-oss");
    // Layers have two KV heads or one, or all have one.
    if (const auto by_head = subject.retention.find(" by head");
        (model == "gemma4-slides-bf16" || model == "gemma4-slides-shared-bf16") && by_head != std::string::npos)
      subject.retention.replace(by_head, std::string::npos, " by layer");
    if ((windows || model == "sinks") && rest != std::string::npos) subject.retention.erase(rest, 10);
    if (subject.retention.find(":cold=") != std::string::npos || subject.retention.find(":read=") != std::string::npos)
      subject.kv = coarse_.draw();
    const bool rotary = model.starts_with("neox") || model.starts_with("llama") || model.starts_with("smollm");
    if (rotary && ++rotary_ % 4 == 0) {
      subject.retention = rolled_.draw(), subject.context = 16, subject.prefix = 0;
      subject.kv.coarse.reset();
    }
    return subject;
  }

 private:
  Deck<std::pair<std::string, std::string>> model_;
  Deck<std::string> retention_, rolled_;
  Deck<policy::KvFormat> kv_, coarse_;
  Deck<std::size_t> to_a_prompt_;
  Deck<int> prefix_;
  int rotary_ = 0;
};

std::uint64_t seed() {
  const char* const text = std::getenv("WEFT_TEST_SEED");
  return text != nullptr ? std::strtoull(text, nullptr, 10) : 1;
}

/// The subjects [first, first + count) of the sample, each computed in `ways` ways.
void check_sample(int first, int count, int ways) {
  Dice of_subjects(seed()), dice(seed() * 1'000 + static_cast<std::uint64_t>(first));
  Subjects subjects(of_subjects);
  Ways way(dice);
  for (int i = 0; i < first; ++i) subjects.draw();
  for (int i = 0; i < count; ++i) {
    const Subject subject = subjects.draw();
    CAPTURE(seed(), first + i, subject.text());
    Requests requests(subject, 16, dice);
    for (int j = 0; j < ways; ++j) requests.check(way.draw());
  }
}

}  // namespace

TEST_CASE("answers do not depend on how they are computed: sample 1 of 4", "[runtime][identity]") {
  check_sample(0, 7, 10);
}
TEST_CASE("answers do not depend on how they are computed: sample 2 of 4", "[runtime][identity]") {
  check_sample(7, 7, 10);
}
TEST_CASE("answers do not depend on how they are computed: sample 3 of 4", "[runtime][identity]") {
  check_sample(14, 7, 10);
}
TEST_CASE("answers do not depend on how they are computed: sample 4 of 4", "[runtime][identity]") {
  check_sample(21, 7, 10);
}

TEST_CASE("answers do not depend on how they are computed: a large sample", "[.][runtime][identity][exhaustive]") {
  check_sample(28, 308, 12);
}

TEST_CASE("answers do not depend on the block: 1 to 8 batches of 1 to 16 sequences", "[runtime][identity]") {
  const std::string model = GENERATE("sharded-bf16", "random"), retention = GENERATE("full", "h2o:0.1:0.1");
  CAPTURE(model, retention);
  Dice dice(seed());
  Ways ways(dice);
  Requests requests({.model = model, .weights = "", .retention = retention, .kv = {}}, kMostBatches * kMostInBatch + 3,
                    dice);
  for (const auto& [size, batches] : {std::pair{1, 8}, {16, 1}, {16, 8}, {dice.pick(2, 15), dice.pick(2, 7)}}) {
    Way way = ways.draw();
    way.gpu_batch_size = size, way.num_gpu_batches = batches;
    requests.check(way);
  }
}
