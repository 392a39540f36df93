// Request lines of OpenAI's batches: what they ask of the engine, and what is refused by which code.
#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/requests/requests.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
using runtime::ChatTemplate;
using runtime::Dialect;
using runtime::Endpoint;
using runtime::OnBadRequest;
using runtime::OpenAiRules;
using runtime::Refusal;
using runtime::Request;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

json completion(const std::string& id, const json& changes = json::object()) {
  json body{{"model", "demo"}, {"prompt", "It was"}, {"max_tokens", 4}};
  body.merge_patch(changes);
  return {{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}};
}

json chat(const std::string& id, const json& changes = json::object()) {
  json body{{"model", "demo"}, {"messages", {{{"role", "user"}, {"content", "Hello"}}}}, {"max_tokens", 4}};
  body.merge_patch(changes);
  return {{"custom_id", id}, {"method", "POST"}, {"url", "/v1/chat/completions"}, {"body", body}};
}

struct OpenAiFile {
  TemporaryFolder folder;
  policy::ModelSpec model;
  std::filesystem::path path = folder / "in.jsonl";
  OpenAiRules rules{.model_names = {"demo", "models/demo"},
                    .files = nullptr,
                    .chat = ChatTemplate::named("chatml", {}),
                    .strict = false};

  explicit OpenAiFile(const std::string& text) {
    write_text(path, text);
    model.vocab = 4096;
    model.positions = 256;
  }
  explicit OpenAiFile(const std::vector<json>& lines) : OpenAiFile(joined(lines)) {}
  static std::string joined(const std::vector<json>& lines) {
    std::string text;
    for (const json& line : lines) text += line.dump() + "\n";
    return text;
  }
  RequestFile open(OnBadRequest on_bad = OnBadRequest::fail, RequestKind kind = RequestKind::generate) const {
    return {path, kind, &demo_tokenizer(), model, 16, rules, on_bad};
  }
};

Request read(const json& line) { return OpenAiFile(std::vector<json>{line}).open().read(0); }

/// Of a line between two good ones.
Refusal refusal(const json& line) {
  const OpenAiFile file(std::vector<json>{completion("good"), line, completion("last")});
  CHECK_THROWS_AS(file.open(), UsageError);
  const RequestFile requests = file.open(OnBadRequest::record);
  REQUIRE(requests.size() == 3);
  CHECK_FALSE(requests.refused(0));
  CHECK_FALSE(requests.refused(2));
  REQUIRE(requests.refused(1));
  return requests.refusal(1);
}

struct Bad {
  json line;
  std::string code, param, words;
};

void check_refused(const std::vector<Bad>& rows) {
  for (const Bad& bad : rows) {
    CAPTURE(bad.line.dump());
    const Refusal said = refusal(bad.line);
    CHECK(said.code == bad.code);
    CHECK(said.param == bad.param);
    CHECK_THAT(said.reason, Contains(bad.words));
  }
}

}  // namespace

TEST_CASE("a completion is read as its line says", "[runtime]") {
  const Request request = read(completion("a", {{"temperature", 0.5},
                                                {"top_p", 0.9},
                                                {"top_k", 7},
                                                {"stop", {"x", "yz"}},
                                                {"stop_token_ids", {5}},
                                                {"user", "u"},
                                                {"metadata", {{"k", "v"}}},
                                                {"store", true},
                                                {"service_tier", "flex"}}));
  CHECK(request.id == "\"a\"");
  CHECK(request.endpoint == Endpoint::completions);
  CHECK(request.model == "demo");
  CHECK(request.prompt == demo_tokenizer().encode("It was", true));
  CHECK(request.max_tokens == 4);
  CHECK(request.sampling.temperature == 0.5f);
  CHECK(request.sampling.top_p == 0.9f);
  CHECK(request.sampling.top_k == 7);
  CHECK(request.stop_strings == std::vector<std::string>{"x", "yz"});
  CHECK(request.stop_ids == std::vector<std::int32_t>{5});
}

TEST_CASE("what a body leaves out is as at OpenAI", "[runtime]") {
  const json line{{"custom_id", "a"},
                  {"method", "POST"},
                  {"url", "/v1/completions"},
                  {"body", {{"model", "models/demo"}, {"prompt", {7, 8}}, {"seed", nullptr}, {"n", nullptr}}}};
  const Request request = read(line);
  CHECK(request.prompt == std::vector<std::int32_t>{7, 8});
  CHECK(request.max_tokens == 16);  // but for the length, which --max-tokens says
  CHECK(request.sampling.temperature == 1);
  CHECK(request.sampling.top_p == 1);
  CHECK(request.sampling.top_k == 0);
  CHECK(request.n == 1);
  CHECK(request.logprobs == -1);
}

TEST_CASE("a conversation is laid out and encoded without another first token", "[runtime]") {
  const json messages{
      {{"role", "developer"}, {"content", "Be brief."}},  // as system
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "one"}}, {{"type", "text"}, {"text", "two"}}}}},
      {{"role", "assistant"}, {"content", "three"}, {"refusal", nullptr}, {"tool_calls", json::array()}},
      {{"role", "user"}, {"content", "four </s>"}}};
  const Request request = read(chat("a", {{"messages", messages}}));
  CHECK(request.endpoint == Endpoint::chat);
  const std::string text =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>\n<|im_start|>assistant\nthree"
      "<|im_end|>\n<|im_start|>user\nfour </s><|im_end|>\n<|im_start|>assistant\n";
  CHECK(request.prompt == demo_tokenizer().encode(text, false));
  CHECK(std::count(request.prompt.begin(), request.prompt.end(), 2) == 1);  // </s> that is written out
  CHECK(read(chat("a", {{"max_tokens", nullptr}, {"max_completion_tokens", 3}})).max_tokens == 3);
}

TEST_CASE("every character of a prompt comes through", "[runtime]") {
  const std::string text("\0 \uFFFF \U0001F30D e\u0301 \x7F\r\n", 18);
  CHECK(demo_tokenizer().decode(read(completion("a", {{"prompt", text}})).prompt) == text);
}

TEST_CASE("values that change nothing are accepted", "[runtime]") {
  const std::string common = R"({"n":1,"stream":false,"logit_bias":{},"presence_penalty":0,"frequency_penalty":0.0,
    "best_of":1,"top_k":-1,"min_tokens":0,"ignore_eos":false,"repetition_penalty":1.0,"stream_options":null})";
  json body = json::parse(common);
  body["echo"] = false;
  body["suffix"] = "";
  CHECK_NOTHROW(read(completion("a", body)));
  body = json::parse(common);
  body.erase("best_of");
  body.merge_patch(json::parse(R"({"tools":[],"tool_choice":"none","response_format":{"type":"text"},
    "logprobs":false,"modalities":["text"],"chat_template_kwargs":{}})"));
  CHECK_NOTHROW(read(chat("a", body)));
}

TEST_CASE("what clients write is read as they mean it", "[runtime]") {
  const Request plain = read(completion("a"));
  CHECK(read(completion("a", {{"prompt", json::array({"It was"})}})).prompt == plain.prompt);
  CHECK(read(completion("a", {{"prompt", json::array({json(plain.prompt)})}})).prompt == plain.prompt);
  CHECK(read(completion("a", {{"max_tokens", 7.0}})).max_tokens == 7);
  const Request asked = read(chat("a"));
  CHECK(read(chat("a", {{"max_completion_tokens", 4}, {"top_logprobs", 0}, {"logprobs", false}})).max_tokens == 4);
  const json named{{"role", "user"}, {"content", "Hello"}, {"name", "Ann"}};
  CHECK(read(chat("a", {{"messages", json::array({named})}})).prompt == asked.prompt);
  const auto after = [&](json content) {
    json line = chat("a");
    line["body"]["messages"] = {named, {{"role", "assistant"}, {"content", std::move(content)}}, named};
    return read(line).prompt;
  };
  CHECK(after(nullptr) == after(""));
}

TEST_CASE("random numbers depend on seed and custom_id", "[runtime]") {
  const auto key = [](const std::string& id, json seed) {
    return read(completion(id, {{"seed", std::move(seed)}})).sampling.key;
  };
  CHECK(key("a", 1) == key("a", 1));
  CHECK(key("a", 1) != key("a", 2));
  CHECK(key("a", 1) != key("b", 1));
  CHECK(key("a", -5) != key("a", 5));
}

TEST_CASE("envelopes that are refused", "[runtime]") {
  const auto with = [](const std::string& key, json value) {
    json line = completion("x");
    line[key] = std::move(value);
    return line;
  };
  const auto without = [](const std::string& key) {
    json line = completion("x");
    line.erase(key);
    return line;
  };
  std::vector<Bad> rows{
      {with("method", "GET"), "invalid_method", "method", "must be \"POST\", got the string \"GET\""},
      {with("url", "/v1/embeddings"), "invalid_url", "url", "/v1/embeddings"},
      {with("url", "v1/completions"), "invalid_url", "url", "must be \"/v1/completions\""},
      {with("url", "https://api.openai.com/v1/completions"), "invalid_url", "url", "must be"},
      {with("body", "text"), "invalid_value", "body", "'body' must be an object"},
      {with("body", json::array()), "invalid_value", "body", "'body' must be an object"},
      {with("custom_id", ""), "invalid_value", "custom_id", "1 to 512 bytes"},
      {with("custom_id", 7), "invalid_value", "custom_id", "must be a string"},
      {with("custom_id", "a\nb"), "invalid_value", "custom_id", "control characters"},
      {with("custom_id", std::string(513, 'x')), "invalid_value", "custom_id", "1 to 512 bytes"},
      {completion("good"), "duplicate_custom_id", "custom_id", R"("good" is also that of line 1)"},
      {with("extra", 1), "unsupported_parameter", "extra", "unknown key 'extra'"},
      {json{{"id", 1}, {"prompt_ids", {3}}}, "missing_required_parameter", "custom_id", "'custom_id' is missing"},
  };
  for (const char* key : {"custom_id", "method", "url", "body"})
    rows.push_back({without(key), "missing_required_parameter", key, "'" + std::string(key) + "' is missing"});
  check_refused(rows);
  CHECK(refusal(with("custom_id", 7)).id == "null");
  CHECK(refusal(completion("good")).id == "null");
  CHECK(refusal(with("method", "GET")).id == "\"x\"");
}

TEST_CASE("completions that are refused", "[runtime]") {
  const auto body = [](const std::string& key, json value) { return completion("x", {{key, std::move(value)}}); };
  const std::string no = "unsupported_parameter", bad = "invalid_value";
  check_refused({
      {body("model", nullptr), "missing_required_parameter", "model", "'model' is missing"},
      {body("model", "gpt-4"), "model_not_found", "model", "'gpt-4' is not there, only 'demo' is"},
      {body("model", 4), bad, "model", "must be a string"},
      {body("prompt", nullptr), "missing_required_parameter", "prompt", "'prompt' is missing"},
      {body("prompt", {"a", "b"}), bad, "prompt", "several prompts; write one request for each"},
      {body("prompt", {{1, 2}, {3}}), bad, "prompt", "several prompts"},
      {body("prompt", {4096}), bad, "prompt", "token ids from 0 to 4095"},
      {body("prompt", 5), bad, "prompt", "must be"},
      {body("prompt", std::vector<int>(256, 7)), "context_length_exceeded", "prompt",
       "256 tokens; the model's context is 256"},
      {body("max_tokens", 256), "context_length_exceeded", "max_tokens", "256 are to follow"},
      {body("max_tokens", 0), bad, "max_tokens", "would give the log-probabilities of the prompt"},
      {body("max_tokens", -1), bad, "max_tokens", "must be an integer from 1"},
      {body("prompt_logprobs", 1), no, "prompt_logprobs", "'prompt_logprobs' is not supported, got 1"},
      {body("max_completion_tokens", 5), no, "max_completion_tokens", "unknown key"},
      {body("temperature", 3), bad, "temperature", "a number from 0.0 to 2.0, got 3"},
      {body("top_p", 0), bad, "top_p", "over 0"},
      {body("top_k", -2), bad, "top_k", "from -1"},
      {body("seed", 1.5), bad, "seed", "integer"},
      {body("stop", ""), bad, "stop", "1 to 512 bytes"},
      {body("stream", true), no, "stream", "'stream' is not supported, got true"},
      {body("logit_bias", {{"50256", -100}}), bad, "logit_bias", "token ids from 0 to 4095"},
      {body("presence_penalty", 2.5), bad, "presence_penalty", "from -2.0 to 2.0"},
      {body("frequency_penalty", -3), bad, "frequency_penalty", "from -2.0 to 2.0"},
      {body("best_of", 3), no, "best_of", "not supported"},
      {body("suffix", "end"), no, "suffix", "not supported"},
      {body("min_tokens", 5), bad, "min_tokens", "from 0 to 4"},
      {body("prompts", "a"), no, "prompts", "did you mean 'prompt'?"},
      {body("messages", {1}), no, "messages", "unknown key"},
  });
}

TEST_CASE("chats that are refused", "[runtime]") {
  const auto body = [](const std::string& key, json value) { return chat("x", {{key, std::move(value)}}); };
  const auto message = [&](json one) { return body("messages", json::array({std::move(one)})); };
  const std::string no = "unsupported_parameter", bad = "invalid_value";
  const json image{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", {{"url", "x"}}}}}}};
  check_refused({
      {body("messages", nullptr), "missing_required_parameter", "messages", "'messages' is missing"},
      {body("messages", json::array()), bad, "messages", "a non-empty list"},
      {body("messages", "Hello"), bad, "messages", "a non-empty list"},
      {message("Hello"), bad, "messages[0]", "must be an object"},
      {message({{"content", "a"}}), bad, "messages[0].role", "must be a string"},
      {message({{"role", "robot"}, {"content", "a"}}), bad, "messages[0].role", "system, user or assistant"},
      {message({{"role", "tool"}, {"content", "a"}}), bad, "messages[0].role", "system, user or assistant"},
      {message({{"role", "user"}, {"content", nullptr}}), bad, "messages[0].content", "must be a string"},
      {message({{"role", "user"}}), bad, "messages[0].content", "must be a string"},
      {message({{"role", "user"}, {"content", 5}}), bad, "messages[0].content", "must be a string"},
      {message(image), bad, "messages[0].content", R"(not {"type": "text")"},
      {message({{"role", "user"}, {"content", "a"}, {"name", 5}}), no, "messages[0].name", "not supported"},
      {message({{"role", "assistant"}}), bad, "messages[0].content", "must be a string"},
      {body("max_completion_tokens", 5), bad, "max_tokens", "found both, and they differ"},
      {body("tools", {{{"type", "function"}}}), bad, "tools", "must be a list of {"},
      {body("tools", {{{"type", "function"}, {"function", {{"name", "f"}}}}}), no, "tools", "not supported"},
      {body("tool_choice", "required"), no, "tool_choice", "not supported"},
      {body("response_format", {{"type", "xml"}}), bad, "response_format", "with the type"},
      {body("top_logprobs", 3), bad, "top_logprobs", "'logprobs' is not true"},
      {body("best_of", 2), no, "best_of", "not supported"},
      {body("chat_template_kwargs", {{"date_string", "1 Jan 2025"}}), no, "chat_template_kwargs", "does not take"},
      {body("chat_template_kwargs", {{"enable_thinking", false}}), no, "chat_template_kwargs", "does not take"},
      {body("chat_template_kwargs", {{"tools_in_user_message", true}}), no, "chat_template_kwargs", "does not take"},
      {body("chat_template_kwargs", {{"messages", 1}}), no, "chat_template_kwargs", "must not have 'messages'"},
      {body("chat_template_kwargs", 5), bad, "chat_template_kwargs", "must be an object"},
      {body("documents", {{{"text", "a"}}}), no, "documents", "does not take"},
      {message({{"role", "user"}, {"content", "a"}, {"tool_calls", {1}}}), no, "messages[0].tool_calls",
       "not supported"},
      {body("prompt", "a"), no, "prompt", "unknown key 'prompt'"},
      {body("reasoning_effort", "high"), no, "reasoning_effort", "not supported"},
  });
}

TEST_CASE("the fields n, logprobs and min_tokens are read and checked", "[runtime]") {
  OpenAiFile file(std::vector<json>{
      completion("a", {{"n", 2}, {"best_of", 2}, {"logprobs", 3}, {"min_tokens", 2}, {"ignore_eos", true}}),
      completion("b", {{"echo", true}}), chat("c", {{"logprobs", true}, {"top_logprobs", 2}}),
      chat("d", {{"logprobs", true}})});
  file.rules.chat = ChatTemplate::named("mistral-v0.2", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  const RequestFile requests = file.open();
  const Request first = requests.read(0);
  CHECK(first.n == 2);
  CHECK(first.logprobs == 3);
  CHECK(first.min_tokens == 2);
  CHECK(first.ignore_eos);
  CHECK_FALSE(first.echo);
  CHECK(requests.entry(0).n == 2);
  CHECK(requests.read(1).echo);
  CHECK(requests.read(1).logprobs == -1);
  CHECK(requests.read(2).logprobs == 2);
  CHECK(requests.read(3).logprobs == 0);
  check_refused({
      {completion("x", {{"n", 2}, {"temperature", 0}}), "invalid_value", "n", "must be 1 when using greedy sampling"},
      {completion("x", {{"echo", true}, {"logprobs", 1}, {"n", 2}}), "invalid_value", "n", "of the prompt"},
      {completion("x", {{"logprobs", 21}}), "invalid_value", "logprobs", "from 0 to 20"},
      {completion("x", {{"n", 129}}), "invalid_value", "n", "from 1 to 128"},
  });
}

TEST_CASE("a chat needs a template that is known, and roles that it takes", "[runtime]") {
  OpenAiFile file(
      std::vector<json>{chat("a", {{"messages", {{{"role", "assistant"}, {"content", "Hi"}}}}}), completion("b")});
  file.rules.chat = ChatTemplate::named("mistral-v0.2", {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  Refusal said = file.open(OnBadRequest::record).refusal(0);
  CHECK(said.code == "invalid_value");
  CHECK(said.param == "messages");
  CHECK_THAT(said.reason, Contains("roles must alternate"));
  file.rules.chat = ChatTemplate();
  said = file.open(OnBadRequest::record).refusal(0);
  CHECK(said.code == "unknown_chat_template");
  CHECK_THAT(said.reason, Contains("has no chat template") && Contains("/v1/completions"));
  CHECK_FALSE(file.open(OnBadRequest::record).refused(1));
}

TEST_CASE("tools, calls and parts reach a template that takes them", "[runtime]") {
  // What a template sees: keys in the order of the line, arguments as objects, reasoning under both names.
  OpenAiFile file("");
  file.rules.chat = ChatTemplate(
      "x",
      "{{ messages|tojson }}{{ tools|tojson }}{{ documents|tojson }}{{ mode }}{% if tool %}{% endif %}"
      "{{ tool_calls }}{{ reasoning_content }}{{ name }}{% if false %}{% for p in m.content %}{% endfor %}{% endif %}",
      {});
  const std::string line =
      R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{"model":"demo","max_tokens":1,
    "tools":[{"type":"function","function":{"name":"f","description":"d","a":1}}],"tool_choice":"auto",
    "documents":[{"title":"t"}],"chat_template_kwargs":{"mode":3},"messages":[
    {"role":"user","name":"Bob","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},
    {"role":"assistant","content":null,"refusal":null,"reasoning":"r","tool_calls":[{"id":"1","type":"function","function":{"name":"f",
    "arguments":"{\"z\": 1, \"b\": [2]}"}}]},{"role":"tool","tool_call_id":"1","content":"ok"}]}})";
  std::string one_line;
  for (const char c : line) one_line += c == '\n' ? ' ' : c;
  write_text(file.path, one_line);
  file.model.positions = 4096;
  const RequestFile requests = file.open();
  CHECK(
      demo_tokenizer().decode(requests.read(0).prompt) ==
      R"([{"role": "user", "name": "Bob", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, )"
      R"({"thinking": "r", "role": "assistant", "content": null, "reasoning": "r", "tool_calls": [{"id": "1", "type": "function", )"
      R"("function": {"name": "f", "arguments": {"z": 1, "b": [2]}}}], "reasoning_content": "r"}, )"
      R"({"role": "tool", "tool_call_id": "1", "content": "ok"}])"
      R"([{"type": "function", "function": {"name": "f", "description": "d", "a": 1}}][{"title": "t"}]3)");
}

TEST_CASE("the first line that is an object says the dialect", "[runtime]") {
  const OpenAiFile openai("nonsense\n" + OpenAiFile::joined({completion("a"), chat("b")}));
  CHECK(openai.open(OnBadRequest::record).dialect() == Dialect::openai);
  CHECK(openai.open(OnBadRequest::record).refusal(0).code == "invalid_json_line");
  const OpenAiFile native("{\"id\":1,\"prompt_ids\":[3]}\n" + OpenAiFile::joined({completion("a")}));
  CHECK(native.open(OnBadRequest::record).dialect() == Dialect::native);
  CHECK_THAT(native.open(OnBadRequest::record).refusal(1).reason, Contains("'id' is missing"));
  CHECK_THROWS_WITH(openai.open(OnBadRequest::record, RequestKind::score), Contains("weft score reads only its own"));
  CHECK_THROWS_WITH(
      RequestFile(openai.path, RequestKind::generate, nullptr, openai.model, 16, {}, OnBadRequest::record),
      Contains("needs a tokenizer"));
}

TEST_CASE("OpenAI's own limits are there where they are asked for", "[runtime]") {
  std::string long_id;
  for (int i = 0; i < 64; ++i) long_id += "é";  // 64 characters, 128 bytes
  OpenAiFile file(std::vector<json>{completion(long_id), completion(std::string(65, 'x'))});
  CHECK_NOTHROW(file.open());
  file.rules.strict = true;
  CHECK_THROWS_WITH(file.open(), Contains("in.jsonl:2: 'custom_id' must be a string of 1 to 64 characters"));
  std::string text;
  for (int i = 0; i <= 50'000; ++i) text += i == 0 ? completion("a").dump() + "\n" : "x\n";
  OpenAiFile many(text);
  many.rules.strict = true;
  CHECK_THROWS_WITH(many.open(OnBadRequest::record), Contains("50001 requests, --strict-openai allows 50000"));
  OpenAiFile native("{\"id\":1,\"prompt_ids\":[3]}\n");
  native.rules.strict = true;
  CHECK_THROWS_WITH(native.open(), Contains("--strict-openai is for OpenAI's"));
}
