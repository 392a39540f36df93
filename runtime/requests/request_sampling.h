// runtime/requests/request_sampling.h: the fields of a request that decide which token comes next.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "policy/base/json.h"
#include "runtime/requests/request.h"

namespace weft::runtime {

/// The ranges in which the dialects differ.
struct SamplingRanges {
  double temperature, most_temperature;  ///< the default, and the highest
  std::int64_t least_top_k, least_seed;
};
inline constexpr SamplingRanges kNativeSampling{0, kMostTemperature, 0, 0};
inline constexpr SamplingRanges kOpenAiSampling{1, 2, -1, INT64_MIN};  // vLLM writes a top_k of -1 for 0

/// Reads request.sampling and request.rules, from the job's defaults where a field is absent. request.id is known.
/// Throws FieldError or NoTokenizer.
void read_sampling(policy::Fields& fields, const SamplingRanges& ranges, const RequestRules& rules,
                   const std::string& where, Request& request);

/// Reads the fields for the end of the answer's text and for its special tokens. Throws as above.
void read_text_options(policy::Fields& fields, const RequestRules& rules, const std::string& where, Request& request);

/// Reads the form of the answer into request.grammar. `text` is the whole line, in which `within` names the object of
/// `fields`; null: the line itself. So the properties of a schema keep their order. Throws BadRequest or NoTokenizer.
void read_form(policy::Fields& fields, std::string_view text, const char* within, const RequestRules& rules,
               const std::string& where, Request& request);

/// Reads truncate_prompt_tokens and cuts the prompt to its last tokens. A first token that the tokenizer has put in
/// front of a text stays and counts. Throws FieldError.
void cut_prompt(policy::Fields& fields, const RequestRules& rules, Request& request);

}  // namespace weft::runtime
