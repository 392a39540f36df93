// tests/support/engine.h: prompts through the whole engine, and what it computed on the way.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/session.h"
#include "tests/support/program.h"

namespace weft::test {

struct Prompt {
  std::vector<std::int32_t> ids;
  std::int64_t tokens = 1;           ///< to be generated, the most likely one each time
  std::vector<std::int32_t> forced;  ///< [tokens] if not empty: fed in their place and scored
  std::int64_t min_tokens = 0;
  std::vector<std::int32_t> suppressed_until_min = {};  ///< not to be chosen before min_tokens
  std::int32_t alternatives = -1;                       ///< of Sequence
};

struct Answer {
  std::vector<std::int32_t> tokens;        ///< [tokens]
  std::vector<float> logprobs;             ///< [tokens] of forced ones, else empty
  runtime::ChoiceLogprobs token_logprobs;  ///< of generated ones, where alternatives are not -1
  std::vector<std::vector<float>> logits;  ///< [tokens][vocab] that each token was chosen from
};

/// The first place where two answers are not the same bits, or nothing.
std::string difference(const Answer& expected, const Answer& got);

/// A retention rule by which layers keep differently: alternately half as much and half as much again; with an odd
/// number of layers the last one keeps everything.
std::string by_layer(const std::string& rule, int layers);
/// The same, with KV heads that keep differently too, in runs of one and of two.
std::string by_head(const std::string& rule, int layers, int kv_heads);

/// A session large enough for all of `prompts`. `source` must outlive it.
class Engine {
 public:
  Engine(const runtime::ModelSource& source, const policy::PartialPolicy& policy, std::vector<Prompt> prompts,
         const runtime::MachineOptions& machine = {.backend = backend_name()});

  /// Block after block, or in one that is refilled, as the policy says; the prompts in the order of these indices. The
  /// answers are in the order of the prompts.
  std::vector<Answer> run(std::span<const std::size_t> order);
  std::vector<Answer> run();

  runtime::Session& session() { return session_; }

 private:
  std::vector<Prompt> prompts_;
  std::atomic<bool> stop_{false};
  runtime::Session session_;
};

}  // namespace weft::test
