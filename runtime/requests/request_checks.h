// runtime/requests/request_checks.h: the checks that all dialects of request files share.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/base/json.h"
#include "runtime/requests/choice.h"
#include "runtime/requests/request.h"

namespace weft::runtime {

inline constexpr std::int64_t kMostTokens = 1 << 24;
inline constexpr std::int64_t kMostChoices = 128;
inline constexpr std::size_t kMostStops = 16, kLongestStop = 512;  ///< stop strings; bytes of each
inline constexpr const char* kMetadata = "metadata";
inline constexpr std::size_t kLongestId = 512;          ///< bytes
inline constexpr std::ptrdiff_t kLongestStrictId = 64;  ///< characters

/// An object as its writer means it: without the keys that are null, and with whole numbers that were written as 2.0 as
/// integers, as pandas writes them. Only its own keys change, and `metadata` does not.
nlohmann::json as_meant(const nlohmann::json& object);
/// Reads a non-empty list of ids in the vocabulary.
std::vector<std::int32_t> token_ids(policy::Fields& fields, const std::string& key, int vocab);
/// Reads a string or a list of at most 16, each of 1 to 512 bytes.
std::vector<std::string> stop_strings(policy::Fields& fields, const RequestRules& rules, const std::string& where);
/// Whether `value` is an id: a string of 1 to 512 bytes without control characters. Native ids may also be integers.
/// OpenAI ids have at most 64 characters if `strict`.
bool is_native_id(const nlohmann::json& value);
bool is_openai_id(const nlohmann::json& value, bool strict);
/// The dialect of a file, from the keys of its first object.
Dialect dialect_of(const nlohmann::json& object);
/// The id of a request line, as JSON. The id of a native line without one is its place in the file. Returns nothing if
/// the id cannot be read.
std::optional<std::string> id_of_line(const nlohmann::json& line, std::size_t number, Dialect dialect, bool strict);
std::string default_id(std::size_t number);
/// The number of the request line that a result line without an id refuses; 0 if it has none.
std::uint64_t refused_line(const nlohmann::json& result);

/// The "metadata" of a line as JSON, for its answer; empty if it has none.
std::string metadata_of(const nlohmann::json& line);

/// Throws BadRequest for the first key that is not known, with a `hint` at the end.
void refuse_unknown_keys(policy::Fields& fields, const std::string& where, const std::string& hint = "");

/// The number of tokens that may follow the prompt: at least one, and any number if positions are rolled. Throws
/// BadRequest for a prompt that has no tokens or fills the context, and for a prompt or continuation with a token
/// beyond the vocabulary.
std::int64_t room_after_prompt(const Request& request, const RequestRules& rules, const std::string& where);
/// Throws BadRequest if n, logprobs, prompt_logprobs, echo and min_tokens do not go together, or not with this model.
void check_choices(const Request& request, const RequestRules& rules, const std::string& where);
/// Throws BadRequest if the answer does not fit in `room`, or the kept part of the sequence does not fit in the
/// context.
void check_length(const Request& request, std::int64_t room, const RequestRules& rules, const std::string& where);

/// Makes all but the first token of a prompt whose log-probabilities are wanted its continuation. Throws BadRequest if
/// there is nothing to compute.
void split_prompt(Request& request, const std::string& where);

}  // namespace weft::runtime
