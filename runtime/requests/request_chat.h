// runtime/requests/request_chat.h: the conversations of request lines.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/requests/request.h"

namespace weft::runtime {

/// The fields of a body that a conversation is made of.
inline constexpr const char* kConversationFields[]{"messages", "tools", "documents", "chat_template_kwargs"};

/// The ids of the prompt that the model's chat template makes of an object with kConversationFields, or of its "prompt"
/// as the message of a user. The template sees keys in the order of `text`, a whole request line, where the object lies
/// under `within`, or is the line if that is null. The job's system prompt comes first if no message is of the system.
/// Throws BadRequest.
std::vector<std::int32_t> conversation_ids(std::string_view text, const char* within, const std::string& where,
                                           const RequestRules& rules);

}  // namespace weft::runtime
