// tests/support/engine.h: runs prompts through the whole engine and keeps the logits that it computed on the way.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "tests/support/program.h"

namespace weft::test {

struct Prompt {
  std::vector<std::int32_t> ids;
  std::int64_t tokens = 1;           ///< number to generate, greedily
  std::vector<std::int32_t> forced;  ///< [tokens] if not empty: fed in place of generated ones, and scored
  std::int64_t min_tokens = 0;
  std::vector<std::int32_t> suppressed_until_min = {};  ///< cannot be chosen before min_tokens
  std::int32_t alternatives = -1;                       ///< Sequence::alternatives
  std::int64_t prefix = 0;                              ///< Sequence::prefix_tokens
  runtime::LogitRules rules = {};
};

struct Answer {
  std::vector<std::int32_t> tokens;        ///< [tokens]
  std::vector<float> logprobs;             ///< [tokens] of the forced tokens; empty without them
  runtime::ChoiceLogprobs token_logprobs;  ///< empty if alternatives is -1
  std::vector<std::vector<float>> logits;  ///< [tokens][vocab] from which each token was chosen
};

/// Names the first place at which two answers differ in a bit. Empty if they do not differ.
std::string difference(const Answer& expected, const Answer& got);

/// The largest |logit|.
double largest_logit(const std::vector<float>& logits);
/// The largest distance between two lists of logits, as a share of the largest expected |logit|. NaN where one is NaN.
double logit_deviation(const std::vector<float>& expected, const std::vector<float>& got);

/// `rule` with a factor for each layer: 0.5 and 1.5 in turn. If the number of layers is odd, the last keeps everything.
std::string by_layer(const std::string& rule, int layers);
/// The same, with factors that also differ between KV heads, in runs of one and of two heads.
std::string by_head(const std::string& rule, int layers, int kv_heads);

/// The checkpoint tests/data/sinks: a Qwen2 whose attention has sink logits, which its config.json cannot name.
std::unique_ptr<runtime::ModelSource> open_sinks(const std::optional<policy::WeightFormat>& format = {});

/// A session that has room for all of `prompts`, and with `shares` computes their shared prefixes once. `source` must
/// outlive it.
class Engine {
 public:
  Engine(const runtime::ModelSource& source, const policy::PartialPolicy& policy, std::vector<Prompt> prompts,
         const runtime::MachineOptions& machine = {.backend = backend_name()}, bool shares = false);

  /// Runs the prompts in the order of these indices, block after block or in one block that is refilled, as the policy
  /// chooses. Returns the answers in the order of the prompts.
  std::vector<Answer> run(std::span<const std::size_t> order);
  std::vector<Answer> run();

  runtime::Session& session() { return session_; }

 private:
  std::vector<Prompt> prompts_;
  std::atomic<bool> stop_{false};
  runtime::Session session_;
};

}  // namespace weft::test
