#include "runtime/text/named_templates.h"

namespace weft::runtime {

namespace {

constexpr std::string_view kChatmlTemplate = R"(
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %})";

/// ChatML with a system message for conversations that have none.
std::string chatml_with_system(const std::string& text) {
  const std::string begin = R"(
{%- if messages[0].role != 'system' %}
  {{- '<|im_start|>system\n)";
  return begin + text + "<|im_end|>\\n' }}\n{%- endif %}" + std::string(kChatmlTemplate);
}

constexpr std::string_view kQwen15Template = R"(
{%- if messages[0].role != 'system' %}
  {{- '<|im_start|>system\nYou are a helpful assistant<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
  {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt and messages[-1].role != 'assistant' %}
  {{- '<|im_start|>assistant\n' }}
{%- endif %})";

// Answers to the last question keep their thoughts; earlier answers lose them.
constexpr std::string_view kQwen3Template = R"(
{%- set ns = namespace(question=messages|length - 1) %}
{%- for message in messages %}
  {%- set from_tool = message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>') %}
  {%- if message.role == 'user' and not from_tool %}
    {%- set ns.question = loop.index0 %}
  {%- endif %}
{%- endfor %}
{%- for message in messages %}
  {%- set said, thought = message.content, '' %}
  {%- if message.role == 'assistant' %}
    {%- if '</think>' in said %}
      {%- set thought = said.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
      {%- set said = said.split('</think>')[-1].lstrip('\n') %}
    {%- endif %}
    {%- if loop.index0 > ns.question and (loop.last or thought) %}
      {%- set said = '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + said.lstrip('\n') %}
    {%- endif %}
  {%- endif %}
  {{- '<|im_start|>' + message.role + '\n' + said + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|im_start|>assistant\n' }}
  {%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\n\n</think>\n\n' }}
  {%- endif %}
{%- endif %})";

constexpr std::string_view kLlama2Template = R"(
{%- set has_system = messages[0].role == 'system' %}
{%- for message in (messages[1:] if has_system else messages) %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- endif %}
  {%- set content = message.content %}
  {%- if loop.first and has_system %}
    {%- set content = '<<SYS>>\n' + messages[0].content + '\n<</SYS>>\n\n' + content %}
  {%- endif %}
  {%- if message.role == 'user' %}
    {{- bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
  {%- elif message.role == 'assistant' %}
    {{- ' ' + content.strip() + ' ' + eos_token }}
  {%- endif %}
{%- endfor %})";

constexpr std::string_view kLlama3Template = R"(
{{- bos_token }}
{%- for message in messages %}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content.strip() + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

constexpr std::string_view kLlama31Rest = R"(
{%- set has_system = messages[0].role == 'system' %}
{{- bos_token + '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\n' }}
{{- 'Today Date: ' + date_string + '\n\n' + (messages[0].content.strip() if has_system else '') + '<|eot_id|>' }}
{%- for message in (messages[1:] if has_system else messages) %}
  {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content.strip() + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %})";

/// Llama 3.1's template with an expression for the date that it writes if none is given.
std::string llama31_with_date(const std::string& date) {
  const std::string begin = R"(
{%- if date_string is not defined %}
  {%- set date_string = )";
  return begin + date + " %}\n{%- endif %}" + std::string(kLlama31Rest);
}

constexpr std::string_view kMistralV01Template = R"(
{{- bos_token }}
{%- for message in messages %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- elif message.role == 'user' %}
    {{- '[INST] ' + message.content + ' [/INST]' }}
  {%- elif message.role == 'assistant' %}
    {{- message.content + eos_token + ' ' }}
  {%- else %}
    {{- raise_exception('only user and assistant roles are supported') }}
  {%- endif %}
{%- endfor %})";

constexpr std::string_view kMistralV02Template = R"(
{{- bos_token }}
{%- for message in messages %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- elif message.role == 'user' %}
    {{- '[INST] ' + message.content + ' [/INST]' }}
  {%- elif message.role == 'assistant' %}
    {{- message.content + eos_token }}
  {%- else %}
    {{- raise_exception('only user and assistant roles are supported') }}
  {%- endif %}
{%- endfor %})";

// A system message goes before the first user message.
constexpr std::string_view kMistralSystemTemplate = R"(
{%- set has_system = messages[0].role == 'system' %}
{{- bos_token }}
{%- for message in (messages[1:] if has_system else messages) %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- elif message.role == 'user' %}
    {{- ' [INST] ' + (messages[0].content + '\n\n' if loop.first and has_system else '') + message.content + ' [/INST]' }}
  {%- elif message.role == 'assistant' %}
    {{- ' ' + message.content + eos_token }}
  {%- else %}
    {{- raise_exception('only user and assistant roles are supported') }}
  {%- endif %}
{%- endfor %})";

// A system message goes before the last user message.
constexpr std::string_view kMistralV03Template = R"(
{%- set has_system = messages[0].role == 'system' %}
{{- bos_token }}
{%- for message in (messages[1:] if has_system else messages) %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- elif message.role == 'user' %}
    {{- '[INST] ' + (messages[0].content + '\n\n' if loop.last and has_system else '') + message.content + '[/INST]' }}
  {%- elif message.role == 'assistant' %}
    {{- ' ' + message.content.strip() + eos_token }}
  {%- else %}
    {{- raise_exception('only user and assistant roles are supported') }}
  {%- endif %}
{%- endfor %})";

// A system message goes before the first user message.
constexpr std::string_view kGemma3Template = R"(
{%- set has_system = messages[0].role == 'system' %}
{{- bos_token }}
{%- for message in (messages[1:] if has_system else messages) %}
  {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
    {{- raise_exception('conversation roles must alternate user/assistant/user/assistant/...') }}
  {%- endif %}
  {{- '<start_of_turn>' + ('model' if message.role == 'assistant' else message.role) + '\n' }}
  {{- (messages[0].content + '\n\n' if loop.first and has_system else '') + message.content.strip() + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<start_of_turn>model\n' }}
{%- endif %})";

constexpr std::string_view kZephyrTemplate = R"(
{%- for message in messages %}
  {{- '<|' + message.role + '|>\n' + message.content + eos_token + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
  {{- '<|assistant|>\n' }}
{%- endif %})";

}  // namespace

std::span<const NamedTemplate> named_templates() {
  static const NamedTemplate all[]{
      {"chatml", std::string(kChatmlTemplate)},
      {"qwen1.5", std::string(kQwen15Template)},
      {"qwen2", chatml_with_system("You are a helpful assistant.")},
      {"qwen2.5", chatml_with_system("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
      {"qwen3", std::string(kQwen3Template)},
      {"smollm2", chatml_with_system("You are a helpful AI assistant named SmolLM, trained by Hugging Face")},
      {"llama2", std::string(kLlama2Template)},
      {"llama3", std::string(kLlama3Template)},
      {"llama3.1", llama31_with_date("'26 Jul 2024'")},
      {"llama3.2", llama31_with_date("strftime_now('%d %b %Y')")},
      {"mistral-v0.1", std::string(kMistralV01Template)},
      {"mistral-v0.2", std::string(kMistralV02Template)},
      {"mistral-system", std::string(kMistralSystemTemplate)},
      {"mistral-v0.3", std::string(kMistralV03Template)},
      {"gemma3", std::string(kGemma3Template)},
      {"zephyr", std::string(kZephyrTemplate)},
  };
  return all;
}

std::string template_names() {
  std::string names;
  for (const NamedTemplate& each : named_templates()) names += (names.empty() ? "" : ", ") + std::string(each.name);
  return names;
}

}  // namespace weft::runtime
