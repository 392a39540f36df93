// runtime/requests/request_chat.cc: checks a conversation and lays it out as the model's chat template does. A field
// that the template does not use is refused: no answer would depend on it, which nobody who writes it expects.
#include "runtime/requests/request_chat.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "policy/base/json.h"
#include "runtime/requests/request_checks.h"

namespace weft::runtime {
namespace {

using nlohmann::ordered_json;

constexpr std::array kRoles{"system", "user", "assistant"};
constexpr std::array kReasoning{"reasoning_content", "thinking", "reasoning"};

std::string described(const ordered_json& value) { return policy::describe(nlohmann::json(value)); }

class Conversation {
 public:
  Conversation(const ordered_json& body, const std::string& where, const RequestRules& rules)
      : body_(body), where_(where), chat_(rules.openai.chat) {}

  ordered_json variables() {
    read_tools();
    ordered_json variables = kwargs();
    variables["messages"] = messages();
    if (with_tools_) variables["tools"] = body_["tools"];
    if (has("documents")) variables["documents"] = objects("documents");
    return variables;
  }

 private:
  bool has(const char* key) const { return body_.contains(key) && !body_[key].is_null(); }
  bool takes(std::string_view word) const { return chat_.mentions(word, with_tools_); }
  [[noreturn]] void refuse(const std::string& field, const std::string& reason,
                           const char* code = "invalid_value") const {
    throw BadRequest(where_, code, field, "'" + field.substr(0, 80) + "' " + reason);
  }

  ordered_json objects(const char* key) const {
    const ordered_json& list = body_[key];
    const auto is_object = [](const ordered_json& each) { return each.is_object(); };
    if (!list.is_array() || !std::all_of(list.begin(), list.end(), is_object))
      refuse(key, "must be a list of objects, got " + described(list));
    return list;
  }

  void read_tools() {
    if (!has("tools") || objects("tools").empty()) return;
    with_tools_ = true;
    for (const ordered_json& tool : body_["tools"]) {
      const auto function = tool.find("function");
      if (tool.value("type", ordered_json()) != "function" || function == tool.end() || !function->is_object() ||
          !function->value("name", ordered_json()).is_string())
        refuse("tools", R"(must be a list of {"type": "function", "function": {"name": "...", ...}})");
    }
    if (has("tool_choice") && body_["tool_choice"] != "auto")
      refuse("tool_choice", "is not supported, got " + described(body_["tool_choice"]) + "; leave out the tools, or it",
             "unsupported_parameter");
    if (!takes("tools")) refuse("tools", "is not supported by the model's chat template", "unsupported_parameter");
  }

  /// `chat_template_kwargs` is vLLM's name for what a template gets in addition to the messages.
  ordered_json kwargs() const {
    const char* const key = "chat_template_kwargs";
    if (!has(key)) return ordered_json::object();
    if (!body_[key].is_object()) refuse(key, "must be an object, got " + described(body_[key]));
    for (const char* other : {"messages", "tools", "documents", "add_generation_prompt"})
      if (body_[key].contains(other))
        throw BadRequest(where_, "unsupported_parameter", key,
                         "'chat_template_kwargs' must not have '" + std::string(other) + "'");
    return body_[key];
  }

  ordered_json messages() const {
    const ordered_json& list = body_.value("messages", ordered_json());
    if (!list.is_array() || list.empty())
      refuse("messages", "must be a non-empty list of messages, got " + described(list));
    ordered_json made = ordered_json::array();
    for (const ordered_json& each : list)
      made.push_back(message(each, "messages[" + std::to_string(made.size()) + "]"));
    return made;
  }

  ordered_json message(const ordered_json& given, const std::string& name) const {
    if (!given.is_object()) refuse(name, "must be an object, got " + described(given));
    ordered_json made = ordered_json::object();
    const bool calls = given.contains("tool_calls") && !given["tool_calls"].empty();  // null is empty
    for (const auto& item : given.items()) {
      const bool nothing = item.value().is_null() || (item.value().is_array() && item.value().empty());
      if (!nothing || (calls && item.key() == "content")) made[item.key()] = item.value();
    }
    made["role"] = role(made, name);
    for (const auto& item : given.items()) {
      const std::string& key = item.key();
      if (!made.contains(key) || key == "role" || key == "tool_call_id") continue;
      if (key == "name" && made[key].is_string() && !takes(key)) {
        made.erase(key);  // OpenAI takes it, and most templates do not
        continue;
      }
      if (key == "content" && calls && given[key].is_null()) continue;
      if (key == "content") made[key] = content(given[key], name + ".content");
      else if (key == "tool_calls") made[key] = tool_calls(given[key], name + ".tool_calls");
      else check_extra(key, name);
    }
    if (calls && !made.contains("content")) made["content"] = nullptr;
    const bool is_null = given.contains("content") && given["content"].is_null();
    if (!made.contains("content") && is_null && made["role"] == "assistant") made["content"] = "";
    if (!made.contains("content")) refuse(name + ".content", "must be a string");
    return with_reasoning(std::move(made));
  }

  std::string role(const ordered_json& made, const std::string& name) const {
    if (!made.contains("role") || !made["role"].is_string()) refuse(name + ".role", "must be a string");
    const std::string role = made["role"].get<std::string>();
    if (std::find(kRoles.begin(), kRoles.end(), role) != kRoles.end() || takes(role)) return role;
    if (role == "developer") return "system";  // OpenAI's newer name for it
    refuse(name + ".role", "must be system, user or assistant, or a role that the model's chat template names, got " +
                               described(made["role"]));
  }

  void check_extra(const std::string& key, const std::string& name) const {
    const bool reasons = std::find(kReasoning.begin(), kReasoning.end(), key) != kReasoning.end();
    if (reasons ? takes("reasoning_content") || takes("thinking") || takes("reasoning") : takes(key)) return;
    refuse(name + "." + key.substr(0, 40), "is not supported by the model's chat template", "unsupported_parameter");
  }

  /// A list of texts stays one if the template goes through it, else its texts become lines, as in vLLM.
  ordered_json content(const ordered_json& given, const std::string& name) const {
    if (given.is_string()) return given;
    if (!given.is_array() || given.empty()) refuse(name, "must be a string, got " + described(given));
    std::string lines;
    for (const ordered_json& part : given) {
      const bool is_text = part.is_object() && part.size() == 2 && part.value("type", ordered_json()) == "text" &&
                           part.value("text", ordered_json()).is_string();
      if (!is_text) refuse(name, R"(has a part that is not {"type": "text", "text": "..."})");
      lines += (&part == &given.front() ? "" : "\n") + part["text"].get<std::string>();
    }
    if (chat_.loops_over("content", with_tools_)) return given;
    return lines;
  }

  /// Arguments are JSON in a string; templates want the object.
  ordered_json tool_calls(const ordered_json& given, const std::string& name) const {
    if (!takes("tool_calls")) refuse(name, "is not supported by the model's chat template", "unsupported_parameter");
    if (!given.is_array()) refuse(name, "must be a list, got " + described(given));
    ordered_json made = given;
    for (ordered_json& call : made) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
          !call["function"].value("name", ordered_json()).is_string())
        refuse(
            name,
            R"(must be a list of {"id": "...", "type": "function", "function": {"name": "...", "arguments": "..."}})");
      ordered_json& arguments = call.at("function")["arguments"];
      if (arguments.is_null() || arguments == "") arguments = ordered_json::object();
      if (arguments.is_string()) {
        ordered_json read = ordered_json::parse(arguments.get<std::string>(), nullptr, /*allow_exceptions=*/false);
        if (!read.is_object() || depth(read) > 32) refuse(name, "has arguments that are not a JSON object");
        arguments = std::move(read);
      }
    }
    return made;
  }

  static int depth(const ordered_json& value) {
    int deepest = 0;
    if (value.is_structured())
      for (const auto& item : value) deepest = std::max(deepest, depth(item));
    return deepest + 1;
  }

  /// Gives the reasoning of an answer the names that templates know, as transformers does.
  static ordered_json with_reasoning(ordered_json message) {
    for (const char* key : kReasoning) {
      if (!message.contains(key)) continue;
      const ordered_json reasoning = message[key];
      ordered_json made{{"thinking", reasoning}};
      for (const auto& item : message.items()) made[item.key()] = item.value();
      made["reasoning_content"] = reasoning;
      return made;
    }
    return message;
  }

  const ordered_json& body_;
  const std::string& where_;
  const ChatTemplate& chat_;
  bool with_tools_ = false;
};

/// Puts a message of the system first, unless there is one.
void add_system(ordered_json& body, const std::string& prompt) {
  const auto messages = body.find("messages");
  if (messages == body.end() || !messages->is_array() || messages->empty()) return;  // refused later
  for (const ordered_json& message : *messages)
    if (const ordered_json role = message.is_object() ? message.value("role", ordered_json()) : ordered_json();
        role == "system" || role == "developer")
      return;
  const ordered_json first{{"role", "system"}, {"content", prompt}};
  messages->insert(messages->begin(), first);
}

}  // namespace

std::vector<std::int32_t> conversation_ids(std::string_view text, const char* within, const std::string& where,
                                           const RequestRules& rules) {
  const ordered_json line = ordered_json::parse(text.begin(), text.end());
  ordered_json body = within ? line[within] : line;
  if (!within && body.contains("prompt") && !body["prompt"].is_null())
    body["messages"] = ordered_json::array({{{"role", "user"}, {"content", body["prompt"]}}});
  if (!rules.defaults.system_prompt.empty()) add_system(body, rules.defaults.system_prompt);
  std::string prompt;
  try {
    prompt = rules.openai.chat.render(Conversation(body, where, rules).variables());
  } catch (const ChatError& refused) {
    throw BadRequest(where, refused.code, refused.param, refused.what());
  }
  return rules.tokenizer->encode(prompt, false);
}

}  // namespace weft::runtime
