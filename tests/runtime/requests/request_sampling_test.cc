// The fields that decide which token comes next, in both dialects: what they mean, their ranges, and the job's
// defaults.
#include "runtime/requests/request_sampling.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/requests/reasoning.h"
#include "runtime/requests/requests.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
using runtime::LogitRules;
using runtime::OnBadRequest;
using runtime::Request;
using runtime::RequestDefaults;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

/// Reads one line, with the demo model's tokenizer unless `bare`.
Request read_fields(const json& line, const RequestDefaults& defaults = {}, bool bare = false) {
  const TemporaryFolder folder;
  policy::ModelSpec model;
  model.vocab = 4096;
  model.positions = 64;
  write_text(folder / "in.jsonl", line.dump());
  runtime::OpenAiRules openai{
      .model_names = {"demo"}, .files = nullptr, .chat = runtime::ChatTemplate::named("chatml", {}), .strict = false};
  return RequestFile(runtime::InputFile(folder / "in.jsonl"), RequestKind::generate, bare ? nullptr : &demo_tokenizer(),
                     model, 16, openai, OnBadRequest::fail, nullptr, {}, {}, defaults)
      .read(0);
}

json native(const json& fields) {
  json line{{"id", 1}, {"prompt", "It was a dark night"}};
  line.update(fields);
  return line;
}

/// The same fields in OpenAI's completions, or as a conversation.
json openai(const json& fields, bool chat = false) {
  json body{{"model", "demo"}};
  if (chat) body["messages"] = json::array({{{"role", "user"}, {"content", "Hi"}}});
  else body["prompt"] = "It was a dark night";
  body.update(fields);
  return {{"custom_id", "a"},
          {"method", "POST"},
          {"url", chat ? "/v1/chat/completions" : "/v1/completions"},
          {"body", body}};
}

std::vector<std::pair<std::int32_t, float>> biases(const Request& request) {
  std::vector<std::pair<std::int32_t, float>> all;
  for (const auto& [token, bias] : request.rules.bias) all.emplace_back(token, bias);
  return all;
}

}  // namespace

TEST_CASE("rules for logits are read alike in every dialect", "[runtime]") {
  const json fields{{"repetition_penalty", 1.25},
                    {"presence_penalty", -2},
                    {"frequency_penalty", 0.5},
                    {"min_p", 0.25},
                    {"logit_bias", {{"4095", -100}, {"7", 1.5}, {"10", 0}}},
                    {"bad_words", {"  sea", " old man"}},
                    {"allowed_token_ids", {7, 0, 4095, 8, 7}}};
  for (const json& line : {native(fields), openai(fields), openai(fields, true)}) {
    const Request request = read_fields(line);
    CHECK(request.sampling.min_p == 0.25f);
    CHECK(request.rules.repetition_penalty == 1.25f);
    CHECK(request.rules.presence_penalty == -2);
    CHECK(request.rules.frequency_penalty == 0.5f);
    CHECK(biases(request) == std::vector<std::pair<std::int32_t, float>>{{7, 1.5f}, {4095, -100}});
    CHECK(request.rules.bad_words == std::vector<Ids>{{321, 68}, {1890, 442}, {715, 442}});
    CHECK(request.rules.allowed == Ids{0, 7, 8, 4095});
  }
}

TEST_CASE("bad words have the tokens that vLLM gives them", "[runtime]") {
  const auto words = [](const char* word) { return read_fields(native({{"bad_words", {word}}})).rules.bad_words; };
  CHECK(words("old") == std::vector<Ids>{{1890}, {715}});
  CHECK(words("!") == std::vector<Ids>{{4}});                            // with a space it has two tokens
  CHECK(words("\u3000dark night") == std::vector<Ids>{{71, 720, 828}});  // with a space it has one less
  CHECK(words("é") == std::vector<Ids>{{131, 106}});
}

TEST_CASE("values that change nothing cost nothing", "[runtime]") {
  const json fields{{"repetition_penalty", 1},  {"presence_penalty", 0},     {"frequency_penalty", 0.0}, {"min_p", 0},
                    {"logit_bias", {{"5", 0}}}, {"bad_words", json::array()}};
  for (const json& line : {native(fields), openai(fields), native(json::object())}) {
    const Request request = read_fields(line);
    CHECK_FALSE(request.rules.any());
    CHECK(request.sampling.min_p == 0);
  }
}

TEST_CASE("rules for logits that are refused", "[runtime]") {
  const std::vector<std::pair<json, std::string>> rows{
      {{{"repetition_penalty", 0}}, "'repetition_penalty' must be a number from 1e-06 to 1000000.0, got 0"},
      {{{"repetition_penalty", "1"}}, "'repetition_penalty' must be a number"},
      {{{"presence_penalty", 2.5}}, "'presence_penalty' must be a number from -2.0 to 2.0, got 2.5"},
      {{{"frequency_penalty", -3}}, "'frequency_penalty' must be a number from -2.0 to 2.0, got -3"},
      {{{"min_p", 1.5}}, "'min_p' must be a number from 0.0 to 1.0, got 1.5"},
      {{{"logit_bias", {1, 2}}}, "'logit_bias' must be an object of token ids from 0 to 4095"},
      {{{"logit_bias", {{"4096", 1}}}}, "'logit_bias' must be an object"},
      {{{"logit_bias", {{"x", 1}}}}, "'logit_bias' must be an object"},
      {{{"logit_bias", {{"5", 101}}}}, "with a number from -100 to 100"},
      {{{"logit_bias", {{"5", "1"}}}}, "with a number from -100 to 100"},
      {{{"logit_bias", {{"5", 1}, {"05", 2}}}}, "each once"},
      {{{"bad_words", "old"}}, "'bad_words' must be a list of strings"},
      {{{"bad_words", {1}}}, "'bad_words' must be a list of strings"},
      {{{"bad_words", {" "}}}, "'bad_words' must be strings that have tokens"},
      {{{"allowed_token_ids", json::array()}}, "'allowed_token_ids' must be a non-empty list"},
      {{{"allowed_token_ids", {4096}}}, "'allowed_token_ids' must be a list of token ids from 0 to 4095"},
      {{{"allowed_token_ids", {4}}, {"bad_words", {"!"}}}, "'allowed_token_ids' has only tokens that 'bad_words'"},
      {{{"allowed_token_ids", {5}}, {"stop_token_ids", {5}}, {"min_tokens", 1}}, "'allowed_token_ids' has only tokens"},
      {{{"truncate_prompt_tokens", 0}}, "'truncate_prompt_tokens' must be an integer over 0, or -1, got 0"},
      {{{"truncate_prompt_tokens", -2}}, "'truncate_prompt_tokens' must be an integer from -1"},
      {{{"skip_special_tokens", 1}}, "'skip_special_tokens' must be true or false"},
      {{{"include_stop_str_in_output", "yes"}}, "'include_stop_str_in_output' must be true or false"},
  };
  for (const auto& [fields, words] : rows)
    for (const json& line : {native(fields), openai(fields), openai(fields, true)}) {
      CAPTURE(line.dump());
      CHECK_THROWS_WITH(read_fields(line), Contains("in.jsonl:1: ") && Contains(words));
    }
  CHECK_THROWS_WITH(read_fields({{"prompt_ids", {3}}, {"bad_words", {"a"}}}, {}, true),
                    Contains("'bad_words' needs a tokenizer"));
}

TEST_CASE("a prompt is cut to its last tokens, and keeps the first one of the tokenizer", "[runtime]") {
  const auto cut = [](json most, json fields = json::object()) {
    fields["truncate_prompt_tokens"] = std::move(most);
    const Ids prompt = read_fields(native(fields)).prompt;
    CHECK(read_fields(openai(fields)).prompt == prompt);
    return prompt;
  };
  // As transformers cuts with truncation_side="left".
  CHECK(cut(1) == Ids{2});
  CHECK(cut(3) == Ids{2, 1125, 828});
  CHECK(cut(6) == Ids{2, 837, 322, 262, 1125, 828});
  CHECK(cut(9) == cut(6));
  CHECK(cut(2, {{"add_special_tokens", false}}) == Ids{1125, 828});
  CHECK(cut(-1, {{"max_tokens", 61}}) == Ids{2, 1125, 828});  // of 64 positions
  CHECK(cut(-1) == cut(6));
  CHECK(read_fields({{"prompt_ids", {2, 7, 8, 9}}, {"truncate_prompt_tokens", 2}}).prompt == Ids{8, 9});
  const Ids all = read_fields(openai(json::object(), true)).prompt;
  const Ids chat = read_fields(openai({{"truncate_prompt_tokens", 2}}, true)).prompt;
  CHECK(chat == Ids(all.end() - 2, all.end()));
}

TEST_CASE("the job's defaults stand where a line says nothing", "[runtime]") {
  RequestDefaults defaults;
  defaults.temperature = 0.5, defaults.top_p = 0.75, defaults.top_k = 9, defaults.min_p = 0.125, defaults.seed = 4;
  defaults.repetition_penalty = 1.5, defaults.stop = {"x", "y"};
  for (const bool chat : {false, true}) {
    const Request request = read_fields(chat ? openai(json::object(), true) : native(json::object()), defaults);
    CHECK(request.sampling.temperature == 0.5f);
    CHECK(request.sampling.top_p == 0.75f);
    CHECK(request.sampling.top_k == 9);
    CHECK(request.sampling.min_p == 0.125f);
    CHECK(request.rules.repetition_penalty == 1.5f);
    CHECK(request.stop_strings == std::vector<std::string>{"x", "y"});
  }
  CHECK(read_fields(native(json::object()), defaults).sampling.key == read_fields(native({{"seed", 4}})).sampling.key);
  const Request own = read_fields(
      native({{"temperature", 0}, {"top_p", 1}, {"top_k", 0}, {"min_p", 0}, {"repetition_penalty", 1}, {"stop", "z"}}),
      defaults);
  CHECK(own.sampling.temperature == 0);
  CHECK(own.sampling.top_p == 1);
  CHECK(own.sampling.top_k == 0);
  CHECK_FALSE(own.rules.any());
  CHECK(own.stop_strings == std::vector<std::string>{"z"});
}

TEST_CASE("prompts become conversations, and conversations get a message of the system", "[runtime]") {
  RequestDefaults chat;
  chat.chat = true, chat.system_prompt = "Be brief.";
  const auto text = [](const Request& request) { return demo_tokenizer().decode_shown(request.prompt); };
  const std::string whole =
      "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
  CHECK(text(read_fields({{"prompt", "Hi"}}, chat)) == whole);
  CHECK(text(read_fields(openai(json::object(), true), [&] {
          RequestDefaults system = chat;
          system.chat = false;
          return system;
        }())) == whole);
  const json own{{{"role", "system"}, {"content", "Own."}}, {{"role", "user"}, {"content", "Hi"}}};
  CHECK_THAT(text(read_fields({{"messages", own}}, chat)), Contains("Own.") && !Contains("brief"));
  CHECK(read_fields({{"prompt_ids", {3, 4}}}, chat).prompt == Ids{3, 4});
  CHECK_THROWS_WITH(read_fields({{"prompt", 5}}, chat), Contains("'prompt' must be a string"));
  CHECK_THROWS_WITH(read_fields({{"prompt", "a"}, {"prompt_ids", {1}}}, chat),
                    Contains("wanted either 'prompt' or 'prompt_ids', found both"));
  CHECK_THROWS_WITH(read_fields(openai(json::object()), chat), Contains("leave out --chat"));
}

TEST_CASE("generation_config.json suggests values, and flags come first", "[runtime]") {
  const TemporaryFolder folder;
  const auto suggested = [&](const char* text) {
    write_text(folder / "generation_config.json", text);
    return runtime::suggested_by(folder / ".");
  };
  CHECK(runtime::suggested_by(folder / "nowhere").text().empty());
  CHECK(suggested(R"({"eos_token_id": 2, "do_sample": true, "top_k": null})").text().empty());
  RequestDefaults all = suggested(R"({"temperature": 0.6, "top_p": 0.95, "top_k": -1, "min_p": 0.0,
    "repetition_penalty": 1.05, "max_new_tokens": 2048, "seed": 3})");
  CHECK(all.max_tokens == 2048);
  CHECK(all.text() == R"({"temperature":0.6,"top_p":0.95,"top_k":0,"min_p":0.0,"repetition_penalty":1.05})");
  RequestDefaults flags;
  flags.temperature = 0, flags.seed = 5;
  flags.fill_from(all);
  CHECK(flags.text() == R"({"temperature":0.0,"top_p":0.95,"top_k":0,"min_p":0.0,"repetition_penalty":1.05,"seed":5})");
  CHECK_THROWS_WITH(suggested(R"({"top_p": 0})"), Contains("generation_config.json") && Contains("'top_p'"));
  CHECK_THROWS_AS(suggested(R"({"temperature": -1})"), DataError);
}

TEST_CASE("flags of defaults are checked by name", "[runtime]") {
  const auto refused = [](auto member, auto value, const char* words) {
    RequestDefaults defaults;
    defaults.*member = value;
    CHECK_THROWS_WITH(defaults.check(), Contains(words));
  };
  refused(&RequestDefaults::temperature, -1.0, "--temperature must be a number from 0.0 to 100.0, got -1");
  refused(&RequestDefaults::temperature, std::nan(""), "--temperature");
  refused(&RequestDefaults::top_p, 0.0, "--top-p must be over 0");
  refused(&RequestDefaults::min_p, 2.0, "--min-p must be a number from 0.0 to 1.0");
  refused(&RequestDefaults::top_k, std::int64_t{-1}, "--top-k must be an integer from 0");
  refused(&RequestDefaults::seed, std::int64_t{-1}, "--seed must be an integer from 0");
  refused(&RequestDefaults::stop, std::vector<std::string>{""}, "--stop must have 1 to 512 bytes");
  refused(&RequestDefaults::stop, std::vector<std::string>(17, "x"), "--stop may be given at most 16 times");
}

TEST_CASE("reasoning is taken out of an answer as vLLM's parsers do", "[runtime]") {
  using runtime::Reasoning;
  const auto split = [](Reasoning rule, const char* text) {
    const auto [reasoning, rest] = runtime::split_reasoning(rule, text);
    return reasoning.value_or("none") + "|" + rest;
  };
  CHECK(split(Reasoning::deepseek_r1, "<think>a\n</think>\nb") == "a\n|\nb");
  CHECK(split(Reasoning::deepseek_r1, "a</think>b</think>") == "a|b</think>");
  CHECK(split(Reasoning::deepseek_r1, "<think>a") == "a|");
  CHECK(split(Reasoning::deepseek_r1, "a") == "a|");
  CHECK(split(Reasoning::qwen3, "<think>a</think>b") == "a|b");
  CHECK(split(Reasoning::qwen3, "<think>a") == "none|<think>a");
  CHECK(split(Reasoning::qwen3, "a</think>b") == "none|a</think>b");
  CHECK(split(Reasoning::whole, "<think>a</think>b") == "none|<think>a</think>b");
  CHECK_THROWS_WITH(runtime::reasoning_from_text("x"), Contains("--reasoning-parser must be deepseek_r1 or qwen3"));
}
