#include "runtime/text/chat_template.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/sha256.h"
#include "runtime/text/named_templates.h"
#include "runtime/text/tokenizer_config.h"
#include "runtime/text/tokenizer_files.h"

namespace weft::runtime {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

struct ChatTemplate::Loaded {
  std::string hash, fault;
  std::optional<jinja::Template> program;  // none: `fault` says why

  explicit Loaded(const std::string& source) : hash(sha256(source)) {
    try {
      program.emplace(source);
    } catch (const jinja::TemplateError& error) {
      fault = error.what();
    }
  }
};

namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 20;

/// Adds the tokens of an object, each written as a string or as {"content": ...}.
void add_tokens(const json& object, ordered_json& tokens) {
  for (const auto& [key, value] : object.items()) {
    if (!key.ends_with("_token") || tokens.contains(key)) continue;
    if (value.is_string()) tokens[key] = value.get<std::string>();
    else if (value.is_object() && value.value("content", json()).is_string())
      tokens[key] = value["content"].get<std::string>();
  }
}

ordered_json tokens_of(const ModelTexts& files) {
  ordered_json tokens = ordered_json::object();
  add_tokens(read_config_object(files, "tokenizer_config.json"), tokens);
  add_tokens(read_config_object(files, "special_tokens_map.json"), tokens);
  if (files.has("tokenizer.model") && !files.has("tokenizer.json") && !files.has("vocab.json"))
    for (const auto& [role, text] : default_tokens(files)) tokens[role] = text;
  return tokens;
}

/// The texts of a template, and of that for tools, which may be empty.
struct Sources {
  std::string name, text, tools;
};

/// Reads "chat_template": a text, or a list of texts with names.
std::optional<Sources> from_config(const ModelTexts& files, const char* file) {
  const json value = read_config_object(files, file).value("chat_template", json());
  Sources found{.name = file, .text = {}, .tools = {}};
  if (value.is_string()) found.text = value.get<std::string>();
  if (value.is_array())
    for (const json& each : value) {
      if (!each.is_object() || !each.value("template", json()).is_string()) continue;
      if (each.value("name", json()) == "default") found.text = each["template"].get<std::string>();
      if (each.value("name", json()) == "tool_use") found.tools = each["template"].get<std::string>();
    }
  if (found.text.empty()) return {};
  return found;
}

std::optional<Sources> sources_of(const ModelTexts& files) {
  constexpr const char *kAlone = "chat_template.jinja", *kForTools = "additional_chat_templates/tool_use.jinja";
  if (files.has(kAlone))
    return Sources{.name = kAlone,
                   .text = files.read(kAlone, kMostBytes),
                   .tools = files.has(kForTools) ? files.read(kForTools, kMostBytes) : ""};
  if (auto found = from_config(files, "tokenizer_config.json")) return found;
  return from_config(files, "chat_template.json");
}

bool has_tools(const ordered_json& variables) {
  return variables.contains("tools") && variables["tools"].is_array() && !variables["tools"].empty();
}

std::tm day_of(const ordered_json& value) {
  std::tm day{};
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  const char* end = text.size() == 10 ? strptime(text.c_str(), "%Y-%m-%d", &day) : nullptr;
  if (!end || *end != '\0')
    throw ChatError("invalid_value", "chat_template_kwargs",
                    "'strftime_now' in 'chat_template_kwargs' must be a day such as \"2025-03-31\"");
  return day;
}

}  // namespace

ChatTemplate::ChatTemplate() = default;

ChatTemplate::ChatTemplate(std::string name, const std::string& source, const ordered_json& tokens)
    : name_(std::move(name)), default_(std::make_shared<const Loaded>(source)), tools_(default_),
      tokens_(std::make_shared<const ordered_json>(tokens)) {}

ChatTemplate ChatTemplate::load(const ModelTexts& files) {
  const auto found = sources_of(files);
  if (!found) return {};
  ChatTemplate loaded(found->name, found->text, tokens_of(files));
  if (!found->tools.empty()) loaded.tools_ = std::make_shared<const Loaded>(found->tools);
  return loaded;
}

ChatTemplate ChatTemplate::named(std::string_view name, const ordered_json& tokens) {
  for (const NamedTemplate& each : named_templates())
    if (each.name == name) return {std::string(name), each.source, tokens};
  return {};
}

ChatTemplate ChatTemplate::load_as(const std::string& name_or_file, const ModelTexts& files) {
  const ordered_json tokens = tokens_of(files);
  const std::string flag = "--chat-template " + name_or_file.substr(0, 80);
  ChatTemplate loaded = named(name_or_file, tokens);
  if (loaded.present()) {
    for (const char* token : {"bos_token", "eos_token"})
      if (loaded.mentions(token, false) && !tokens.contains(token))
        throw UsageError(flag + ": this template writes the " + token + ", which no tokenizer_config.json or " +
                         "special_tokens_map.json in " + files.place().string() +
                         " names; copy it from the model's download");
    return loaded;
  }
  if (!fs::is_regular_file(name_or_file))
    throw UsageError(flag + ": wanted the name of a template (" + template_names() + ") or a file that holds one");
  loaded = ChatTemplate(name_or_file, read_file(name_or_file, kMostBytes), tokens);
  if (!loaded.default_->program) throw UsageError(flag + ":" + loaded.default_->fault);
  return loaded;
}

std::string ChatTemplate::identity() const {
  for (const NamedTemplate& each : named_templates())
    if (each.name == name_) return name_;
  return present() ? "sha256 " + default_->hash : "";
}

std::string ChatTemplate::description() const {
  if (!present()) return "none; takes no conversations unless --chat-template names one";
  std::string text = name_ + ", sha256 " + default_->hash.substr(0, 16);
  if (!default_->program) return text + ", cannot be run: " + default_->fault;
  std::string takes;
  for (const char* word : {"tools", "documents", "enable_thinking", "reasoning_effort", "date_string", "strftime_now"})
    if (tools_->program && (default_->program->mentions(word) || tools_->program->mentions(word)))
      takes += (takes.empty() ? "; takes " : ", ") + std::string(word);
  return text + (tools_ != default_ ? ", and one for tools" : "") + takes;
}

const jinja::Template& ChatTemplate::chosen(bool with_tools) const {
  if (!present())
    throw ChatError("unknown_chat_template", "url",
                    "the model has no chat template in its folder; name one that it was trained with by "
                    "--chat-template (" +
                        template_names() + "), or write the prompts out and use /v1/completions");
  const Loaded& loaded = with_tools ? *tools_ : *default_;
  if (!loaded.program)
    throw ChatError("unknown_chat_template", "url",
                    "the model's chat template cannot be run: " + name_ + ":" + loaded.fault +
                        "; name another by --chat-template (" + template_names() +
                        " or a file), or write the prompts out and use /v1/completions");
  return *loaded.program;
}

bool ChatTemplate::mentions(std::string_view word, bool with_tools) const { return chosen(with_tools).mentions(word); }
bool ChatTemplate::loops_over(std::string_view word, bool with_tools) const {
  return chosen(with_tools).loops_over(word);
}

std::string ChatTemplate::render(const ordered_json& given) const {
  const jinja::Template& program = chosen(has_tools(given));
  jinja::Surroundings around;
  ordered_json variables = *tokens_;
  for (const char* key : {"tools", "documents"}) variables[key] = nullptr;  // as transformers gives them
  for (const auto& item : given.items()) {
    if (!item.value().is_null() && !program.mentions(item.key()))
      throw ChatError("unsupported_parameter",
                      item.key() == "tools" || item.key() == "documents" ? item.key() : "chat_template_kwargs",
                      "'" + item.key().substr(0, 60) + "' is given, which the model's chat template does not take");
    if (item.key() == "strftime_now") around.now = day_of(item.value());
    else variables[item.key()] = item.value();
  }
  variables["add_generation_prompt"] = true;
  try {
    std::string prompt = program.render(variables, around);
    const ordered_json& messages = variables["messages"];
    const ordered_json role = messages.empty() ? ordered_json() : messages.back().value("role", ordered_json());
    if (role != "user" && role != "tool") {
      variables["add_generation_prompt"] = false;
      if (program.render(variables, around) == prompt)
        throw ChatError("invalid_value", "messages",
                        "the model's chat template begins no answer here; the last message must be the user's");
    }
    return prompt;
  } catch (const jinja::TemplateRefusal& refusal) {
    throw ChatError("invalid_value", "messages", "the model's chat template refuses these messages: " + refusal.said);
  } catch (const jinja::DateWanted&) {
    throw ChatError("missing_required_parameter", "chat_template_kwargs",
                    "the model's chat template would put the date of the day into the prompt, and answers would "
                    "depend on it; give one: \"chat_template_kwargs\": {" +
                        std::string(program.mentions("date_string") ? R"("date_string": "26 Jul 2024"})"
                                                                    : R"("strftime_now": "2024-07-26"})"));
  } catch (const jinja::TemplateError& error) {
    throw ChatError("invalid_value", "messages",
                    "the model's chat template cannot be run on these messages: " + name_ + ":" + error.what());
  }
}

}  // namespace weft::runtime
