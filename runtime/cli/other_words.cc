#include "runtime/cli/other_words.h"

#include <algorithm>
#include <span>

namespace weft::runtime {
namespace {

constexpr const char* kBlock = "--gpu-batch-size and --num-gpu-batches set how many sequences run at once";
constexpr const char* kFolder = "--model takes a folder; download it first";
constexpr const char* kInFolder = "Weft reads it from the --model folder";
constexpr const char* kShards = "one process drives one GPU; --shard K/N and weft merge split a job among several";
constexpr const char* kPlacement = "--device-memory sets how much may be used, --percent how much lies on each tier";
constexpr const char* kNoServer = "Weft answers files of requests (weft generate) and opens no port";
constexpr const char* kCode = "Weft never runs a model's code";
constexpr const char* kPacked = "--weight-dtype int8 or int4, for commands that take a policy and for weft convert";
constexpr const char* kCache = "--kv-dtype int8 or int4, and --retention, make the KV cache smaller";
constexpr const char* kFixed = "Weft always does this";

struct Word {
  std::string_view theirs, ours;
};

// Flags without their leading dashes, and with - for _.
constexpr Word kWords[] = {
    // model
    {"m", "--model"},
    {"model-name-or-path", "--model"},
    {"pretrained", "--model"},
    {"path", "--model"},
    {"hf-repo", kFolder},
    {"hf", kFolder},
    {"hfr", kFolder},
    {"revision", kFolder},
    {"download-dir", kFolder},
    {"hf-token", kFolder},
    {"cache-dir", kFolder},
    {"tokenizer", kInFolder},
    {"load-format", "the format of the weights is recognised"},
    {"trust-remote-code", kCode},
    {"torch-dtype", "--dtype"},
    {"quantization", kPacked},
    {"q", kPacked},
    {"load-in-8bit", kPacked},
    {"load-in-4bit", kPacked},
    {"compress-weight", kPacked},
    {"kv-cache-dtype", kCache},
    {"cache-type-k", kCache},
    {"cache-type-v", kCache},
    {"ctk", kCache},
    {"ctv", kCache},
    {"hh-ratio", "--retention h2o:HEAVY:RECENT"},
    {"hh-all", "--retention h2o:HEAVY:RECENT"},
    {"hh-long-seq", "--retention h2o:HEAVY:RECENT"},
    // requests
    {"p", "--input FILE, with lines such as {\"prompt\": \"...\"}"},
    {"prompt", "--input FILE, with lines such as {\"prompt\": \"...\"}"},
    {"f", "--input FILE, with lines such as {\"prompt\": \"...\"}"},
    {"file", "--input FILE, with lines such as {\"prompt\": \"...\"}"},
    {"input-file", "--input"},
    {"i", "--input"},
    {"o", "--output"},
    {"output-file", "--output"},
    {"n", "--max-tokens, or a request's \"max_tokens\"; its \"n\" is the number of answers"},
    {"n-predict", "--max-tokens, or a request's \"max_tokens\""},
    {"predict", "--max-tokens, or a request's \"max_tokens\""},
    {"max-new-tokens", "--max-tokens, or a request's \"max_tokens\""},
    {"max-gen-toks", "--max-tokens, or a request's \"max_tokens\""},
    {"max-length", "--max-tokens, or a request's \"max_tokens\", counts the answer alone"},
    {"gen-len", "--max-tokens, or a request's \"max_tokens\""},
    {"min-tokens", "a request's \"min_tokens\""},
    {"min-new-tokens", "a request's \"min_tokens\""},
    {"temp", "--temperature, or a request's \"temperature\""},
    {"temperature", "weft generate --temperature"},
    {"do-sample", "--temperature; 0 is greedy"},
    {"top-k", "weft generate --top-k"},
    {"top-p", "weft generate --top-p"},
    {"s", "--seed, or a request's \"seed\""},
    {"seed", "weft generate --seed"},
    {"num-return-sequences", "a request's \"n\""},
    {"best-of", "a request's \"n\" gives several answers; Weft does not choose one"},
    {"stop", "weft generate --stop"},
    {"r", "--stop, or a request's \"stop\""},
    {"reverse-prompt", "--stop, or a request's \"stop\""},
    {"ignore-eos", "a request's \"ignore_eos\""},
    {"logprobs", "a request's \"logprobs\""},
    {"echo", "a request's \"echo\""},
    {"num-beams", "there is no beam search; a request's \"n\" gives several answers"},
    {"repeat-penalty", "a request's \"repetition_penalty\""},
    {"repetition-penalty", "a request's \"repetition_penalty\""},
    {"presence-penalty", "a request's \"presence_penalty\""},
    {"frequency-penalty", "a request's \"frequency_penalty\""},
    {"logit-bias", "a request's \"logit_bias\""},
    {"sys", "--system-prompt"},
    {"system", "--system-prompt"},
    {"apply-chat-template", "--chat"},
    {"grammar", "a request's \"guided_grammar\""},
    {"lora", "adapters must be merged into the model first"},
    {"lora-modules", "adapters must be merged into the model first"},
    {"enable-lora", "adapters must be merged into the model first"},
    // memory and batches
    {"gpu-memory-utilization", "--device-memory, in bytes such as 16GiB"},
    {"max-model-len", "the model's config.json sets it; the longest request decides how much is used"},
    {"c", "the model's config.json sets it; the longest request decides how much is used"},
    {"ctx-size", "the model's config.json sets it; the longest request decides how much is used"},
    {"swap-space", "--host-memory"},
    {"cpu-offload-gb", "--percent sets how much lies on each tier, --host-memory how much host memory may be used"},
    {"max-memory", kPlacement},
    {"device-map", kPlacement},
    {"ngl", kPlacement},
    {"n-gpu-layers", kPlacement},
    {"gpu-layers", kPlacement},
    {"offload-folder", "--disk-dir"},
    {"offload-dir", "--disk-dir"},
    {"low-cpu-mem-usage", kFixed},
    {"mlock", kFixed},
    {"no-mmap", kFixed},
    {"batch-size", kBlock},
    {"b", kBlock},
    {"ub", "--max-num-batched-tokens"},
    {"ubatch-size", "--max-num-batched-tokens"},
    {"np", kBlock},
    {"parallel", kBlock},
    {"max-num-seqs", kBlock},
    {"per-device-eval-batch-size", kBlock},
    {"cont-batching", "--schedule continuous, the default"},
    {"cpu-cache-compute", "--attention host"},
    {"sep-layer", kFixed},
    {"enable-chunked-prefill",
     "long prompts are computed in chunks automatically; --max-num-batched-tokens sets how long"},
    {"max-num-partial-prefills", "--max-num-batched-tokens sets how many prompt tokens are computed at once"},
    {"enable-prefix-caching", "equal prompts share their prefill automatically"},
    {"fa", kFixed},
    {"flash-attn", kFixed},
    // machine
    {"t", "--threads"},
    {"device", "--backend"},
    {"dev", "--backend, and CUDA_VISIBLE_DEVICES for one GPU of several"},
    {"main-gpu", "CUDA_VISIBLE_DEVICES"},
    {"tensor-parallel-size", kShards},
    {"tp", kShards},
    {"pipeline-parallel-size", kShards},
    {"pp", kShards},
    {"data-parallel-size", kShards},
    {"dp", kShards},
    {"tensor-split", kShards},
    {"ts", kShards},
    {"enforce-eager", "--no-overlap shows what overlap gains; nothing is compiled"},
    {"log-file", "2>FILE; --report FILE has the figures"},
    {"log-disable", "--quiet"},
    {"port", kNoServer},
    {"host", kNoServer},
    {"api-key", kNoServer},
    // commands
    {"serve", kNoServer},
    {"server", kNoServer},
    {"chat", kNoServer},
    {"run", "weft generate"},
    {"complete", "weft generate"},
    {"run-batch", "weft generate, which reads the same lines"},
    {"quantize", kPacked},
};

}  // namespace

std::optional<std::string> our_words(std::string_view word) {
  std::string plain(word.substr(0, word.find('=')));
  plain.erase(0, std::min(plain.find_first_not_of('-'), plain.size()));
  std::replace(plain.begin(), plain.end(), '_', '-');
  const std::span<const Word> words(kWords);
  const auto found = std::find_if(words.begin(), words.end(), [&](const Word& each) { return each.theirs == plain; });
  if (found == words.end()) return {};
  return std::string(found->ours);
}

}  // namespace weft::runtime
