// Chat templates: what is rendered here is what Jinja makes of the published texts
// (scripts/fixtures/make_chat_golden.py).
#include "runtime/text/chat_template.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/error.h"
#include "runtime/base/sha256.h"
#include "runtime/requests/request.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
using runtime::ChatError;
using runtime::ChatFamily;
using runtime::ChatMessage;
using runtime::ChatSettings;
using runtime::ChatTemplate;

namespace {

const std::string kChatml =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + "
    "'\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

std::vector<ChatMessage> messages_of(const json& list) {
  std::vector<ChatMessage> messages;
  for (const json& each : list) messages.push_back({each.at("role"), each.at("content")});
  return messages;
}

ChatTemplate load(const std::string& config, const std::string& jinja = "", const std::string& map = "") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer_config.json", config);
  if (!jinja.empty()) write_text(folder / "chat_template.jinja", jinja);
  if (!map.empty()) write_text(folder / "special_tokens_map.json", map);
  return ChatTemplate::load(folder.path());
}

std::string rendered(const ChatTemplate& chat) { return chat.render({{"user", "Hi"}}, {}); }

}  // namespace

TEST_CASE("conversations are laid out as by the published templates", "[runtime]") {
  const json golden = json::parse(read_text(data_path("chat/renderings.json")));
  std::size_t compared = 0;
  for (const auto& item : golden.at("families").items()) {
    const json& hashes = item.value().at("sha256");
    const ChatFamily family = ChatTemplate::with_hash(hashes.at(0).get<std::string>());
    REQUIRE(family != ChatFamily::unknown);
    for (const json& hash : hashes) CHECK(ChatTemplate::with_hash(hash.get<std::string>()) == family);
    const ChatTemplate chat(family, golden.at("bos"), golden.at("eos"));
    json conversations = golden.at("conversations");
    for (const json& conversation : item.value().value("more_conversations", json::array()))
      conversations.push_back(conversation);
    for (const char* key : {"rendered", "dated", "not_thinking"}) {
      if (!item.value().contains(key)) continue;
      ChatSettings settings;
      if (key == std::string("dated")) settings.date = golden.at("date").get<std::string>();
      if (key == std::string("not_thinking")) settings.thinking = false;
      REQUIRE(item.value().at(key).size() == conversations.size());
      for (std::size_t i = 0; i < conversations.size(); ++i) {
        CAPTURE(item.key(), key, i);
        const auto messages = messages_of(conversations.at(i));
        const json& expected = item.value().at(key).at(i);
        if (expected.is_null()) CHECK_THROWS_AS(chat.render(messages, settings), ChatError);
        else CHECK(chat.render(messages, settings) == expected.get<std::string>());
        ++compared;
      }
    }
  }
  CHECK(compared > 200);
}

TEST_CASE("a template is recognised wherever the model keeps it", "[runtime]") {
  const std::string hi = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  CHECK(rendered(load(json{{"chat_template", kChatml}}.dump())) == hi);
  CHECK(rendered(load("{}", kChatml)) == hi);
  CHECK(rendered(load(json{{"chat_template", "another"}}.dump(), kChatml)) == hi);  // the file wins, as in transformers
  const json several{{{"name", "tool_use"}, {"template", "another"}}, {{"name", "default"}, {"template", kChatml}}};
  CHECK(rendered(load(json{{"chat_template", several}}.dump())) == hi);
}

TEST_CASE("any other template is refused with its hash", "[runtime]") {
  const ChatTemplate other = load("{}", kChatml + " ");
  CHECK(other.family() == ChatFamily::unknown);
  CHECK_THROWS_WITH(rendered(other), Contains("chat template of this model is not known (sha256 " +
                                              runtime::sha256(kChatml + " ") + "); name one that lays") &&
                                         Contains("--chat-template (chatml, ") && Contains("use /v1/completions"));
  for (const char* config : {"{}", R"({"chat_template":null})", R"({"chat_template":[{"name":"rag","template":"x"}]})"})
    CHECK_THROWS_WITH(rendered(load(config)), Contains("no chat template in its folder"));
  CHECK_THROWS_AS(load("[]"), DataError);
  CHECK_THROWS_AS(load("{"), DataError);
}

TEST_CASE("a date is for templates that take one", "[runtime]") {
  const auto with_date = [](ChatFamily family, const std::string& date) {
    return ChatTemplate(family, "<s>", "</s>").render({{"user", "Hi"}}, {.date = date});
  };
  CHECK_THAT(with_date(ChatFamily::llama3_2, "1 Jan 2025"), Contains("Today Date: 1 Jan 2025\n"));
  CHECK_THROWS_WITH(with_date(ChatFamily::llama3_2, ""), Contains("the date of the day"));
  CHECK_THROWS_WITH(with_date(ChatFamily::chatml, "1 Jan 2025"), Contains("does not take"));
}

TEST_CASE("enable_thinking is for templates that take it", "[runtime]") {
  const auto without = [](ChatFamily family) {
    return ChatTemplate(family, "<s>", "</s>").render({{"user", "Hi"}}, {.date = {}, .thinking = false});
  };
  CHECK_THAT(without(ChatFamily::qwen3), Catch::Matchers::EndsWith("<think>\n\n</think>\n\n"));
  CHECK_THROWS_WITH(without(ChatFamily::qwen2_5), Contains("enable_thinking"));
}

TEST_CASE("first and last tokens come from the tokenizer's files", "[runtime]") {
  const std::string zephyr =
      "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + message['content'] + "
      "eos_token }}\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
      "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
      "{% endif %}\n{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}";
  CHECK(rendered(load(R"({"eos_token":"<e>"})", zephyr)) == "<|user|>\nHi<e>\n<|assistant|>\n");
  CHECK(rendered(load(R"({"eos_token":{"content":"<o>"}})", zephyr)) == "<|user|>\nHi<o>\n<|assistant|>\n");
  CHECK(rendered(load("{}", zephyr, R"({"eos_token":"<m>"})")) == "<|user|>\nHi<m>\n<|assistant|>\n");
}

TEST_CASE("a template that is not known is replaced by the name or the text of one that is", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer_config.json",
             R"({"chat_template":"{{ messages }}","bos_token":"<b>","eos_token":"<e>"})");
  CHECK(ChatTemplate::load(folder.path()).family() == ChatFamily::unknown);
  const auto as = [&](const std::string& name) { return ChatTemplate::load_as(name, folder.path()); };
  CHECK(as("chatml").family() == ChatFamily::chatml);
  CHECK(as("llama3.1").family_name() == "llama3.1");
  CHECK(rendered(as("zephyr")) == "<|user|>\nHi<e>\n<|assistant|>\n");
  CHECK(rendered(as("mistral-v0.1")) == "<b>[INST] Hi [/INST]");
  std::istringstream names(ChatTemplate::family_names());
  int count = 0;
  for (std::string name; std::getline(names >> std::ws, name, ','); ++count) CHECK(as(name).family_name() == name);
  CHECK(count == 15);
  write_text(folder / "mine.jinja", "{{ 'anything' }}");
  CHECK_THROWS_WITH(as((folder / "mine.jinja").string()),
                    Contains("not known, and Weft runs none") && Contains("chatml"));
  CHECK_THROWS_WITH(as("vicuna"), Contains("--chat-template vicuna: wanted the name") && Contains("qwen2.5"));
  CHECK_THROWS_AS(as("vicuna"), UsageError);
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
