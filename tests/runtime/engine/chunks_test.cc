// Prompts that are longer than a chunk, and shared prefixes that are: the same answers to the last bit as in one chunk,
// for every kind of model, retention and KV format, wherever buffers lie.
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/random.h"
#include "runtime/model/model_source.h"
#include "tests/support/engine.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using policy::Fractions;

namespace {

constexpr int kVocab = 300, kChunkContext = 640;

/// A tiny shape, and what of the product of all parameters it meets.
struct ChunkSubject {
  std::string config, retention;
  policy::KvFormat kv = {};
  std::string dtype = "float16";
};

std::string config(const std::string& more) {
  return R"({"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 300, "max_position_embeddings": 640, )" + more +
         "}";
}
const std::string kOpt = R"("model_type": "opt", "num_attention_heads": 2, "ffn_dim": 48)";
const std::string kLlama = R"("model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2,
                              "intermediate_size": 48)";
const std::string kSlides = R"("model_type": "mistral", "num_attention_heads": 4, "num_key_value_heads": 1,
                               "intermediate_size": 48, "sliding_window": 90)";
const std::string kFused = R"("model_type": "gpt_neox", "num_attention_heads": 2, "intermediate_size": 48,
                              "bos_token_id": null, "eos_token_id": null)";
const std::string kCapped =
    R"("model_type": "gemma2", "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
                               "intermediate_size": 48, "sliding_window": 100, "attn_logit_softcapping": 2)";
const std::string kSparse = R"("model_type": "mixtral", "num_attention_heads": 2, "num_key_value_heads": 2,
                               "intermediate_size": 24, "num_local_experts": 4, "num_experts_per_tok": 2)";

const std::vector<ChunkSubject> kChunkSubjects{
    {kLlama, "full"},
    {kLlama, "h2o:0.1:0.1"},
    {kOpt, "h2o:20:20:window=150:pool=3:sinks=1:rest=true", policy::KvFormat::of(DType::i8)},
    {kLlama, "snapkv:0.1:0.1:window=32", policy::KvFormat::of(DType::i4)},
    {kFused, "defensive:0.1:0.1:window=70", {}, "bfloat16"},
    {kSlides, "h2o:0.1:0.05"},
    {kSlides, "recent:0.2:sinks=2", policy::KvFormat::of(DType::i8), "float32"},
    {kCapped, "tova:0.2", {DType::i8, false, {}}},
    {kSparse, "keydiff:0.1:0.1:rest=true"},
    {kSparse, "h2o:0.1:0.1", {}, "float32"},
    {kOpt, "random:0.1:0.1", policy::KvFormat::of(DType::f32)},
};

/// Prompts of one token to several chunks, the lengths around a chunk's among them. Half begin with one of two
/// prefixes, which are longer than some chunks. Two prompts are equal.
std::vector<Prompt> prompts() {
  std::uint64_t draws = 0;
  const auto ids = [&](int count) {
    std::vector<std::int32_t> list;
    for (int i = 0; i < count; ++i)
      list.push_back(static_cast<std::int32_t>(kernels::random_bits(11, ++draws) % kVocab));
    return list;
  };
  const std::vector<std::int32_t> prefixes[] = {ids(150), ids(256)};
  std::vector<Prompt> all;
  for (const int length : {1, 63, 64, 65, 200, 330}) all.push_back({ids(length), 3, {}});
  for (const int own : {1, 20, 100, 230}) {
    const std::vector<std::int32_t>& prefix = prefixes[all.size() % 2];
    Prompt prompt{prefix, 4, {}};
    const std::vector<std::int32_t> rest = ids(own);
    prompt.ids.insert(prompt.ids.end(), rest.begin(), rest.end());
    prompt.prefix = static_cast<std::int64_t>(prefix.size());
    all.push_back(prompt);
    prompt.ids.back() = (prompt.ids.back() + 1) % kVocab;
    all.push_back(prompt);
  }
  all.push_back(all[5]);
  return all;
}

/// One way to run them.
struct Chunking {
  std::optional<std::int64_t> tokens = {};  ///< Policy::max_batched_tokens
  Fractions weights, kv, activations;
  int gpu_batch_size = 4, num_gpu_batches = 2;
  double attention_on_host = 0;
  bool shares = false, continuous = true;
};
const Fractions kDevice{{1, 0, 0}}, kHost{{0, 1, 0}}, kDisk{{0, 0, 1}}, kAll{{0.4, 0.3, 0.3}};
const std::vector<Chunking> kChunkings{
    {64, kDevice, kDevice, kDevice, 5, 3},
    {100, kHost, kHost, kHost, 4, 2, 1, true},
    {192, kAll, kAll, kDisk, 15, 1, 0.5, true},
    {64, kDisk, kDisk, kAll, 1, 4, 0, true, false},
    {320, kHost, kAll, kDevice, 3, 2, 0, false, false},
};

std::vector<Answer> run(const runtime::ModelSource& source, const ChunkSubject& subject, const Chunking& way,
                        const TemporaryFolder& folder, const std::string& backend) {
  policy::PartialPolicy policy;
  policy.max_batched_tokens = way.tokens;
  policy.weights = way.weights, policy.kv = way.kv, policy.activations = way.activations;
  policy.gpu_batch_size = way.gpu_batch_size, policy.num_gpu_batches = way.num_gpu_batches;
  policy.attention_on_host = way.attention_on_host;
  policy.kv_format = subject.kv;
  policy.retention = policy::Retention::from_text(subject.retention);
  policy.continuous = way.continuous;
  const runtime::MachineOptions machine{.backend = backend, .disk_directory = folder.path().string(), .threads = 2};
  return Engine(source, policy, prompts(), machine, way.shares).run();
}

}  // namespace

TEST_CASE("a prompt that goes through the layers in chunks gets the same answer", "[runtime][identity]") {
  const ChunkSubject& subject = GENERATE(from_range(kChunkSubjects));
  CAPTURE(subject.config, subject.retention, policy::to_text(subject.kv, DType::f16), subject.dtype);
  const TemporaryFolder folder;
  write_text(folder / "config.json", config(subject.config));
  const auto source = runtime::open_model(folder / "config.json", subject.dtype, "random:5", {});
  const auto expected =
      run(*source, subject, Chunking{.weights = kDevice, .kv = kDevice, .activations = kDevice}, folder, "cpu");
  for (const Chunking& way : kChunkings) {
    CAPTURE(*way.tokens, way.gpu_batch_size, way.num_gpu_batches, way.shares);
    const auto answers = run(*source, subject, way, folder, "cpu");
    for (std::size_t i = 0; i < answers.size(); ++i) {
      CAPTURE(i);
      CHECK(difference(expected[i], answers[i]) == "");
    }
  }
}
