// tests/policy/json_test.cc
#include "policy/base/json.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

using namespace weft;
using namespace weft::policy;
using namespace std::string_literals;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace {

json parse(std::string_view text) { return parse_json(text, "f.json", Blame::data); }

/// The message that `text` is refused with; "accepted" if it is not.
std::string refusal(std::string_view text, const JsonLimits& limits = {}) {
  try {
    parse_json(text, "f.json", Blame::data, limits);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

template <class Call> std::string usage_refusal(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("parse_json reads what JSON allows", "[policy]") {
  CHECK(parse("{}") == json::object());
  CHECK(parse(" \t\r\n[1, -2, 3.5, true, false, null, \"x\"]\n") == json({1, -2, 3.5, true, false, nullptr, "x"}));
  CHECK(parse("\"plain\"") == json("plain"));
  CHECK(parse("{\"a\":{\"a\":[{\"a\":1},{\"a\":2}]}, \"b\":{\"a\":3}}") ==
        json{{"a", {{"a", {{{"a", 1}}, {{"a", 2}}}}}}, {"b", {{"a", 3}}}});
  CHECK(parse("18446744073709551615").get<std::uint64_t>() == std::numeric_limits<std::uint64_t>::max());
  CHECK(parse("-9223372036854775808").get<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  CHECK(parse("-0").is_number_integer());
  CHECK(parse("1e3").is_number_float());
  CHECK(parse("1e-400").get<double>() == 0.0);
  CHECK(parse("\"\\u0000\\ud83d\\ude00\\uffff\"") == json("\0\xF0\x9F\x98\x80\xEF\xBF\xBF"s));
  CHECK(parse("\"\xF4\x8F\xBF\xBF\x7F\"") == json("\xF4\x8F\xBF\xBF\x7F"));
}

TEST_CASE("parse_json refuses everything else, says where, and shows no text of the file", "[policy]") {
  struct Case {
    const char* name;
    std::string text, expected;
  };
  const auto bad = GENERATE(values<Case>({
      {"empty", "", "f.json: is empty, wanted JSON"},
      {"blank", " \n\t\r\n", "f.json: is empty, wanted JSON"},
      {"duplicate key", R"({"a":1,"a":2})", "f.json: byte 10: the key 'a' appears twice"},
      {"duplicate key by an escape", R"({"a":1,"\u0061":2})", "the key 'a' appears twice"},
      {"duplicate key inside", "{\n \"x\": [{\"b\":{},\n\"b\":1}]}",
       "f.json: line 3, byte 3: the key 'b' appears twice"},
      {"integer over 64 bits", "18446744073709551616", "an integer does not fit 64 bits"},
      {"integer under 64 bits", "[-9223372036854775809]", "an integer does not fit 64 bits"},
      {"long integer", std::string(400, '9'), "a number is too large"},
      {"too large a float", "[1, 1e400]", "a number is too large"},
      {"too large a negative float", "-1e400", "a number is too large"},
      {"NaN", "[NaN]", "f.json: byte 2: not valid JSON: invalid literal"},
      {"Infinity", "-Infinity", "f.json: byte 2: not valid JSON: invalid number"},
      {"NUL after the text", "{\"a\":1}\0 garbage"s, "f.json: byte 8: not valid JSON: NUL byte"},
      {"NUL in a string", "\"a\0b\""s, "NUL byte"},
      {"byte order mark", "\xEF\xBB\xBF{}", "it starts with a byte order mark"},
      {"text after the value", "{\"a\":1}\nsecret", "f.json: line 2, byte 1: not valid JSON: invalid literal"},
      {"two values", "{}{}", "f.json: byte 3: not valid JSON: unexpected '{'; expected end of input"},
      {"two values on lines", "{}\n{}", "f.json: line 2, byte 1: "},
      {"comment", "{} // no", "not valid JSON: invalid literal"},
      {"comment inside", "[/* no */1]", "not valid JSON: invalid literal"},
      {"trailing comma in an object", R"({"a":1,})", "expected string literal"},
      {"trailing comma in an array", "[1,]", "unexpected ']'"},
      {"single quotes", "{'secret':1}", "not valid JSON: invalid literal"},
      {"cut text", R"({"a":[1,2)", "unexpected end of input; expected ']'"},
      {"cut string", R"({"secret)", "invalid string: missing closing quote"},
      {"leading zero", "[01]", "unexpected number literal; expected ']'"},
      {"plus", "+1", "invalid literal"},
      {"no digits", "[1.]", "invalid number"},
      {"hex", "[0x10]", "not valid JSON"},
      {"capital literal", "[True]", "invalid literal"},
      {"control character", "\"a\nb\"", "control character U+000A"},
      {"lone high surrogate", R"("\ud83d")", "surrogate"},
      {"lone low surrogate", R"("\ude00")", "surrogate"},
      {"swapped surrogates", R"("\ude00\ud83d")", "surrogate"},
      {"high surrogate twice", R"("\ud83d\ud83d")", "surrogate"},
      {"bad escape", R"("\x41")", "forbidden character after backslash"},
      {"bad UTF-8", "\"\xFF\"", "ill-formed UTF-8"},
      {"cut UTF-8", "\"\xE2\x82\"", "ill-formed UTF-8"},
      {"overlong UTF-8", "\"\xC0\xAF\"", "ill-formed UTF-8"},
      {"surrogate in UTF-8", "\"\xED\xA0\x80\"", "ill-formed UTF-8"},
      {"past the last code point", "\"\xF4\x90\x80\x80\"", "ill-formed UTF-8"},
      {"bad UTF-8 outside strings", "{\xFF}", "not valid JSON"},
      {"UTF-16", "\xFF\xFE{\0"s, "NUL byte"},
      {"key without value", R"({"a"})", "expected ':'"},
      {"number as key", "{1:2}", "expected string literal"},
      {"lone bracket", "]", "unexpected ']'"},
  }));
  CAPTURE(bad.name);
  const std::string message = refusal(bad.text);
  CHECK_THAT(message, Contains(bad.expected));
  CHECK_THAT(message, !Contains("secret"));
  CHECK(message.find('\n') == std::string::npos);
}

TEST_CASE("parse_json limits the depth", "[policy]") {
  const auto nested = [](int levels) { return std::string(levels, '[') + std::string(levels, ']'); };
  CHECK(refusal(nested(64)) == "accepted");
  CHECK_THAT(refusal(nested(65)), Contains("byte 65: nested deeper than 64 levels"));
  CHECK(refusal(nested(32), {.depth = 32}) == "accepted");
  CHECK_THAT(refusal("{\"a\":" + nested(32) + "}", {.depth = 32}), Contains("nested deeper than 32 levels"));
  CHECK_THAT(refusal(std::string(10'000'000, '[')), Contains("nested deeper than 64 levels"));
  std::string objects;
  for (int i = 0; i < 100'000; ++i) objects += "{\"a\":";
  CHECK_THAT(refusal(objects), Contains("nested deeper than 64 levels"));
}

TEST_CASE("parse_json takes one byte order mark where that is allowed", "[policy]") {
  const JsonLimits limits{.byte_order_mark = true};
  CHECK(parse_json("\xEF\xBB\xBF[1]", "f", Blame::data, limits) == json({1}));
  CHECK(parse_json("[1]", "f", Blame::data, limits) == json({1}));
  CHECK_THAT(refusal("\xEF\xBB\xBF\xEF\xBB\xBF{}", limits), Contains("byte order mark"));
  CHECK_THAT(refusal("\xEF\xBB\xBF", limits), Contains("is empty"));
}

TEST_CASE("parse_json takes integers of any length where that is allowed", "[policy]") {
  const JsonLimits limits{.large_integers = true};
  const json read = parse_json("[1000000000000000019884624838656, -9223372036854775809, 7]", "f", Blame::data, limits);
  CHECK(read == json({1e30, -9223372036854775808.0, 7}));
  CHECK(read[2].is_number_integer());
  CHECK_THAT(refusal(std::string(400, '9'), limits), Contains("a number is too large"));
}

TEST_CASE("the blame decides the type of the error", "[policy]") {
  CHECK_THROWS_AS(parse_json("{", "f", Blame::data), DataError);
  CHECK_THROWS_AS(parse_json("{", "f", Blame::usage), UsageError);
}

TEST_CASE("a long or odd key is shown short and on one line", "[policy]") {
  const std::string key = "a\\n\\u0007" + std::string(1000, 'x');
  const std::string message = refusal("{\"" + key + "\":1,\"" + key + "\":1}");
  CHECK_THAT(message, Contains("the key 'a\\n\\u0007xxx"));
  CHECK(message.size() < 120);
}

TEST_CASE("writing never throws and keeps the order of keys", "[policy]") {
  nlohmann::ordered_json value;
  value["z"] = "cut \xE2\x82";
  value["a"] = {1, 2.5, nullptr};
  CHECK(to_line(value) == "{\"z\":\"cut \xEF\xBF\xBD\",\"a\":[1,2.5,null]}");
  CHECK(to_pretty(value) == "{\n  \"z\": \"cut \xEF\xBF\xBD\",\n  \"a\": [\n    1,\n    2.5,\n    null\n  ]\n}");
  CHECK(to_line(json{{"b", "line\nbreak"}, {"a", "\xFF"}}) == "{\"a\":\"\xEF\xBF\xBD\",\"b\":\"line\\nbreak\"}");
  CHECK(parse(to_line(json(0.1))) == json(0.1));
}

TEST_CASE("a line has no character that some readers take for its end", "[policy]") {
  const std::string text = "a\u2028\u2029\u0085\u00E2\u2027\v\f\x1C";
  const std::string line = to_line(json(text));
  CHECK(line == "\"a\\u2028\\u2029\\u0085\u00E2\u2027\\u000b\\f\\u001c\"");
  CHECK(parse(line) == json(text));
  CHECK(to_line(nlohmann::ordered_json{{"\u2028", 1}}) == "{\"\\u2028\":1}");
}

TEST_CASE("nearest finds slips of the keys and nothing far away", "[policy]") {
  const std::vector<std::string> known{"gpu_weights", "gpu_batch", "max_tokens", "seed", "top_p", "top_k"};
  CHECK(nearest("gpu_wieghts", known) == "gpu_weights");
  CHECK(nearest("max_token", known) == "max_tokens");
  CHECK(nearest("sede", known) == "seed");
  CHECK(nearest("topk", known) == "top_k");
  CHECK(nearest("GPU", known) == std::nullopt);
  CHECK(nearest("temperature", known) == std::nullopt);
  CHECK(nearest("", known) == std::nullopt);
  CHECK(nearest("x", {"y"}) == std::nullopt);
  CHECK(nearest(std::string(100'000, 'a'), {std::string(100'000, 'b')}) == std::nullopt);
}

TEST_CASE("Fields reads by name and type", "[policy]") {
  const json object = parse(R"({"text":"x","on":true,"n":7,"big":18446744073709551615,"f":0.5,"none":null})");
  Fields fields(object, "f", Blame::usage);
  CHECK(fields.text("text") == "x");
  CHECK(fields.text("absent", "y") == "y");
  CHECK(fields.boolean("on"));
  CHECK_FALSE(fields.boolean("absent", false));
  CHECK(fields.integer("n", 0, 7) == 7);
  CHECK(fields.integer("absent", 0, 7, 3) == 3);
  CHECK(fields.number("f", 0, 1) == 0.5);
  CHECK(fields.number("n", 0, 10) == 7.0);
  CHECK(fields.is_null("none"));
  CHECK_FALSE(fields.is_null("n"));
  CHECK_FALSE(fields.is_null("absent"));
  CHECK(fields.has("big"));
  CHECK_FALSE(fields.has("absent"));
  CHECK(fields.at("n") == 7);
  CHECK_NOTHROW(fields.refuse_unknown());
}

TEST_CASE("an integer is an integer token in range, nothing else", "[policy]") {
  const auto [text, got] = GENERATE(table<std::string, std::string>({
      {"1.0", "1.0"},
      {"1.9", "1.9"},
      {"1e3", "1000.0"},
      {"\"1\"", "the string \"1\""},
      {"true", "true"},
      {"null", "null"},
      {"[1]", "an array of 1"},
      {"{\"a\":1}", "an object of 1 key"},
      {"0", "0"},
      {"-1", "-1"},
      {"2049", "2049"},
      {"4294967297", "4294967297"},
      {"18446744073709551615", "18446744073709551615"},
  }));
  CAPTURE(text);
  const json object = parse("{\"n\":" + text + "}");
  Fields fields(object, "r.jsonl:8", Blame::usage);
  CHECK(usage_refusal([&] { fields.integer("n", 1, 2048); }) ==
        "r.jsonl:8: 'n' must be an integer from 1 to 2048, got " + got);
  CHECK(usage_refusal([&] { fields.integer("n", 1, 2048, 5); }) != "accepted");  // present is never replaced
}

TEST_CASE("the other getters refuse other types, naming what was wanted", "[policy]") {
  const json object = parse(R"({"n":1,"s":"x","f":1.5,"long":")" + std::string(100, 's') + R"("})");
  Fields fields(object, "f", Blame::usage);
  CHECK(usage_refusal([&] { fields.text("n"); }) == "f: 'n' must be a string, got 1");
  CHECK(usage_refusal([&] { fields.boolean("n"); }) == "f: 'n' must be true or false, got 1");
  CHECK(usage_refusal([&] { fields.number("s", 0, 1); }) ==
        "f: 's' must be a number from 0.0 to 1.0, got the string \"x\"");
  CHECK(usage_refusal([&] { fields.number("f", 0, 1); }) == "f: 'f' must be a number from 0.0 to 1.0, got 1.5");
  CHECK(usage_refusal([&] { fields.number("long", 0, 1); }) ==
        "f: 'long' must be a number from 0.0 to 1.0, got a string of 100 bytes");
  CHECK(usage_refusal([&] { fields.integer("absent", 0, 1); }) == "f: 'absent' is missing");
  CHECK(usage_refusal([&] { fields.at("absent"); }) == "f: 'absent' is missing");
  CHECK(usage_refusal([&] { fields.refuse_field("s", "a size"); }) == "f: 's' must be a size, got the string \"x\"");
  const json nan{{"x", std::nan("")}};
  CHECK(usage_refusal([&] { Fields(nan, "f", Blame::usage).number("x", 0, 1); }) != "accepted");
}

TEST_CASE("Fields refuses what is no object, and keys that nobody asked for", "[policy]") {
  const json list = parse("[1,2]");
  CHECK(usage_refusal([&] { Fields(list, "f", Blame::usage); }) == "f: must be an object, got an array of 2");

  const json object = parse(R"({"gpu_wieghts":1,"seed":2})");
  Fields fields(object, "f", Blame::usage);
  fields.integer("seed", 0, 9);
  fields.integer("gpu_weights", 0, 9, 0);
  CHECK(usage_refusal([&] { fields.refuse_unknown(); }) == "f: unknown key 'gpu_wieghts'; did you mean 'gpu_weights'?");

  const json other = parse(R"({"colour":1})");
  Fields far(other, "f", Blame::usage);
  far.has("seed");
  CHECK(usage_refusal([&] { far.refuse_unknown(); }) == "f: unknown key 'colour'; known are 'seed'");
}

TEST_CASE("a table has a line for each row", "[policy]") {
  const nlohmann::ordered_json value{{"name", "x"},
                                     {"none", nlohmann::ordered_json::array()},
                                     {"in", {{"y", 2.5}}},
                                     {"rows", {{{"b", 1}, {"a", 2}}, {{"b", 3}, {"a", nullptr}}}}};
  CHECK(to_rows(value) == R"({
  "name": "x",
  "none": [],
  "in": {
    "y": 2.5
  },
  "rows": [
    {"b":1,"a":2},
    {"b":3,"a":null}
  ]
})");
}

TEST_CASE("random damage to a document is read or refused, never anything else", "[policy]") {
  const std::string good = R"({"a":[1,-2.5e3,"x\u00e9",null,true],"b":{"c":"\ud83d\ude00","d":[[],{}]}})";
  std::uint64_t state = GENERATE(1, 2, 3);
  const auto next = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  for (int round = 0; round < 3000; ++round) {
    std::string text = good;
    for (std::uint64_t edits = next() % 4 + 1; edits > 0; --edits) {
      const std::size_t at = next() % text.size();
      if (next() % 2 == 0) text[at] = static_cast<char>(next());
      else text.erase(at, next() % 3 + 1);
      if (text.empty()) text = "x";
    }
    try {
      const json value = parse(text);
      CHECK(parse(to_line(value)) == value);
    } catch (const DataError&) {}
  }
}

namespace {

/// `text` cut into pieces of `bytes`.
TextPieces in_pieces(std::string_view text, std::size_t bytes) {
  return [text, bytes]() mutable {
    const std::string_view piece = text.substr(0, bytes);
    text.remove_prefix(piece.size());
    return piece;
  };
}

/// What is wrong, without where: a place next to the end of a piece may be off by a byte.
std::string reason_of(const std::string& message) {
  const auto byte = message.find("byte ");
  return byte == std::string::npos ? message : message.substr(std::min(message.find(':', byte), message.size()));
}

std::string skim_refusal(std::string_view text, std::size_t bytes) {
  try {
    skim_json(in_pieces(text, bytes), "f.json", Blame::data);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("skim_json leaves out the elements of arrays", "[policy]") {
  const std::string text = R"({"id":"\ud83d\ude00","a":[1,[2,{"b":3}],"x"],"c":{"d":[{}],"e":-1.5},"f":[]} )";
  const json wanted = {{"id", "\xF0\x9F\x98\x80"},
                       {"a", json::array()},
                       {"c", {{"d", json::array()}, {"e", -1.5}}},
                       {"f", json::array()}};
  for (std::size_t bytes = 1; bytes <= text.size(); ++bytes) {
    CAPTURE(bytes);
    CHECK(skim_json(in_pieces(text, bytes), "f.json", Blame::data) == wanted);
  }
}

TEST_CASE("skim_json refuses what parse_json refuses, for the same reason, wherever the pieces end", "[policy]") {
  const std::string good = R"({"a":[1,-2.5e3,"x\u00e9",null,true],"b":{"c":"\ud83d\ude00","d":[[],{"e":1}]}})";
  std::uint64_t state = GENERATE(4, 5, 6);
  const auto next = [&state] { return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33; };
  std::vector<std::string> texts{"",
                                 " \n",
                                 "[1,2",
                                 "[1,1e999]",
                                 "{\"a\":[{\"b\":1,\"b\":2}]}",
                                 "[\"\xff\"]",
                                 "[1]\n2",
                                 "\0"s,
                                 "[1,\0]"s,
                                 "\xEF\xBB\xBF[]",
                                 std::string(65, '[') + std::string(65, ']')};
  for (int round = 0; round < 1000; ++round) {
    std::string text = good;
    for (std::uint64_t edits = next() % 4 + 1; edits > 0; --edits)
      text.insert(text.begin() + static_cast<std::ptrdiff_t>(next() % text.size()), static_cast<char>(next()));
    texts.push_back(text);
  }
  for (const std::string& text : texts) {
    CAPTURE(text);
    const std::string wanted = refusal(text);
    const bool has_nul = text.find('\0') != std::string::npos;  // seen as soon as its piece is there
    for (const std::size_t bytes : {std::size_t{3}, std::size_t{4}, next() % 40 + 4, text.size() + 1})
      if (has_nul) CHECK((skim_refusal(text, bytes) == "accepted") == (wanted == "accepted"));
      else CHECK(reason_of(skim_refusal(text, bytes)) == reason_of(wanted));
  }
}
