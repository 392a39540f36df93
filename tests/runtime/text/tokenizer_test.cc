// tests/runtime/text/tokenizer_test.cc: vocab.json and merges.txt, id for id against what Hugging Face's library made
// of the fixtures' strings (scripts/fixtures/make_tokenizer_fixtures.py), and broken files, each with the fault it must
// be refused for.
#include "runtime/text/tokenizer.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

#include "runtime/text/tokenizer_pretokenize.h"
#include "tests/support/tokenizer.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using namespace std::string_literals;
using Catch::Matchers::Contains;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

const fs::path kOpt = data_path("tokenizer/opt");
const fs::path kDemo = source_path("models/demo");

/// Built once: a vocabulary takes a while to read under a sanitizer.
const Tokenizer& opt() {
  static const Tokenizer tokenizer = Tokenizer::load(kOpt);
  return tokenizer;
}

/// Reads ids.bin, whose form make_tokenizer_fixtures.py describes.
class PackedIds {
 public:
  explicit PackedIds(const fs::path& path) : bytes_(read_text(path)) {}
  Ids next() {
    Ids ids;
    for (const std::size_t count = number(); ids.size() < count;) {
      const std::size_t first = number();
      ids.insert(ids.end(), first % 2 == 1 ? number() : 1, static_cast<std::int32_t>(first / 2));
    }
    return ids;
  }
  bool done() const { return at_ == bytes_.size(); }

 private:
  std::size_t number() {
    std::size_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes_.at(at_++));
      value |= std::size_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

void check_strings(const Tokenizer& tokenizer, const std::string& name) {
  PackedIds expected(data_path("tokenizer/" + name + "/ids.bin"));
  for (const std::string& text : fixture_strings()) {
    const Ids ids = expected.next();
    if (tokenizer.encode(text, true) != ids) {
      CAPTURE(json(text.substr(0, 200)).dump(-1, ' ', true, json::error_handler_t::replace));
      CHECK(tokenizer.encode(text, true) == ids);
    }
    std::string bytes;
    for (const std::int32_t id : ids) bytes += tokenizer.piece(id);
    const bool may_hold_specials = text.find('<') != std::string::npos;
    if (!may_hold_specials && bytes != text) CHECK(bytes == text);
    if (tokenizer.decode(ids) != incrementally(tokenizer, ids))
      CHECK(tokenizer.decode(ids) == incrementally(tokenizer, ids));
  }
  CHECK(expected.done());
}

/// A folder with the least vocabulary: the four special tokens, 256 bytes, " t" and " te".
struct SmallFolder {
  TemporaryFolder folder;
  json vocabulary = {{"<s>", 0}, {"<pad>", 1}, {"</s>", 2}, {"<unk>", 3}, {"\u0120t", 260}, {"\u0120te", 261}};
  std::string merges = "#version: 0.2\n\u0120 t\n\u0120t e\n";
  json config = {{"add_bos_token", true},
                 {"bos_token", "</s>"},
                 {"eos_token", "</s>"},
                 {"unk_token", "</s>"},
                 {"pad_token", "<pad>"}};
  bool no_limit = false;  // an integer that is no json of nlohmann's

  SmallFolder() {
    for (int byte = 0; byte < 256; ++byte) vocabulary[alphabet_of_byte(static_cast<unsigned char>(byte))] = 4 + byte;
  }
  void write() const {
    write_text(folder / "vocab.json", vocabulary.dump());
    write_text(folder / "merges.txt", merges);
    std::string text = config.dump();
    if (no_limit) text.insert(1, R"("model_max_length":1000000000000000019884624838656,)");
    write_text(folder / "tokenizer_config.json", text);
  }
};

}  // namespace

TEST_CASE("the OPT tokenizer gives Hugging Face's ids for every string", "[runtime]") {
  CHECK(opt().size() == 50265);
  CHECK(opt().first_token() == 2);
  check_strings(opt(), "opt");
}

TEST_CASE("the demo model's tokenizer gives Hugging Face's ids for every string", "[runtime]") {
  const Tokenizer demo = Tokenizer::load(kDemo);
  CHECK(demo.first_token() == 2);
  check_strings(demo, "demo");
  check_decoded(demo, "demo");
}

TEST_CASE("decoding gives Hugging Face's text, in one go and piece by piece", "[runtime]") {
  check_decoded(opt(), "opt");
}

TEST_CASE("added tokens split the text as Hugging Face's do, with their flags", "[runtime]") {
  TemporaryFolder folder;
  for (const char* name : {"vocab.json", "merges.txt"}) fs::copy_file(kOpt / name, folder / name);
  fs::copy_file(data_path("tokenizer/added/tokenizer_config.json"), folder / "tokenizer_config.json");
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  CHECK(tokenizer.size() == 50270);
  CHECK(tokenizer.first_token() == std::nullopt);
  for (const json& line : lines_of(data_path("tokenizer/added/cases.jsonl"))) {
    CAPTURE(line[0]);
    CHECK(tokenizer.encode(line[0].get<std::string>(), true) == line[1].get<Ids>());
    CHECK(tokenizer.decode(line[1].get<Ids>()) == line[2].get<std::string>());
  }
}

TEST_CASE("every code point is in the class that Hugging Face's pattern gives it", "[runtime]") {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (char32_t code = 0; code < 0x110000; ++code)
    hash = (hash ^ static_cast<std::uint64_t>(char_class(code))) * 0x100000001B3u;
  std::ostringstream text;
  text << std::hex << hash << "\n";
  CHECK(text.str() == read_text(data_path("tokenizer/classes.txt")));
}

TEST_CASE("the first token is put in front only where it is asked for", "[runtime]") {
  CHECK(opt().encode("Hello world", true) == Ids{2, 31414, 232});
  CHECK(opt().encode("Hello world", false) == Ids{31414, 232});
  CHECK(opt().encode("", true) == Ids{2});
  CHECK(opt().encode("", false).empty());
}

TEST_CASE("a folder without tokenizer_config.json is read as the published OPT if config.json says so", "[runtime]") {
  SmallFolder small;
  small.write();
  fs::remove(small.folder / "tokenizer_config.json");
  CHECK(Tokenizer::load(small.folder.path()).first_token() == std::nullopt);
  write_text(small.folder / "config.json", R"({"model_type":"opt"})");
  const Tokenizer tokenizer = Tokenizer::load(small.folder.path());
  CHECK(tokenizer.first_token() == 2);
  CHECK(tokenizer.encode(" te</s><pad><s>", true).size() == 1 + 1 + 1 + 1 + 3);
  CHECK((tokenizer.piece(2).empty() && tokenizer.shown_piece(2) == "</s>"));
  CHECK((tokenizer.piece(1).empty() && !tokenizer.shown_piece(1).empty()));
  CHECK(tokenizer.shown_piece(0) == tokenizer.piece(0));
}

TEST_CASE("a mebibyte without a space takes n log n, not n squared", "[runtime]") {
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1 << 20, 'a');
  const Ids ids = opt().encode(text, false);
  CHECK(opt().decode(ids) == text);
  // Squared would be hours; the margin is for sanitizers on a busy machine.
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
}

TEST_CASE("encode is safe on any bytes and loses none", "[runtime]") {
  std::mt19937 random(GENERATE(1u, 2u, 3u));
  for (int round = 0; round < 300; ++round) {
    std::string bytes(random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    std::string back;
    for (const std::int32_t id : opt().encode(bytes, false)) back += opt().piece(id);
    CHECK(back == bytes);
    CHECK(opt().decode(opt().encode(bytes, false)) == with_replacements(bytes));
  }
}

TEST_CASE("ids that name nothing have no text", "[runtime]") {
  for (const std::int32_t id : {-1, 50265, 1 << 30}) {
    CHECK(opt().piece(id).empty());
    CHECK(opt().shown_piece(id).empty());
  }
  CHECK(opt().decode(Ids{2, 31414, -1, 50271, 232, 1}) == "Hello world");
}

TEST_CASE("broken tokenizer files are refused, each for its fault", "[runtime]") {
  struct Case {
    const char* name;
    std::function<void(SmallFolder&)> damage;
    std::string expected;
  };
  const auto config = [](const char* key, json value) { return [=](SmallFolder& s) { s.config[key] = value; }; };
  const auto vocabulary = [](const char* key, json value) {
    return [=](SmallFolder& s) { s.vocabulary[key] = value; };
  };
  const auto merges = [](const std::string& more) { return [=](SmallFolder& s) { s.merges += more; }; };
  const auto decoder = [](const char* id, json token) {
    return [=](SmallFolder& s) { s.config["added_tokens_decoder"][id] = token; };
  };
  const auto mask = [](const char* flag) { return json{{"content", "<pad>"}, {flag, true}}; };
  const std::vector<Case> cases = {
      {"vocabulary is a list",
       [](SmallFolder& s) {
         s.vocabulary = {1, 2};
       },
       "vocab.json: must be an object of token to id, got an array of 2"},
      {"vocabulary is empty", [](SmallFolder& s) { s.vocabulary = json::object(); },
       "merges.txt line 2: the first token is not in the vocabulary"},
      {"negative id", vocabulary("x1", -1),
       "vocab.json: the id of token 'x1' must be an integer from 0 to 4194303, got -1"},
      {"fraction", vocabulary("x1", 1.5), "token 'x1' must be an integer from 0 to 4194303, got 1.5"},
      {"whole fraction", vocabulary("x1", 7.0), "token 'x1' must be an integer from 0 to 4194303, got 7.0"},
      {"text id", vocabulary("x1", "3"), "got the string \"3\""},
      {"id of 2^32", vocabulary("x1", 4294967296), "got 4294967296"},
      {"id of 2^64 - 1", vocabulary("x1", 18446744073709551615u), "got 18446744073709551615"},
      {"null id", vocabulary("x1", nullptr), "got null"},
      {"id used twice", vocabulary("x1", 7), "vocab.json: token id 7 is used by '"},
      {"empty token", vocabulary("", 900), "token '' has 0 bytes, wanted 1 to 65536"},
      {"long token", [](SmallFolder& s) { s.vocabulary[std::string(65537, 'x')] = 900; },
       "has 65537 bytes, wanted 1 to 65536"},
      {"byte missing", [](SmallFolder& s) { s.vocabulary.erase("\u0120"); }, "is not in the vocabulary"},
      {"three parts", merges("a b c\n"), "merges.txt line 4: is not two tokens"},
      {"one part", merges("ab\n"), "merges.txt line 4: is not two tokens"},
      {"two spaces", merges("a  b\n"), "merges.txt line 4: is not two tokens"},
      {"space in front", merges(" a\n"), "merges.txt line 4: is not two tokens"},
      {"space at the end", merges("a \n"), "merges.txt line 4: is not two tokens"},
      {"blank line", merges("\n"), "merges.txt line 4: is not two tokens"},
      {"unknown part", merges("xx a\n"), "merges.txt line 4: the first token is not in the vocabulary"},
      {"unknown result", merges("a b\n"), "merges.txt line 4: what it makes is not in the vocabulary"},
      {"merge twice", merges("\u0120 t\n"), "merges.txt line 4: the same merge appears twice"},
      {"binary merges", merges("\0\xFF\x01\n"s), "merges.txt line 4: is not two tokens"},
      {"another class", config("tokenizer_class", "LlamaTokenizer"),
       "the tokenizer LlamaTokenizer is not read from vocab.json"},
      {"class is a number", config("tokenizer_class", 1), "'tokenizer_class' must be a string, got 1"},
      {"prefix space", config("add_prefix_space", true), "'add_prefix_space' is true, which is not supported"},
      {"end token", config("add_eos_token", true), "'add_eos_token' is true, which is not supported"},
      {"specials as text", config("split_special_tokens", true),
       "'split_special_tokens' is true, which is not supported"},
      {"flag as a number", config("add_bos_token", 1), "'add_bos_token' must be true or false, got 1"},
      {"special is a number", config("bos_token", 2), "'bos_token': must be an object, got 2"},
      {"special without content", config("bos_token", json{{"lstrip", true}}), "'content' is missing"},
      {"special unknown", config("bos_token", "[BOS]"), "'bos_token': the token is not in the vocabulary"},
      {"list of specials is a text", config("additional_special_tokens", "x"),
       "must be a list of tokens, got the string \"x\""},
      {"another id than the vocabulary's", decoder("5", mask("special")),
       "the token has id 5, but the vocabulary says 1"},
      {"gap before an added token", decoder("300", json{{"content", "new"}}),
       "the token has id 300, but the next free id is 262"},
      {"added twice",
       [&](SmallFolder& s) {
         decoder("1", mask("special"))(s);
         decoder("2", mask("special"))(s);
       },
       "the token appears twice"},
      {"id is no number", decoder("-1", mask("special")), "'-1': the key must be a token id"},
      {"decoder is a list", config("added_tokens_decoder", json::array()),
       "'added_tokens_decoder': must be an object, got an array of 0"},
      {"added token is a number", decoder("1", 5), "must be an object, got 5"},
      {"holes under an added token",
       [&](SmallFolder& s) {
         s.vocabulary.erase("<unk>");
         decoder("261", json{{"content", "new"}})(s);
       },
       "the vocabulary has holes"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.name);
    SmallFolder small;
    bad.damage(small);
    small.write();
    const std::string message = refusal(small.folder.path());
    CHECK_THAT(message, Contains(bad.expected));
    CHECK_THAT(message, Contains(small.folder.path().string()));
    CHECK(message.find('\n') == std::string::npos);
  }
}

TEST_CASE("files that are missing or no JSON are refused by name", "[runtime]") {
  struct Case {
    const char* name;
    std::function<void(const SmallFolder&)> damage;
    std::string expected;
  };
  const std::vector<Case> cases = {
      {"no merges", [](const auto& s) { fs::remove(s.folder / "merges.txt"); }, "has vocab.json but no merges.txt"},
      {"nothing", [](const auto& s) { fs::remove(s.folder / "vocab.json"); },
       "has no tokenizer.json, no tokenizer.model and no vocab.json with merges.txt"},
      {"SentencePiece's file only",
       [](const auto& s) {
         fs::remove(s.folder / "vocab.json");
         write_text(s.folder / "tokenizer.model", "");
       },
       "tokenizer.model: byte 0: no pieces, so this is no model of SentencePiece"},
      {"tokenizer.json only",
       [](const auto& s) {
         fs::remove(s.folder / "vocab.json");
         write_text(s.folder / "tokenizer.json", "{}");
       },
       "tokenizer.json: 'decoder' is null, which is not supported"},
      {"a token twice", [](const auto& s) { write_text(s.folder / "vocab.json", R"({"a":1,"\u0061":2})"); },
       "vocab.json: byte 15: the key 'a' appears twice"},
      {"lone surrogate", [](const auto& s) { write_text(s.folder / "vocab.json", R"({"\ud83d":1})"); },
       "vocab.json: byte 9: not valid JSON"},
      {"depth", [](const auto& s) { write_text(s.folder / "vocab.json", std::string(100000, '[')); },
       "nested deeper than 32 levels"},
      {"cut", [](const auto& s) { write_text(s.folder / "vocab.json", "{\"a\":1,"); }, "vocab.json: byte "},
      {"folder as merges",
       [](const auto& s) {
         fs::remove(s.folder / "merges.txt");
         fs::create_directory(s.folder / "merges.txt");
       },
       "merges.txt: is a directory, wanted a regular file"},
      {"config is a list", [](const auto& s) { write_text(s.folder / "tokenizer_config.json", "[]"); },
       "tokenizer_config.json: must be an object"},
      {"added id is a text", [](const auto& s) { write_text(s.folder / "added_tokens.json", R"({"new":"262"})"); },
       "added_tokens.json: 'new' must be a token id"},
      {"model of another kind",
       [](const auto& s) { write_text(s.folder / "config.json", R"({"model_type":"llama"})"); },
       "the tokenizer of llama is not read from vocab.json"},
  };
  for (const Case& bad : cases) {
    CAPTURE(bad.name);
    SmallFolder small;
    small.write();
    bad.damage(small);
    CHECK_THAT(refusal(small.folder.path()), Contains(bad.expected));
  }
}

TEST_CASE("what is odd but sound in the files is read", "[runtime]") {
  SmallFolder small;
  SECTION("as written") {}
  SECTION("CRLF merges") { small.merges = "#version: 0.2\r\n\u0120 t\r\n\u0120t e\r\n"; }
  SECTION("merges without #version and last newline") { small.merges = "\u0120 t\n\u0120t e"; }
  SECTION("bos_token with flags") {
    small.config["bos_token"] = {
        {"__type", "AddedToken"}, {"content", "</s>"}, {"normalized", true}, {"single_word", false}};
  }
  SECTION("the fast class") { small.config["tokenizer_class"] = "GPT2TokenizerFast"; }
  SECTION("keys that mean nothing here") { small.config["model_max_length"] = 1e30; }
  SECTION("no limit of the length, as transformers writes it") { small.no_limit = true; }
  SECTION("an older added_tokens.json") { write_text(small.folder / "added_tokens.json", R"({"new":262})"); }
  small.write();
  const Tokenizer tokenizer = Tokenizer::load(small.folder.path());
  const auto letter = small.vocabulary["A"].get<std::int32_t>();
  CHECK(tokenizer.encode(" te\tA", true) == Ids{2, 261, 4 + '\t', letter});
  CHECK(tokenizer.decode(Ids{2, 261, letter}) == " teA");
}
