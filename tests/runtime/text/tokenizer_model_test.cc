// tests/runtime/text/tokenizer_model_test.cc: SentencePiece's tokenizer.model, id for id against what transformers made
// of the fixtures, Unigram in tokenizer.json, and files that are broken, each with the fault it must be refused for.
#include <algorithm>
#include <bit>
#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "runtime/pieces/charsmap.h"
#include "runtime/pieces/merges.h"
#include "runtime/pieces/model_file.h"
#include "runtime/pieces/unigram.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>((value & 0x7F) | 0x80);
  return bytes + static_cast<char>(value);
}
std::string number(int field, std::uint64_t value) {
  return varint(static_cast<std::uint64_t>(field) << 3) + varint(value);
}
std::string bytes(int field, const std::string& content) {
  return varint(static_cast<std::uint64_t>(field) << 3 | 2) + varint(content.size()) + content;
}
std::string score(float value) {
  std::string out = varint(2 << 3 | 5);
  const auto word = std::bit_cast<std::uint32_t>(value);
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(word >> shift);
  return out;
}
std::string piece(const std::string& text, float value = 0, int type = 1) {
  return bytes(1, bytes(1, text) + score(value) + number(3, static_cast<std::uint64_t>(type)));
}
const std::string kSmall = piece("<unk>", 0, 2) + piece("a", -1) + piece("b", -2) + piece("ab", -1.5F);

/// A unit of a double array: the label, where its children lie, and whether a value does too.
std::string unit(unsigned value) {
  std::string out;
  for (int shift = 0; shift < 32; shift += 8) out += static_cast<char>(value >> shift);
  return out;
}

}  // namespace

TEST_CASE("a tokenizer.model gives the ids and the text of transformers", "[runtime]") {
  const std::string kind =
      GENERATE("bpe", "bpe-legacy", "bpe-any", "bpe-no-bytes", "bpe-no-prefix", "bpe-user", "llama-user", "gemma",
               "unigram", "unigram-bytes", "unigram-user", "added", "added-any", "added-file");
  CAPTURE(kind);
  const std::string folder = "sentencepiece/" + kind;
  REQUIRE(Tokenizer::present(data_path("tokenizer/" + folder)));
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/" + folder));
  const auto cases = lines_of(data_path("tokenizer/" + folder + "/cases.jsonl"));
  CHECK(cases.size() >= 100);
  for (const json& line : cases) {
    CAPTURE(line[0].dump());
    const Ids ids = tokenizer.encode(line[0].get<std::string>(), true);
    if (ids != line[1].get<Ids>()) CHECK(ids == line[1].get<Ids>());
    if (tokenizer.decode(ids) != line[2].get<std::string>()) CHECK(tokenizer.decode(ids) == line[2].get<std::string>());
  }
  check_decoded(tokenizer, folder);
}

TEST_CASE("tokenizer.json and vocab.json win over tokenizer.model in the same folder", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "tokenizer.model", "no model");
  CHECK_THAT(refusal(folder.path()), Contains("tokenizer.model: byte 0: "));
  fs::copy_file(data_path("tokenizer/neox/tokenizer.json"), folder / "tokenizer.json");
  CHECK(refusal(folder.path()) == "accepted");
}

TEST_CASE("a broken tokenizer.model is refused by the byte at which it is wrong", "[runtime]") {
  const std::string at_end = std::to_string(kSmall.size());
  const auto trainer = [](const std::string& fields) { return kSmall + bytes(2, fields); };
  const auto normalizer = [](const std::string& fields) { return kSmall + bytes(3, fields); };
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "byte 0: no pieces, so this is no model of SentencePiece"},
      {"IQ== 0\nIg== 1\n", "byte 14: no pieces"},  // as tiktoken writes it
      {std::string(20, '\xFF'), "byte 0: a field's tag has more than 64 bits"},
      {std::string(1, '\x80'), "byte 0: a field's tag is cut off"},
      {std::string(1, '\x00'), "byte 0: field 0 cannot be"},
      {std::string("\x0B"), "byte 0: wire type 3 of field 1 is not one of 0, 1, 2 and 5"},
      {std::string("\x0A\x05"
                   "ab"),
       "byte 0: field 1 has 5 bytes, but 2 are left"},
      {varint(1 << 3 | 2) + varint(std::uint64_t{1} << 62), "field 1 has 4611686018427387904 bytes, but 0 are left"},
      {kSmall + number(1, 5), "byte " + at_end + ": a piece is varint, wanted bytes"},
      {kSmall + bytes(1, ""), "byte " + at_end + ": a piece has no text"},
      {kSmall + bytes(1, bytes(1, "\xFF")), ": a piece is not UTF-8"},
      {kSmall + piece(std::string(1025, 'x')), ": a piece has 1025 bytes, at most 1024"},
      {kSmall + piece("a"), "byte " + at_end + ": the text of piece 4 is that of another one"},
      {kSmall + piece("c", std::numeric_limits<float>::infinity()), ": a score is not finite"},
      {kSmall + piece("c", std::numeric_limits<float>::quiet_NaN()), ": a score is not finite"},
      {kSmall + piece("c", 0, 7), ": type 7 of a piece is not 1 to 6"},
      {kSmall + bytes(1, bytes(1, "c") + number(2, 1)), ": a score is varint, wanted fixed32"},
      {kSmall + bytes(1, bytes(1, "c") + "\x15\x01"), ": a number of 4 bytes is cut off"},
      {trainer(number(3, 9)), ": model_type 9 is not 1 to 4"},
      {trainer(number(3, 3)), "is a model of words, which is not supported"},
      {trainer(number(3, 4)), "is a model of characters, which is not supported"},
      {trainer(number(24, 1)), "has treat_whitespace_as_suffix, which is not supported"},
      {trainer(number(40, 99)), "'unk_id' is 99, wanted the id of one of its 4 pieces"},
      {trainer(number(40, ~std::uint64_t{0})), "'unk_id' is -1, wanted"},
      {trainer(bytes(45, "\xC3")), ": unk_piece is not UTF-8"},
      {normalizer(number(2, 1)), ": precompiled_charsmap is varint, wanted bytes"},
      {normalizer(bytes(2, "abc")), "its precompiled_charsmap ends at byte 3, before its size"},
      {normalizer(bytes(2, unit(4000) + unit(0))),
       "has at byte 0 an array of 4000 bytes, wanted a multiple of 4 up to 4"},
      {normalizer(bytes(2, unit(4) + unit(0) + "\xFF")), "has texts from byte 8 that are not UTF-8"},
  };
  for (const auto& [content, expected] : cases) {
    CAPTURE(expected);
    const TemporaryFolder folder;
    write_text(folder / "tokenizer.model", content);
    const std::string message = refusal(folder.path());
    CHECK_THAT(message, Contains(expected) && Contains((folder / "tokenizer.model").string()));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("a tokenizer.model cut short at any byte is refused, or has fewer pieces", "[runtime]") {
  const std::string whole = read_text(data_path("tokenizer/sentencepiece/unigram/tokenizer.model"));
  const std::size_t pieces = read_piece_model(whole, "whole").pieces.size();
  std::size_t refused = 0;
  for (std::size_t size = 0; size < whole.size(); size += size < 600 || size + 600 > whole.size() ? 1 : 37) {
    std::size_t found = 0;
    std::string message;
    try {
      found = read_piece_model(std::string_view(whole).substr(0, size), "cut").pieces.size();
    } catch (const DataError& error) {
      message = error.what();
      ++refused;
    }
    CHECK(found <= pieces);
    CHECK((found > 0 || message.starts_with("cut: byte ")));
  }
  CHECK(refused > 600);
}

TEST_CASE("the files next to a tokenizer.model are refused by name", "[runtime]") {
  struct Case {
    std::string file, text, expected;
  };
  const std::vector<Case> cases = {
      {"tokenizer_config.json", R"({"tokenizer_class":"T5Tokenizer"})",
       "'tokenizer_class': the tokenizer T5Tokenizer is"},
      {"config.json", R"({"tokenizer_class":"XLNetTokenizer"})", "the tokenizer XLNetTokenizer is not read"},
      {"tokenizer_config.json", R"({"add_eos_token":true})", "'add_eos_token' is true, which is not supported"},
      {"tokenizer_config.json", R"({"added_tokens_decoder":{"9":{"content":"x"}}})",
       "has id 9, but with tokenizer.model it gets 4"},
      {"tokenizer_config.json", R"({"added_tokens_decoder":{"x":{"content":"x"}}})", "the key must be a token id"},
      {"tokenizer_config.json", R"({"added_tokens_decoder":[]})", "must be an object"},
      {"tokenizer_config.json",
       R"({"added_tokens_decoder":{"1":{"content":"<unk>"},"0":{"content":"a"},"2":{"content":"a"}}})",
       "'added_tokens_decoder' gives piece 2 the text of another one"},
      {"tokenizer_config.json", R"({"extra_special_tokens":5})", "must be a list of tokens"},
      {"tokenizer_config.json", R"({"eos_token":5})", "'eos_token': must be an object"},
      {"added_tokens.json", R"({"x":"y"})", "'x' must be a token id"},
      {"added_tokens.json", R"({"x":7})", "the token has id 7, but with tokenizer.model it gets 4"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.text);
    const TemporaryFolder folder;
    write_text(folder / "tokenizer.model", kSmall + bytes(2, number(3, 2)));
    CHECK(refusal(folder.path()) == "accepted");
    write_text(folder / bad.file, bad.text);
    const std::string message = refusal(folder.path());
    CHECK_THAT(message, Contains(bad.expected) && Contains((folder / bad.file).string()));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("Unigram takes the best sum, and the longest last piece of equal ones", "[runtime]") {
  const Unigram model({"<unk>", "a", "b", "ab", "abc", "c"}, {0, -1, -1, -2, -9, -1}, 0);
  std::vector<Unigram::Part> parts;
  Unigram::Scratch scratch;
  const auto ids = [&](std::string_view text) {
    parts.clear();
    model.cut(text, parts, scratch);
    Ids all;
    for (const Unigram::Part& part : parts) all.push_back(part.id);
    return all;
  };
  CHECK(ids("abc") == Ids{3, 5});
  CHECK(ids("").empty());
  CHECK(ids("axyb") == Ids{1, -1, 2});
  CHECK(parts[1].text == "xy");
  CHECK(ids("<unk>") == Ids{0});
}

TEST_CASE("merges of pieces are all pairs that make a piece", "[runtime]") {
  const auto merges = piece_merges({"ab", "a", "b", "", "aab", "aa"});
  REQUIRE(merges.size() == 4);
  CHECK((merges[0].whole == 0 && merges[0].left == 1 && merges[0].right == 2));
  CHECK((merges[1].whole == 4 && merges[1].left == 1 && merges[1].right == 0));
  CHECK((merges[2].whole == 4 && merges[2].left == 5 && merges[2].right == 2));
  CHECK((merges[3].whole == 5 && merges[3].left == 1 && merges[3].right == 1));
}

TEST_CASE("a charsmap that points outside itself changes nothing", "[runtime]") {
  for (const unsigned root : {0u, 0x400u, 0xFFFFFFFFu, 0x7FFFFC00u}) {
    const Charsmap map(unit(8) + unit(root) + unit(0x80000161u) + "x");
    CHECK(map.apply("abc \u00e9\u0301 \r\n").size() >= 9);
  }
}
