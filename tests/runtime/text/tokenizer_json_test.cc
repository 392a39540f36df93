// tests/runtime/text/tokenizer_json_test.cc: tokenizer.json of every kind, id for id against what Hugging Face's
// library made of the fixtures' strings, and files that are broken or of another kind, each with the fault it must be
// refused for.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/checkpoint/model_files.h"
#include "runtime/text/tokenizer.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

/// FNV-1a of the ids, in 8 bytes.
std::string hash_of(const Ids& ids) {
  std::uint64_t value = 0xCBF29CE484222325u;
  for (const std::int32_t id : ids)
    for (int shift = 0; shift < 32; shift += 8)
      value = (value ^ (static_cast<std::uint32_t>(id) >> shift & 0xFF)) * 0x100000001B3u;
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(value >> shift);
  return bytes;
}

/// Against hashes of the ids that Hugging Face gives each string.
void check_hashes(const Tokenizer& tokenizer, const fs::path& file) {
  const std::string hashes = read_text(file);
  const std::vector<std::string> strings = fixture_strings();
  REQUIRE(hashes.size() == 8 * strings.size());
  std::size_t equal = 0;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const Ids ids = tokenizer.encode(strings[i], true);
    if (hash_of(ids) == hashes.substr(8 * i, 8)) {
      ++equal;
    } else {
      UNSCOPED_INFO("string " << i << ": "
                              << json(strings[i].substr(0, 100)).dump(-1, ' ', true, json::error_handler_t::replace)
                              << " has ids " << json(ids).dump().substr(0, 400));
    }
    if (tokenizer.decode(ids) != incrementally(tokenizer, ids))
      CHECK(tokenizer.decode(ids) == incrementally(tokenizer, ids));
  }
  CHECK(equal == strings.size());
}

}  // namespace

TEST_CASE("every kind of tokenizer.json gives Hugging Face's ids and text for every string", "[runtime]") {
  const auto [kind, first] = GENERATE(table<std::string, bool>({{"neox", false},
                                                                {"pythia", false},
                                                                {"llama3", true},
                                                                {"qwen2", false},
                                                                {"smollm2", false},
                                                                {"galactica", false},
                                                                {"llama2", true},
                                                                {"mistral", true}}));
  CAPTURE(kind);
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/" + kind));
  CHECK(tokenizer.first_token().has_value() == first);
  check_hashes(tokenizer, data_path("tokenizer/" + kind + "/hashes.bin"));
  check_decoded(tokenizer, kind);
}

TEST_CASE("a GGUF file's vocabulary gives the ids of the tokenizer that it was made of", "[runtime][gguf]") {
  const auto [file, kind] = GENERATE(table<std::string, std::string>(
      {{"llama2", "llama2"}, {"llama3", "llama3"}, {"qwen2", "qwen2"}, {"smollm2", "smollm2"}, {"gemma4", "llama2"}}));
  CAPTURE(file);
  const ModelFiles files = ModelFiles::open(data_path("gguf/vocab-" + file + ".gguf"));
  const Tokenizer tokenizer = Tokenizer::load(files.texts());
  check_hashes(tokenizer, data_path("tokenizer/" + kind + "/hashes.bin"));
  check_decoded(tokenizer, kind);
}

TEST_CASE("a prefix space is put where Hugging Face puts it", "[runtime]") {
  const TemporaryFolder folder;
  json file = json::parse(read_text(data_path("tokenizer/neox/tokenizer.json")));
  file["pre_tokenizer"]["add_prefix_space"] = true;
  write_text(folder / "tokenizer.json", file.dump());
  check_hashes(Tokenizer::load(folder.path()), data_path("tokenizer/neox/prefix_space.bin"));
}

TEST_CASE("sentence pieces decode what they encode", "[runtime]") {
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/llama2"));
  for (const char* text : {"Hello world", " two  spaces ", "caf\u00e9 \U0001F600", "a\nb\tc", ""})
    CHECK(tokenizer.decode(tokenizer.encode(text, true)) == text);
  const Ids smile = tokenizer.encode("\U00013007", false);
  IncrementalDecoder decoder(tokenizer);  // its four bytes are four tokens
  for (const std::int32_t id : smile) CHECK(with_replacements(decoder.push(id)).find("\uFFFD") == std::string::npos);
  CHECK(decoder.finish() == "\U00013007");
}

TEST_CASE("a tokenizer.json of another kind is refused by the name of what is not known", "[runtime]") {
  struct Case {
    const char* kind;
    std::function<void(json&)> change;
    std::string expected;
  };
  const auto set = [](const char* pointer, json value) {
    return [=](json& file) { file[json::json_pointer(pointer)] = value; };
  };
  const std::vector<Case> cases = {
      {"neox", set("/version", 1.0), "'version' must be a string"},
      {"neox", set("/version", "2.0"), "'version' must be \"1.0\""},
      {"neox", set("/model/type", "Unigram"), "'model' is Unigram, which is not supported; only BPE and"},
      {"neox", set("/model/type", "WordPiece"), "'model' is WordPiece, which is not supported"},
      {"neox", set("/model", nullptr), "'model': must be an object, got null"},
      {"neox", set("/model/dropout", 0.1), "'dropout' must be null"},
      {"neox", set("/model/continuing_subword_prefix", "##"), "'continuing_subword_prefix' must be null"},
      {"neox", set("/model/byte_fallback", true), "byte_fallback true, which does not go with its decoder"},
      {"llama2", set("/model/type", "Unigram"), "'vocab' must be a list of pieces and scores"},
      {"llama2", set("/model", json::parse(R"({"type":"Unigram","vocab":[["a","b"]]})")),
       "piece 0 must be a text and a"},
      {"llama2", set("/model", json::parse(R"({"type":"Unigram","vocab":[["a",1],["a",2]]})")),
       "piece 1 has the text of"},
      {"llama2", set("/model", json::parse(R"({"type":"Unigram","vocab":[["a",1]],"unk_id":1})")), "'unk_id' must be"},
      {"neox", set("/model/vocab", json::array()), "'vocab': must be an object"},
      {"neox", set("/model/vocab", json::object()), "the first token is not in the vocabulary"},
      {"neox", set("/model/vocab/x1", -1), "the id of token 'x1' must be an integer from 0 to 4194303, got -1"},
      {"neox", set("/model/vocab/x1", 1.5), "must be an integer from 0 to 4194303, got 1.5"},
      {"neox", set("/model/vocab/x1", "3"), "must be an integer from 0 to 4194303, got the string \"3\""},
      {"neox", set("/model/vocab/x1", 4294967296), "must be an integer from 0 to 4194303, got 4294967296"},
      {"neox", set("/model/vocab/x1", 18446744073709551615u), "must be an integer from 0 to 4194303"},
      {"neox", set("/model/vocab/x1", nullptr), "must be an integer from 0 to 4194303, got null"},
      {"neox", set("/model/vocab/x1", 7), "token id 7 is used by '"},
      {"neox", set("/model/vocab/", 4000000), "token '' has 0 bytes, wanted 1 to 65536"},
      {"neox", [](json& file) { file["model"]["vocab"][std::string(65537, 'x')] = 4000000; }, "has 65537 bytes"},
      {"neox", [](json& file) { file["model"].erase("merges"); }, "'merges' is missing"},
      {"neox", set("/model/merges/0", "ab"), "merge 0: is not two tokens"},
      {"neox", set("/model/merges/0", "a  b"), "merge 0: is not two tokens"},
      {"neox", set("/model/merges/0", 5), "merge 0: must be two tokens, got 5"},
      {"neox", set("/model/merges/3", json{"a"}), "merge 3: must be two tokens"},
      {"neox", set("/model/merges/3", json{1, 2}), "merge 3: must be two tokens"},
      {"neox", set("/model/merges", 5), "'merges' must be a list"},
      {"neox", set("/model/merges/0", "a b c"), "merge 0: is not two tokens"},
      {"neox", set("/model/merges/3", json{"a", "b", "c"}), "merge 3: must be two tokens"},
      {"neox", set("/model/merges/3", json{"a", "\u4e00\u4e00"}), "the second token is not in the vocabulary"},
      {"neox", [](json& file) { file["model"]["merges"][1] = file["model"]["merges"][0]; }, "appears twice"},
      {"neox", [](json& file) { file["model"]["vocab"].erase("\u0120"); }, "is not in the vocabulary"},
      {"neox", set("/normalizer", "NFC"), "'normalizer': must be an object"},
      {"neox", set("/normalizer", json{{"type", "Sequence"}, {"normalizers", 1}}), "'normalizers' must be a list"},
      {"neox", set("/normalizer", json{{"type", "NFKC"}}), "'normalizer' is NFKC, which is not supported"},
      {"llama2", set("/normalizer/normalizers/1/pattern", json{{"String", ""}}), "replaces an empty text"},
      {"llama2", set("/normalizer/normalizers/1/pattern", json{{"Regex", "a+"}}),
       "replaces the regular expression a+, which"},
      {"llama2", set("/normalizer/normalizers/1", json{{"type", "Precompiled"}, {"precompiled_charsmap", "!"}}),
       "not Base64"},
      {"llama2", set("/normalizer/normalizers/1", json{{"type", "Precompiled"}, {"precompiled_charsmap", "AAAA"}}),
       "has a precompiled_charsmap that ends at byte 3"},
      {"smollm2", set("/pre_tokenizer/pretokenizers/1/add_prefix_space", true), "add_prefix_space true in a sequence"},
      {"smollm2", set("/pre_tokenizer/pretokenizers/1/type", "Digits"), "has no ByteLevel in its sequence"},
      {"smollm2", set("/pre_tokenizer/pretokenizers/0/type", "Metaspace"), "has Metaspace in a sequence"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/1/add_prefix_space", true), "add_prefix_space true in a sequence"},
      {"neox", set("/pre_tokenizer", nullptr), "'pre_tokenizer' is null, which is not supported"},
      {"neox", set("/pre_tokenizer", json{{"type", "Whitespace"}}), "'pre_tokenizer' is Whitespace"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\A"), "an escape that is not supported"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"), "lacks a )"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/0/pattern/Regex", "\\p{Greek}"),
       "\\p{Greek}, which is not supported"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/0/pattern", json{{"String", ""}}), "splits at an empty text"},
      {"qwen2", set("/pre_tokenizer/pretokenizers/0/behavior", "Kept"), "'behavior' must be Isolated"},
      {"mistral", set("/pre_tokenizer/replacement", "ab"), "has a Metaspace whose replacement is not one character"},
      {"mistral", set("/pre_tokenizer", json{{"type", "ByteLevel"}}), "has ByteLevel, which is not supported"},
      {"mistral", set("/pre_tokenizer/prepend_scheme", "last"), "'prepend_scheme' must be always, first or never"},
      {"neox", set("/decoder", json{{"type", "WordPiece"}}), "'decoder' is WordPiece"},
      {"neox", set("/decoder", nullptr), "'decoder' is null"},
      {"llama2", set("/decoder/decoders/3/start", 2), "strips something else"},
      {"llama2", set("/decoder/decoders/0/content", "_"), "by something else than a space"},
      {"llama2", set("/decoder/decoders/2", json{{"type", "ByteFallback"}}),
       "'decoder' is Replace, ByteFallback, ByteFallback"},
      {"neox", set("/added_tokens", json::object()), "'added_tokens' must be a list"},
      {"neox", set("/added_tokens/0", "</s>"), "'added_tokens': must be an object"},
      {"neox", set("/added_tokens/0/content", 5), "'content' must be a string"},
      {"neox", [](json& file) { file["added_tokens"][0].erase("id"); }, "'id' is missing"},
      {"neox", set("/added_tokens/0/id", 4294967296), "'id' must be an integer"},
      {"neox", set("/added_tokens/0/content", ""), "has a token of 0 bytes, wanted 1 to 1024"},
      {"neox", set("/added_tokens/0/id", 3), "gives id 3 to a token"},
      {"neox", set("/added_tokens/0/id", -3), "'id' must be an integer"},
      {"neox", [](json& file) { file["added_tokens"][1] = file["added_tokens"][0]; }, "has a token twice"},
      {"llama2", set("/post_processor/special_tokens/<s>/ids", json{2}), "not the added token of its name"},
      {"llama2", [](json& file) { file["post_processor"]["single"].push_back(file["post_processor"]["single"][0]); },
       "more around a text than one token in front"},
      {"llama2", set("/post_processor", json{{"type", "BertProcessing"}}), "'post_processor' is BertProcessing"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.kind, bad.expected);
    json file = json::parse(read_text(data_path(std::string("tokenizer/") + bad.kind + "/tokenizer.json")));
    bad.change(file);
    TemporaryFolder folder;
    write_text(folder / "tokenizer.json", file.dump());
    const std::string message = refusal(folder.path());
    CHECK_THAT(message, Contains(bad.expected));
    CHECK_THAT(message, Contains((folder / "tokenizer.json").string()));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("a tokenizer.json that is no JSON, or another one, is refused by name", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path file = folder / "tokenizer.json";
  const std::string start = R"({"version":"1.0","model":{"type":"BPE","vocab":{)";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "empty"},
      {"[]", "must be an object"},
      {"null", "must be an object"},
      {start, "not valid JSON"},
      {start + R"("\ud83d":1}}})", "not valid JSON"},
      {start + "\"\xff\":1}}}", "UTF-8"},
      {start + R"("a":1,"\u0061":2}}})", "the key 'a' appears twice"},
      {start + R"("a":1e999}}})", "too large"},
      {std::string(100000, '['), "nested deeper than 32 levels"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text.substr(0, 100));
    write_text(file, text);
    const std::string message = refusal(folder.path());
    CHECK_THAT(message, Contains(file.string()) && Contains(expected));
    CHECK(message.find('\n') == std::string::npos);
  }
  fs::resize_file(file, 200'000'000);
  CHECK_THAT(refusal(folder.path()), Contains("tokenizer.json: is larger than 134217728 bytes"));
  fs::remove(file);
  fs::create_directory(file);
  CHECK_THAT(refusal(folder.path()), Contains("tokenizer.json: is a directory, wanted a regular file"));
}

TEST_CASE("tokenizer.json wins over vocab.json in the same folder", "[runtime]") {
  const TemporaryFolder folder;
  fs::copy_file(data_path("tokenizer/neox/tokenizer.json"), folder / "tokenizer.json");
  write_text(folder / "vocab.json", "[]");
  write_text(folder / "merges.txt", "x");
  const Tokenizer alone = Tokenizer::load(data_path("tokenizer/neox"));
  CHECK(Tokenizer::load(folder.path()).encode("Hello world", true) == alone.encode("Hello world", true));
}

namespace {

/// Seconds of the fastest of five calls.
template <class Call> double seconds(const Call& call) {
  double least = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    least = std::min(least, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  return least;
}

std::string repeated(const std::string& text, std::size_t times) {
  std::string all;
  for (std::size_t i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("marks without end are composed in time that grows with their number", "[runtime]") {
  const Tokenizer tokenizer = Tokenizer::load(data_path("tokenizer/qwen2"));
  const auto text = [](std::size_t marks) { return "e" + repeated("\u0316\u0301", marks / 2) + " end"; };
  CHECK(tokenizer.encode(text(60), true) != tokenizer.encode(text(62), true));
  const double small = seconds([&] { tokenizer.encode(text(10'000), true); });
  const double large = seconds([&] { tokenizer.encode(text(80'000), true); });
  CHECK(large < 8 * 3 * small);  // by squares it would be 64 times
}

TEST_CASE("many added tokens with a common beginning are found in time that grows with the text", "[runtime]") {
  TemporaryFolder folder;
  const auto folder_with = [&](int tokens) {
    json file = json::parse(read_text(data_path("tokenizer/neox/tokenizer.json")));
    for (int i = 0; i < tokens; ++i)
      file["added_tokens"].push_back({{"id", 100'000 + i}, {"content", "common beginning " + std::to_string(i) + "!"}});
    const fs::path place = folder / std::to_string(tokens);
    fs::create_directory(place);
    write_text(place / "tokenizer.json", file.dump());
    return Tokenizer::load(place);
  };
  const Tokenizer few = folder_with(100), many = folder_with(60'000);
  const std::string text = repeated("common beginning of it all, ", 4000);
  CHECK(few.encode(text, true) == many.encode(text, true));
  CHECK(many.encode("a common beginning 59999! b", true) != few.encode("a common beginning 59999! b", true));
  CHECK(seconds([&] { many.encode(text, true); }) < 5 * seconds([&] { few.encode(text, true); }));
}

TEST_CASE("what follows a prompt keeps the space of its first word", "[runtime]") {
  for (const char* kind : {"llama2", "mistral"}) {
    CAPTURE(kind);
    const Tokenizer tokenizer = Tokenizer::load(data_path(std::string("tokenizer/") + kind));
    const Ids prompt = tokenizer.encode("the ball.", true), all = tokenizer.encode("the ball. of the", true);
    REQUIRE(all.size() > prompt.size());
    REQUIRE(std::equal(prompt.begin(), prompt.end(), all.begin()));
    const Ids rest(all.begin() + static_cast<std::ptrdiff_t>(prompt.size()), all.end());
    CHECK(tokenizer.decode_after(prompt, rest) == " of the");
    CHECK(tokenizer.decode(prompt) + tokenizer.decode_after(prompt, rest) == tokenizer.decode(all));
    CHECK(tokenizer.decode_after({prompt.data(), 1}, rest) == "of the");  // <s> is no text
  }
}
