// runtime/requests/request_defaults.h: the values of fields that request lines do not have.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/model_texts.h"

namespace weft::runtime {

/// The rule that cuts the text of an answer to a conversation into reasoning and answer, by vLLM's names of its
/// parsers.
enum class Reasoning : std::uint8_t {
  whole,        ///< not at all
  deepseek_r1,  ///< all up to </think>, or all of it, is reasoning; <think> in front is left out
  qwen3,        ///< the text between <think> and </think> is reasoning, if both are there
};

/// Set by the flags of a job, and by generation_config.json where it is asked for. What is not set here is as the
/// dialect has it.
struct RequestDefaults {
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<std::int64_t> top_k, seed;
  std::optional<std::int64_t> max_tokens;  ///< only in suggested_by(): a job always has one
  std::vector<std::string> stop;
  std::string system_prompt;  ///< the first message of conversations without one of the system
  bool chat = false;          ///< in Weft's own lines "prompt" is the message of a user
  Reasoning reasoning = Reasoning::whole;

  /// Throws UsageError, which names the flag, if a value is out of range.
  void check() const;
  /// Takes from `other` what is not set here.
  void fill_from(const RequestDefaults& other);
  /// All that is set, as JSON on one line; empty if nothing is. `max_tokens` is left out.
  std::string text() const;
};

/// Parses the name of a parser. Throws UsageError.
Reasoning reasoning_from_text(const std::string& name);

/// The values of sampling in a model's generation_config.json, as vLLM takes them. Throws DataError if one is out of
/// range.
RequestDefaults suggested_by(const ModelTexts& files);

}  // namespace weft::runtime
