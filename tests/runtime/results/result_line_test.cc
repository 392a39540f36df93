// Result lines in both dialects, and which request a line of a result file is for.
#include "runtime/results/result_line.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/base/utf8.h"
#include "tests/support/files.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
using runtime::Choice;
using runtime::ChoiceLogprobs;
using runtime::Dialect;
using runtime::Endpoint;
using runtime::OnBadRequest;
using runtime::Recipient;
using runtime::RequestFile;
using runtime::RequestKind;

namespace {

Choice choice(const std::string& text, std::vector<std::int32_t> tokens) {
  return {.text = text, .has_text = true, .tokens = std::move(tokens), .finish = "stop", .logprobs = {}};
}

json line_of(const Recipient& to, const std::vector<Choice>& choices) {
  const std::string line = runtime::result_line(to, 3, choices, &demo_tokenizer());
  CHECK(line.find('\n') == std::string::npos);
  CHECK(line.starts_with("{\"id\":"));  // by which a torn line of a result file is known
  return json::parse(line);
}

struct Requests {
  TemporaryFolder folder;
  policy::ModelSpec model;

  RequestFile open(const std::string& text) {
    model.vocab = 4096;
    model.positions = 32;
    write_text(folder / "in.jsonl", text);
    return {folder / "in.jsonl",
            RequestKind::generate,
            &demo_tokenizer(),
            model,
            4,
            {.model_names = {"demo"}, .files = nullptr, .chat = {}, .strict = false},
            OnBadRequest::record};
  }
};

const std::string kNative =
    "{\"id\":\"a\",\"prompt_ids\":[3]}\n{\"id\":\"b\",\"prompt_ids\":3}\nnonsense\n{\"id\":\"a\",\"prompt_ids\":[3]}\n";
const std::string kBody = R"("method":"POST","url":"/v1/completions","body":{"model":"demo","prompt":"x"}})";
const std::string kOpenAi = R"({"custom_id":"a",)" + kBody + "\n" +
                            R"({"custom_id":"b","method":"GET","url":"","body":{}})" + "\nnonsense\n" +
                            R"({"custom_id":"a",)" + kBody + "\n";

}  // namespace

TEST_CASE("an answer in Weft's own form", "[runtime]") {
  CHECK(
      runtime::result_line({"7", Endpoint::native, ""}, 3, std::vector{choice("hi", {5, 2})}, &demo_tokenizer()) ==
      R"({"id":7,"text":"hi","token_ids":[5,2],"finish_reason":"stop","usage":{"prompt_tokens":3,"completion_tokens":2}})");
}

TEST_CASE("metadata comes back with an answer and with a refusal", "[runtime]") {
  const std::string metadata = R"({"choices":null,"text":"x"})";
  const std::string line =
      runtime::result_line({"7", Endpoint::native, "", metadata}, 3,
                           std::vector{choice("hi", {5, 2}), choice("ho", {5})}, &demo_tokenizer());
  CHECK(line.starts_with(R"({"id":7,"metadata":{"choices":null,"text":"x"},"choices":[{"index":0,"text":"hi")"));
  CHECK(json::parse(line)["choices"].size() == 2);
  CHECK(runtime::refusal_line({"7", 1, "c", "p", "r", "3"}, Dialect::native) ==
        R"({"id":7,"metadata":3,"error":{"code":"c","message":"r"}})");
}

TEST_CASE("an answer as OpenAI's completion", "[runtime]") {
  const json line = line_of({"\"a\"", Endpoint::completions, "demo"}, {choice("hi", {5, 2}), choice("ho", {6})});
  const json& body = line.at("response").at("body");
  CHECK(line.at("custom_id") == "a");
  CHECK(line.at("id").get<std::string>().starts_with("batch_req_"));
  CHECK(line.at("error").is_null());
  CHECK(line.at("response").at("status_code") == 200);
  CHECK(body.at("object") == "text_completion");
  CHECK(body.at("model") == "demo");
  CHECK(body.at("created").is_number_integer());
  CHECK(body.at("choices") == json::parse(R"([{"index":0,"text":"hi","logprobs":null,"finish_reason":"stop"},
                                             {"index":1,"text":"ho","logprobs":null,"finish_reason":"stop"}])"));
  CHECK(body.at("usage") == json::parse(R"({"prompt_tokens":3,"completion_tokens":3,"total_tokens":6})"));
  CHECK(line.at("id") == line_of({"\"a\"", Endpoint::completions, "demo"}, {choice("", {})}).at("id"));
  CHECK(line.at("id") != line_of({"\"b\"", Endpoint::completions, "demo"}, {choice("", {})}).at("id"));
}

TEST_CASE("an answer as OpenAI's chat completion", "[runtime]") {
  const json body = line_of({"\"a\"", Endpoint::chat, "demo"}, {choice("hi", {5})}).at("response").at("body");
  CHECK(body.at("object") == "chat.completion");
  CHECK(body.at("id").get<std::string>().starts_with("chatcmpl-"));
  CHECK(body.at("choices") == json::parse(R"([{"index":0,"message":{"role":"assistant","content":"hi","refusal":null},
                                             "logprobs":null,"finish_reason":"stop"}])"));
}

TEST_CASE("an answer of megabytes has the form of a short one", "[runtime]") {
  const Endpoint endpoint = GENERATE(Endpoint::native, Endpoint::completions, Endpoint::chat);
  const std::size_t tokens = GENERATE(2, 9000);  // the latter is over a MiB
  Choice one = choice("It was \"choices\":null", std::vector<std::int32_t>(tokens, 5));
  one.logprobs = ChoiceLogprobs{.chosen = std::vector<float>(tokens, -0.5f),
                                .top = std::vector(tokens, std::vector<runtime::TokenLogprob>{{5, -0.5f}, {6, -1.5f}})};
  const json line = line_of({"\"choices\"", endpoint, "\"choices\":null"}, {one, one});
  const json& list = endpoint == Endpoint::native ? line.at("choices") : line.at("response").at("body").at("choices");
  REQUIRE(list.size() == 2);
  CHECK(list.at(0).at("index") == 0);
  CHECK(list.at(1).at("index") == 1);
  for (const json& made : list) {
    CHECK(made.at("finish_reason") == "stop");
    const json& logprobs = endpoint == Endpoint::native        ? made.at("logprobs")
                           : endpoint == Endpoint::completions ? made.at("logprobs").at("top_logprobs")
                                                               : made.at("logprobs").at("content");
    REQUIRE(logprobs.size() == tokens);
    CHECK(logprobs.front() == logprobs.back());
  }
}

TEST_CASE("logprobs in OpenAI's forms", "[runtime]") {
  const auto ids = demo_tokenizer().encode("It was", false);
  REQUIRE(ids.size() == 2);
  Choice one = choice("It was", {ids[0], ids[1]});
  one.logprobs =
      ChoiceLogprobs{.chosen = {-0.5f, -1.5f}, .top = {{{ids[0], -0.5f}}, {{ids[0], -0.25f}, {ids[1], -1.5f}}}};
  const json flat = line_of({"\"a\"", Endpoint::completions, "demo"}, {one});
  CHECK(flat.at("response").at("body").at("choices").at(0).at("logprobs") == json::parse(R"({"text_offset":[0,2],
    "token_logprobs":[-0.5,-1.5],"tokens":["It"," was"],"top_logprobs":[{"It":-0.5},{" was":-1.5,"It":-0.25}]})"));
  const json chat = line_of({"\"a\"", Endpoint::chat, "demo"}, {one});
  const json content = chat.at("response").at("body").at("choices").at(0).at("logprobs").at("content");
  CHECK(content.at(0) == json::parse(R"({"token":"It","logprob":-0.5,"bytes":[73,116],
    "top_logprobs":[{"token":"It","logprob":-0.5,"bytes":[73,116]}]})"));
  CHECK(content.at(1).at("top_logprobs").size() == 2);
}

TEST_CASE("logprobs show special tokens by their text, and tell equal texts apart", "[runtime]") {
  const auto& tokenizer = demo_tokenizer();
  std::int32_t special = 0;
  while (tokenizer.shown_piece(special) == tokenizer.piece(special)) ++special;
  const std::string name(tokenizer.shown_piece(special));
  std::vector<std::int32_t> halves;  // bytes that are no text by themselves
  for (std::int32_t id = 0; halves.size() < 3; ++id)
    if (tokenizer.piece(id).size() == 1 && static_cast<unsigned char>(tokenizer.piece(id)[0]) >= 0x80)
      halves.push_back(id);
  const auto ids = tokenizer.encode("It was", false);
  Choice one = choice("It was", {special, ids[1]});
  one.logprobs = ChoiceLogprobs{
      .chosen = {-0.5f, -1.5f},
      .top = {{{special, -0.5f}}, {{halves[0], -0.25f}, {halves[1], -0.5f}, {halves[2], -0.75f}, {ids[1], -1.5f}}}};
  const json native = line_of({"7", Endpoint::native, ""}, {one}).at("logprobs");
  CHECK(native.at(0).at("token") == name);
  const json chat = line_of({"\"a\"", Endpoint::chat, "demo"}, {one});
  const json content = chat.at("response").at("body").at("choices").at(0).at("logprobs").at("content");
  CHECK(content.at(0).at("token") == name);
  CHECK(content.at(0).at("bytes").size() == name.size());
  const json flat = line_of({"\"a\"", Endpoint::completions, "demo"}, {one});
  const json logprobs = flat.at("response").at("body").at("choices").at(0).at("logprobs");
  CHECK(logprobs.at("text_offset") == json::parse("[0,0]"));  // the special token is no part of the text
  CHECK(logprobs.at("tokens").at(0) == name);
  CHECK(logprobs.at("top_logprobs").at(1).size() == 4);
  CHECK(logprobs.at("top_logprobs").at(1).contains("\uFFFD"));
}

TEST_CASE("text_offset is the place of a token in the text, in characters", "[runtime]") {
  const runtime::Tokenizer tokenizer = runtime::Tokenizer::load(data_path("tokenizer/llama2"));
  const std::string odd = "\U0001F9FF", prompt = "It\nwas a night\n",
                    answer = " " + odd + " b\n\nc";  // odd: four bytes
  Choice one = choice(prompt + answer, {});
  one.prompt = tokenizer.encode(prompt, true);
  one.tokens = tokenizer.encode_after(one.prompt, answer);
  one.hides_first = one.echoes = true;
  one.prompt_logprobs.chosen.resize(one.prompt.size() - 1);
  one.prompt_logprobs.top.resize(one.prompt.size() - 1);
  one.logprobs = ChoiceLogprobs{.chosen = std::vector<float>(one.tokens.size()), .top = {}};
  one.logprobs->top.resize(one.tokens.size());
  const auto offsets = [&] {
    const std::string line =
        runtime::result_line({"\"a\"", Endpoint::completions, "m"}, 3, std::vector{one}, &tokenizer);
    const json choices = json::parse(line).at("response").at("body").at("choices");
    return choices.at(0).at("logprobs").at("text_offset").get<std::vector<std::size_t>>();
  };
  const auto found = offsets();
  std::vector<std::int32_t> all = one.prompt;
  all.insert(all.end(), one.tokens.begin(), one.tokens.end());
  REQUIRE(found.size() == all.size());
  int whole = 0, parts = 0;
  for (std::size_t i = 1; i < all.size(); ++i) {
    std::string piece(tokenizer.piece(all[i]));
    if (i == 1) piece.erase(0, piece.starts_with(' ') ? 1 : 0);  // the text does not begin with a space
    std::size_t at = 0;
    for (std::size_t passed = 0; passed < found[i]; ++passed) at += runtime::utf8_at(one.text, at).bytes;
    CAPTURE(i, piece, found);
    const bool is_part = !runtime::is_utf8(piece);
    ++(is_part ? parts : whole);
    CHECK(one.text.substr(at).starts_with(is_part ? odd : piece));
  }
  CHECK(whole > 8);
  CHECK(parts == 4);
  one.hides_first = false;
  CHECK(offsets().at(1) == std::string("<s>").size());
}

TEST_CASE("text_offset counts bytes that become no character", "[runtime]") {
  const std::string folder = GENERATE("demo", "llama2");
  const runtime::Tokenizer llama2 = runtime::Tokenizer::load(data_path("tokenizer/llama2"));
  const runtime::Tokenizer& tokenizer = folder == "demo" ? demo_tokenizer() : llama2;
  const auto token_of = [&](const std::string& bytes) {
    std::int32_t id = 0;
    while (tokenizer.piece(id) != bytes) ++id;
    return id;
  };
  using Places = std::vector<std::size_t>;
  for (const auto& [pieces, wanted] : {std::pair<std::vector<std::string>, Places>{{"\xC3", "\xC3", "\xC3"}, {0, 1, 2}},
                                       {{"\xC3", "\xA9", "a"}, {0, 0, 1}},
                                       {{"\xC3", "a", "\xA9", "b"}, {0, 1, 2, 3}},
                                       {{"a", "\xF0", "\x9F", "\xA7", "\xBF", "b"}, {0, 1, 1, 1, 1, 2}},
                                       {{"\xE2", "a"}, {0, 1}}}) {
    CAPTURE(folder, pieces);
    Choice one = choice("", {});
    for (const std::string& piece : pieces) one.tokens.push_back(token_of(piece));
    one.text = tokenizer.decode(one.tokens);
    one.logprobs = ChoiceLogprobs{.chosen = std::vector<float>(one.tokens.size()), .top = {}};
    one.logprobs->top.resize(one.tokens.size());
    const std::string line =
        runtime::result_line({"\"a\"", Endpoint::completions, "m"}, 3, std::vector{one}, &tokenizer);
    const json choices = json::parse(line).at("response").at("body").at("choices");
    CHECK(choices.at(0).at("logprobs").at("text_offset").get<Places>() == wanted);
  }
}

TEST_CASE("refused requests in Weft's own form", "[runtime]") {
  Requests files;
  const RequestFile requests = files.open(kNative);
  REQUIRE(requests.size() == 4);
  CHECK(
      runtime::refusal_line(requests.refusal(1), Dialect::native) ==
      R"({"id":"b","error":{"code":"invalid_value","message":"'prompt_ids' must be a non-empty list of token ids, got 3"}})");
  const json unreadable = json::parse(runtime::refusal_line(requests.refusal(2), Dialect::native));
  CHECK(unreadable.at("id").is_null());
  CHECK(unreadable.at("line") == 3);
  CHECK(unreadable.at("error").at("code") == "invalid_json_line");
  CHECK(json::parse(runtime::refusal_line(requests.refusal(3), Dialect::native)).at("line") == 4);
}

TEST_CASE("the tokenizer's first token can be left out", "[runtime]") {
  Requests files;
  const RequestFile requests = files.open(
      "{\"prompt\":\"It was\"}\n{\"prompt\":\"It was\",\"add_special_tokens\":false}\n"
      "{\"prompt\":\"</s>It was\"}\n{\"prompt\":\"</s>It was\",\"add_special_tokens\":false}\n");
  const auto with = requests.read(0).prompt, without = requests.read(1).prompt;
  CHECK(with.front() == demo_tokenizer().first_token());
  CHECK(std::vector(with.begin() + 1, with.end()) == without);
  CHECK(requests.read(3).prompt == with);
  CHECK(requests.doubled_first_tokens() == 1);
}

TEST_CASE("refused requests in OpenAI's form", "[runtime]") {
  Requests files;
  const RequestFile requests = files.open(kOpenAi);
  REQUIRE(requests.size() == 4);
  const json refused = json::parse(runtime::refusal_line(requests.refusal(1), Dialect::openai));
  CHECK(refused.at("custom_id") == "b");
  CHECK(refused.at("error").is_null());
  CHECK(refused.at("response").at("status_code") == 400);
  CHECK(refused.at("response").at("body").at("error") ==
        json::parse(R"({"message":"'method' must be \"POST\", got the string \"GET\"","type":"invalid_request_error",
                        "param":"method","code":"invalid_method"})"));
  const json unreadable = json::parse(runtime::refusal_line(requests.refusal(2), Dialect::openai));
  CHECK(unreadable.at("custom_id").is_null());
  CHECK(unreadable.at("response").at("body").at("error").at("line") == 3);
  CHECK(unreadable.at("response").at("body").at("error").at("param").is_null());
  CHECK(json::parse(runtime::refusal_line({"\"x\"", 1, "model_not_found", "model", "no"}, Dialect::openai))
            .at("response")
            .at("status_code") == 404);
}

TEST_CASE("a line of the result file says which request it is for", "[runtime]") {
  for (const bool openai : {false, true}) {
    CAPTURE(openai);
    Requests files;
    const RequestFile requests = files.open(openai ? kOpenAi : kNative);
    const Recipient first{"\"a\"", openai ? Endpoint::completions : Endpoint::native, "demo"};
    const auto answered = [&](const std::string& line) {
      return runtime::answered_request(json::parse(line), requests, "out:1");
    };
    CHECK(answered(runtime::result_line(first, 3, std::vector{choice("hi", {5})}, &demo_tokenizer())) == 0);
    for (const std::size_t i : {1, 2, 3})
      CHECK(answered(runtime::refusal_line(requests.refusal(i), requests.dialect())) == i);
    const auto other = openai ? Dialect::native : Dialect::openai;
    CHECK_THROWS_WITH(answered(runtime::refusal_line({"\"a\"", 1, "c", "p", "r"}, other)),
                      Contains("out:1: not a result"));
    for (const char* line : {"[]", "{}", "7", R"({"id":"a"})", R"({"custom_id":"a"})", R"({"id":"a","logprobs":[]})"})
      CHECK_THROWS_WITH(answered(line), Contains("out:1: not a result of weft generate"));
    for (const char* line : {R"({"id":null,"line":9,"error":{},"custom_id":null,"response":{}})",
                             R"({"id":null,"line":"3","error":{},"custom_id":null,"response":7})",
                             R"({"id":null,"error":{},"custom_id":null,"response":{"body":{"error":{"line":-3}}}})",
                             R"({"id":"z","error":{},"custom_id":"z","response":{}})"})
      CHECK_THROWS_WITH(answered(line), Contains("out:1: answers a request that is not in the input"));
  }
}
