// Chat templates: where a model keeps them, and the prompts that named ones make. Those are what Jinja makes of the
// published texts of each family (scripts/fixtures/make_chat_golden.py).
#include "runtime/text/chat_template.h"

#include <array>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/base/sha256.h"
#include "runtime/text/named_templates.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::ordered_json;
using runtime::ChatError;
using runtime::ChatTemplate;

namespace {

const std::string kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
const ordered_json kTokens{{"bos_token", "<s>"}, {"eos_token", "</s>"}};

ordered_json hi(ordered_json more = ordered_json::object()) {
  more["messages"] = {{{"role", "user"}, {"content", "Hi"}}};
  return more;
}

ChatTemplate load(const std::string& config, const std::string& jinja = "", const std::string& map = "") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer_config.json", config);
  if (!jinja.empty()) write_text(folder / "chat_template.jinja", jinja);
  if (!map.empty()) write_text(folder / "special_tokens_map.json", map);
  return ChatTemplate::load(folder.path());
}

std::string rendered(const ChatTemplate& chat) { return chat.render(hi()); }

/// The name of a family in the golden file: "qwen1_5" for "qwen1.5".
std::string golden_name(std::string_view name) {
  std::string out;
  for (const char c : name) out += c == '.' || c == '-' ? '_' : c;
  return out;
}

}  // namespace

TEST_CASE("named templates lay conversations out as the published ones", "[runtime]") {
  const ordered_json golden = ordered_json::parse(read_text(data_path("chat/renderings.json")));
  std::size_t compared = 0, refused = 0;
  REQUIRE(golden.at("families").size() == runtime::named_templates().size());
  for (const runtime::NamedTemplate& named : runtime::named_templates()) {
    const ordered_json& family = golden.at("families").at(golden_name(named.name));
    const auto chat =
        ChatTemplate::named(named.name, {{"bos_token", golden.at("bos")}, {"eos_token", golden.at("eos")}});
    ordered_json conversations = golden.at("conversations");
    for (const ordered_json& conversation : family.value("more_conversations", ordered_json::array()))
      conversations.push_back(conversation);
    for (const char* key : {"rendered", "dated", "not_thinking"}) {
      if (!family.contains(key)) continue;
      REQUIRE(family.at(key).size() == conversations.size());
      for (std::size_t i = 0; i < conversations.size(); ++i) {
        CAPTURE(named.name, key, i);
        ordered_json variables{{"messages", conversations.at(i)}};
        if (key == std::string("dated")) variables["date_string"] = golden.at("date");
        if (key == std::string("not_thinking")) variables["enable_thinking"] = false;
        const ordered_json& expected = family.at(key).at(i);
        if (expected.is_null()) CHECK_THROWS_AS(chat.render(variables), ChatError);
        else CHECK(chat.render(variables) == expected.get<std::string>());
        ++compared;
        refused += expected.is_null();
      }
    }
  }
  CHECK(compared > 200);
  CHECK(refused > 50);
}

TEST_CASE("a template is read wherever the model keeps it", "[runtime]") {
  const std::string chat = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  CHECK(rendered(load(ordered_json{{"chat_template", kChatml}}.dump())) == chat);
  CHECK(rendered(load("{}", kChatml)) == chat);
  CHECK(rendered(load(ordered_json{{"chat_template", "another"}}.dump(), kChatml)) == chat);  // the file wins
  const ordered_json several{{{"name", "tool_use"}, {"template", "{{ messages }}{{ tools[0] }}"}},
                             {{"name", "default"}, {"template", kChatml}}};
  const ChatTemplate both = load(ordered_json{{"chat_template", several}}.dump());
  CHECK(rendered(both) == chat);
  CHECK(both.render(hi({{"tools", {{{"a", 1}}}}})) == "[{'role': 'user', 'content': 'Hi'}]{'a': 1}");
  const TemporaryFolder folder;
  write_text(folder / "chat_template.json", ordered_json{{"chat_template", kChatml}}.dump());
  CHECK(rendered(ChatTemplate::load(folder.path())) == chat);
  write_text(folder / "chat_template.jinja", "{{ messages[0].content }}");
  CHECK(rendered(ChatTemplate::load(folder.path())) == "Hi");
  std::filesystem::create_directory(folder / "additional_chat_templates");
  write_text(folder / "additional_chat_templates" / "tool_use.jinja", "{{ messages|length }}{{ tools|length }}");
  CHECK(ChatTemplate::load(folder.path()).render(hi({{"tools", {{{"a", 1}}}}})) == "11");
}

TEST_CASE("what a template does not take is refused, and a template that cannot be run", "[runtime]") {
  for (const char* config : {"{}", R"({"chat_template":null})", R"({"chat_template":[{"name":"rag","template":"x"}]})"})
    CHECK_THROWS_WITH(rendered(load(config)),
                      Contains("no chat template in its folder") && Contains("--chat-template (chatml, "));
  CHECK_THROWS_AS(load("[]"), DataError);
  CHECK_THROWS_AS(load("{"), DataError);
  const ChatTemplate broken = load("{}", "{{ messages }}\n{% if %}");
  CHECK_THROWS_WITH(rendered(broken),
                    Contains("cannot be run: chat_template.jinja:2:7: ") && Contains("/v1/completions"));
  CHECK_THAT(broken.description(), Contains("cannot be run: 2:7"));
  const ChatTemplate chatml = ChatTemplate::named("chatml", kTokens);
  CHECK_THROWS_WITH(chatml.render(hi({{"date_string", "1 Jan 2025"}})),
                    Contains("'date_string'") && Contains("does not take"));
  CHECK_THROWS_WITH(chatml.render(hi({{"enable_thinking", false}})), Contains("'enable_thinking'"));
  CHECK_THROWS_WITH(chatml.render(hi({{"tools", {{{"a", 1}}}}})), Contains("'tools'"));
  CHECK_THROWS_WITH(rendered(load("{}", "{{ messages.x.y }}")),
                    Contains("cannot be run on these messages: chat_template.jinja:1:14"));
  CHECK_THAT(ChatTemplate::named("qwen3", kTokens).render(hi({{"enable_thinking", false}})),
             Catch::Matchers::EndsWith("<think>\n\n</think>\n\n"));
}

TEST_CASE("a prompt never has the date of the day unless it is given", "[runtime]") {
  const auto with_date = [](const char* name, const ordered_json& more) {
    return ChatTemplate::named(name, kTokens).render(hi(more));
  };
  CHECK_THAT(with_date("llama3.2", {{"date_string", "1 Jan 2025"}}), Contains("Today Date: 1 Jan 2025\n"));
  CHECK_THAT(with_date("llama3.2", {{"strftime_now", "2025-01-01"}}), Contains("Today Date: 01 Jan 2025\n"));
  CHECK_THROWS_WITH(with_date("llama3.2", ordered_json::object()),
                    Contains("the date of the day") && Contains("\"date_string\""));
  CHECK_THROWS_WITH(with_date("llama3.2", {{"strftime_now", "1.1.2025"}}), Contains("a day such as"));
  CHECK_THROWS_WITH(rendered(load("{}", "{{ messages }}{{ strftime_now('%d') }}")),
                    Contains("\"strftime_now\": \"2024-07-26\""));
}

TEST_CASE("special tokens come from the tokenizer's files", "[runtime]") {
  const std::string source = "{{ messages[0].content }}{{ eos_token }}{{ pad_token }}{{ bos_token }}";
  CHECK(rendered(load(R"({"eos_token":"<e>","pad_token":"<p>"})", source)) == "Hi<e><p>");
  CHECK(rendered(load(R"({"eos_token":{"content":"<o>"}})", source)) == "Hi<o>");
  CHECK(rendered(load("{}", source, R"({"eos_token":"<m>"})")) == "Hi<m>");
}

TEST_CASE("tokens that no file next to a tokenizer.model names are those of its class or its own", "[runtime]") {
  const TemporaryFolder folder;
  const std::string source = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ pad_token }}";
  write_text(folder / "chat_template.jinja", source);
  for (const auto& [model, config, wanted] : std::vector<std::array<std::string, 3>>{
           {"bpe-any", "{}", "<s>Hi</s>"},
           {"bpe-any", R"({"bos_token":null,"eos_token":"<e>"})", "Hi<e>"},
           {"gemma", "{}", "<bos>Hi<eos>"},
           {"bpe", R"({"tokenizer_class":"LlamaTokenizer"})", "<s>Hi</s>"},
           {"bpe", R"({"tokenizer_class":"GemmaTokenizer"})", "<bos>Hi<eos><pad>"}}) {
    CAPTURE(model, config);
    write_text(folder / "tokenizer.model",
               read_text(data_path("tokenizer/sentencepiece/" + model + "/tokenizer.model")));
    write_text(folder / "tokenizer_config.json", config);
    CHECK(rendered(ChatTemplate::load(folder.path())) == wanted);
  }
  write_text(folder / "tokenizer.json", "{}");
  CHECK(rendered(ChatTemplate::load(folder.path())) == "Hi");
}

TEST_CASE("a template is replaced by the name of one or by a file", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer_config.json",
             R"({"chat_template":"{{ messages }}","bos_token":"<b>","eos_token":"<e>"})");
  const auto as = [&](const std::string& name) { return ChatTemplate::load_as(name, folder.path()); };
  CHECK(as("llama3.1").identity() == "llama3.1");
  CHECK(rendered(as("zephyr")) == "<|user|>\nHi<e>\n<|assistant|>\n");
  CHECK(rendered(as("mistral-v0.1")) == "<b>[INST] Hi [/INST]");
  CHECK(as("gemma3").render({{"messages",
                              {{{"role", "system"}, {"content", "Be brief."}},
                               {{"role", "user"}, {"content", " Hi"}},
                               {{"role", "assistant"}, {"content", "Hello\n"}},
                               {{"role", "user"}, {"content", "Bye"}}}}}) ==
        "<b><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
  for (const runtime::NamedTemplate& named : runtime::named_templates())
    CHECK(as(std::string(named.name)).identity() == named.name);
  write_text(folder / "mine.jinja", "{{ bos_token + messages[0].content }}");
  CHECK(rendered(as((folder / "mine.jinja").string())) == "<b>Hi");
  CHECK(as((folder / "mine.jinja").string()).identity() ==
        "sha256 " + runtime::sha256("{{ bos_token + messages[0].content }}"));
  write_text(folder / "mine.jinja", "{{ ");
  CHECK_THROWS_WITH(as((folder / "mine.jinja").string()), Contains("mine.jinja:1:4: "));
  CHECK_THROWS_WITH(as("vicuna"), Contains("--chat-template vicuna: wanted the name") && Contains("qwen2.5"));
  CHECK_THROWS_AS(as("vicuna"), UsageError);
  std::filesystem::remove(folder / "tokenizer_config.json");
  CHECK(rendered(as("chatml")) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
  CHECK_THROWS_WITH(as("llama2"), Contains("writes the bos_token") && Contains("tokenizer_config.json"));
}

TEST_CASE("a template says where it comes from and what it takes", "[runtime]") {
  CHECK_THAT(load("{}", "{{ messages }}{{ tools }}{{ enable_thinking }}").description(),
             Contains("chat_template.jinja, sha256 ") && Contains("; takes tools, enable_thinking"));
  CHECK_THAT(ChatTemplate().description(), Contains("none"));
}

TEST_CASE("sha256 is what sha256sum prints", "[runtime]") {
  CHECK(runtime::sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(runtime::sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(runtime::sha256(std::string(1'000'000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
  // Lengths around the ends of a block, of which the last holds the length.
  CHECK(runtime::sha256(std::string(55, 'a')) == "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  CHECK(runtime::sha256(std::string(56, 'a')) == "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  CHECK(runtime::sha256(std::string(64, 'a')) == "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}
