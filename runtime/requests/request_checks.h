// runtime/requests/request_checks.h: what the dialects of request files check alike.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "policy/json.h"
#include "runtime/requests/choice.h"
#include "runtime/requests/request.h"

namespace weft::runtime {

inline constexpr std::int64_t kMostTokens = 1 << 24;
inline constexpr std::int64_t kMostChoices = 128;
inline constexpr std::size_t kLongestId = 512;          ///< bytes
inline constexpr std::ptrdiff_t kLongestStrictId = 64;  ///< characters

/// A non-empty list of ids in the vocabulary.
std::vector<std::int32_t> token_ids(policy::Fields& fields, const std::string& key, int vocab);
/// A string or a list of at most 16, each of 1 to 512 bytes.
std::vector<std::string> stop_strings(policy::Fields& fields, const RequestRules& rules, const std::string& where);
/// A string of 1 to 512 bytes without control characters; in Weft's own lines an integer will do too, in OpenAI's, if
/// `strict`, it has at most 64 characters.
bool is_native_id(const nlohmann::json& value);
bool is_openai_id(const nlohmann::json& value, bool strict);
/// By the keys of a file's first object.
Dialect dialect_of(const nlohmann::json& object);
/// The id of a request line, as JSON; of one of Weft's own that says none its place in the file. Nothing where it
/// cannot be read.
std::optional<std::string> id_of_line(const nlohmann::json& line, std::size_t number, Dialect dialect, bool strict);
std::string default_id(std::size_t number);
/// The number of the request line that a result line without an id refuses; 0 where it says none.
std::uint64_t refused_line(const nlohmann::json& result);

/// Throws BadRequest for the first key that is not known.
void refuse_unknown_keys(policy::Fields& fields, const std::string& where);

/// How many tokens may follow the prompt: at least one, and where positions are rolled any number. Throws BadRequest
/// for a prompt that has no tokens, has one beyond the vocabulary or fills the context.
std::int64_t room_after_prompt(const Request& request, const RequestRules& rules, const std::string& where);
/// Throws BadRequest where n, logprobs, echo and min_tokens do not go together, or not with this model.
void check_choices(const Request& request, const RequestRules& rules, const std::string& where);
/// Throws BadRequest if the answer does not fit in that room, or what is kept of the sequence not in the context.
void check_length(const Request& request, std::int64_t room, const RequestRules& rules, const std::string& where);

}  // namespace weft::runtime
