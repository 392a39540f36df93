// tests/runtime/gguf/gguf_test.cc: headers and vocabularies of GGUF files, and those that are broken, each with the
// fault it must be refused for.
#include "runtime/gguf/gguf.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/gguf/gguf_names.h"
#include "runtime/gguf/gguf_texts.h"
#include "tests/support/files.h"
#include "tests/support/gguf.h"

using namespace weft;
using namespace weft::runtime;
using namespace weft::test;
using Catch::Matchers::Contains;

namespace {

/// The fault for which reading the file's header is refused; its message has `words` and is one line.
std::string fault_of(const std::string& bytes, const std::string& words) {
  const WrittenGguf file(bytes);
  try {
    file.read();
  } catch (const GgufError& error) {
    CHECK(error.exit_code() == 3);
    CHECK_THAT(error.what(), Contains(file.path.string() + ": ") && Contains(words) && !Contains("\n"));
    return name_of(error.fault);
  }
  return "";
}

std::string fault_of(const GgufFile& file, const std::string& words) { return fault_of(file.bytes(), words); }

}  // namespace

TEST_CASE("a GGUF header has its values and tensors", "[runtime][gguf]") {
  GgufFile file = tiny_gguf();
  file.raw("a", 0, "\x07").raw("b", 1, "\xFF").raw("c", 11, bytes_of_number(std::int64_t{-5}));
  file.boolean("d", true).integers("e", {1, -2}).texts("f", {"x", ""}).raw("g", 12, bytes_of_number(0.5));
  file.version = GENERATE(2u, 3u);
  const WrittenGguf written(file.bytes());
  const Gguf gguf = written.read();
  CHECK(gguf.integer("a", 0, 10) == 7);
  CHECK(gguf.integer("b", -10, 10) == -1);
  CHECK(gguf.integer("c", -10, 10) == -5);
  CHECK(gguf.integer("none", 0, 10, 3) == 3);
  CHECK(gguf.boolean("d", false));
  CHECK(*gguf.integers("e") == std::vector<std::int64_t>{1, -2});
  CHECK(*gguf.texts("f") == std::vector<std::string>{"x", ""});
  CHECK(gguf.number("g") == 0.5);
  REQUIRE(gguf.tensors.size() == 1);
  CHECK(gguf.tensors[0].shape == std::vector<std::int64_t>{8, 32});
  CHECK(gguf.tensors[0].offset + 32 * 8 * 4 == file.bytes().size());
  CHECK_THROWS_WITH(gguf.integer("a", 0, 6), Contains("'a' is 7, wanted 0 to 6"));
  CHECK_THROWS_WITH(gguf.text("a"), Contains("'a' is a whole number, wanted a text"));
  CHECK_THROWS_WITH(gguf.number("none"), Contains("has no 'none', wanted a float"));
}

TEST_CASE("broken GGUF headers are refused, each for its fault", "[runtime][gguf]") {
  const auto file = [] { return tiny_gguf(); };
  const std::string whole = file().bytes();
  CHECK(fault_of("GGUX" + whole.substr(4), "does not begin with GGUF") == "wrong-magic");
  CHECK(fault_of("GG", "the file has 2 more") == "too-short");
  for (const auto& [version, words] : {std::pair{1u, "version 1"}, {4u, "version 4"}, {3u << 24, "big-endian"}}) {
    GgufFile other = file();
    other.version = version;
    CHECK(fault_of(other, words) == "bad-version");
  }
  for (const std::size_t length : {6u, 12u, 20u, 30u, 100u})
    CHECK(fault_of(whole.substr(0, length), "more") == "too-short");
  CHECK(fault_of(whole.substr(0, whole.size() - 1), "ends beyond the file") == "past-end");
  GgufFile many = file();
  many.entries = std::uint64_t{1} << 40;
  CHECK(fault_of(many, "at most") == "too-large");
  many = file(), many.tensors = ~std::uint64_t{0};
  CHECK(fault_of(many, "at most") == "too-large");

  CHECK(fault_of(file().integer("", 1), "is empty") == "bad-key");
  CHECK(fault_of(file().integer("\xFF", 1), "no UTF-8") == "bad-key");
  CHECK(fault_of(file().integer("general.architecture", 1), "is there twice") == "duplicate-key");
  CHECK(fault_of(file().raw("a", 13, ""), "type 13, wanted 0 to 12") == "bad-value-type");
  CHECK(fault_of(file().raw("a", 9, bytes_of_number(9u) + bytes_of_number(std::uint64_t{1})), "list of lists") ==
        "bad-value-type");
  CHECK(fault_of(file().raw("a", 7, "\2"), "a bool of 2") == "bad-value");
  CHECK(fault_of(file().raw("a", 10, bytes_of_number(~std::uint64_t{0})), "less than 2^63") == "bad-value");
  for (const std::uint32_t type : {0u, 4u, 8u, 10u})
    CHECK(fault_of(file().raw("a", 9, bytes_of_number(type) + bytes_of_number(std::uint64_t{1} << 61)),
                   "is a list of") == "too-short");
  CHECK(fault_of(file().raw("a", 8, bytes_of_number(~std::uint64_t{0})), "more") == "too-short");
  for (const std::uint32_t alignment : {0u, 3u, 1u << 20})
    CHECK(fault_of(file().integer("general.alignment", alignment), "wanted a power of two") == "bad-alignment");

  CHECK(fault_of(file().tensor_at("", {32}, 0, 0), "no name") == "bad-name");
  CHECK(fault_of(file().tensor_at("token_embd.weight", {32}, 0, 0), "is there twice") == "duplicate-tensor");
  for (const std::vector<std::uint64_t>& sizes : std::vector<std::vector<std::uint64_t>>{
           {}, {0}, {1, 1, 1, 1, 1}, {std::uint64_t{1} << 63}, {std::uint64_t{1} << 32, std::uint64_t{1} << 32}})
    CHECK(fault_of(file().tensor_at("x", sizes, 0, 0), "tensor 'x' has") == "bad-shape");
  CHECK(fault_of(file().tensor_at("x", {16, 4}, 8, 0), "do not fill blocks of 32 (Q8_0)") == "bad-shape");
  for (const auto& [type, name] :
       {std::pair{10u, "Q2_K"}, {11u, "Q3_K"}, {14u, "Q6_K"}, {23u, "IQ4_XS"}, {34u, "TQ1_0"}, {35u, "TQ2_0"}}) {
    CHECK(fault_of(file().tensor_at("x", {128, 2}, type, 0), std::string("do not fill blocks of 256 (") + name + ")") ==
          "bad-shape");
    CHECK(fault_of(file().tensor_at("x", {512, 2}, type, 1024), "ends beyond the file") == "past-end");
  }
  for (const auto& [type, name] : {std::pair{16u, "IQ2_XXS"}, {18u, "IQ3_XXS"}, {21u, "IQ3_S"}, {22u, "IQ2_S"}})
    CHECK(fault_of(file().tensor_at("x", {256}, type, 0),
                   std::string("stored as ") + name + ", which is not read; read are F32") == "bad-type");
  CHECK(fault_of(file().tensor_at("x", {256}, 99, 0), "stored as type 99") == "bad-type");
  CHECK(fault_of(file().tensor_at("x", {4}, 0, 1), "wanted a multiple of 32") == "bad-offset");
  CHECK(fault_of(file().tensor_at("x", {4}, 0, ~std::uint64_t{31}), "ends beyond") == "past-end");
  CHECK(fault_of(file().tensor_at("x", {4}, 0, 992), "overlap at byte") == "overlap");
}

TEST_CASE("a later part of a GGUF file may be padded as the first part says", "[runtime][gguf]") {
  // gguf-py pads all parts alike, and writes the alignment into the first.
  for (const std::size_t first : {32u, 64u, 256u})
    for (const std::size_t own : {std::size_t{32}, first}) {
      GgufFile file;
      file.alignment = own;
      file.integer("split.no", 1).integer("split.count", 2);
      file.tensor("a", {3}, 0, std::string(12, 'a')).tensor("b", {3}, 0, std::string(12, 'b'));
      const WrittenGguf written(file.bytes());
      const Gguf part = read_gguf(InputFile(written.path), first);
      CHECK(part.alignment == own);
      CHECK(part.tensors[0].offset == file.bytes().find('a', file.bytes().size() - 2 * own));
      CHECK(file.bytes().substr(part.tensors[1].offset, 12) == std::string(12, 'b'));
    }
}

TEST_CASE("every cut and every changed byte of a GGUF header is refused or read", "[runtime][gguf]") {
  const std::string whole = tiny_gguf().texts("tokenizer.ggml.tokens", {"a", "b"}).bytes();
  const TemporaryFolder folder;
  std::size_t refused = 0, read = 0;
  const auto look_at = [&](const std::string& bytes) {
    write_text(folder / "x.gguf", bytes);
    try {
      read_gguf(InputFile(folder / "x.gguf"));
      ++read;
    } catch (const GgufError&) {
      ++refused;
    }
  };
  const std::size_t header = whole.size() - 32 * 8 * 4;
  for (std::size_t length = 0; length < header; ++length) look_at(whole.substr(0, length));
  CHECK(refused == header);
  for (std::size_t at = 0; at < header; ++at) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 0x81);
    look_at(changed);
  }
  CHECK(refused > header);
  CHECK(read > 0);
}

TEST_CASE("tokenizer.ggml.pre names the way in which texts are cut into words", "[runtime][gguf]") {
  const auto tokenizer = [](const std::string& pre) {
    const WrittenGguf written(tiny_gguf()
                                  .text("tokenizer.ggml.model", "gpt2")
                                  .texts("tokenizer.ggml.tokens", {"a", "b", "ab"})
                                  .texts("tokenizer.ggml.merges", {"a b"})
                                  .text("tokenizer.ggml.pre", pre)
                                  .bytes());
    return gguf_tokenizer(written.read());
  };
  const auto splits = nlohmann::ordered_json::parse(read_text(data_path("tokenizer/splits.json"))).at("cases");
  for (const auto& [pre, name] : {std::pair{"gpt-4o", "o200k"},
                                  {"llama4", "o200k"},
                                  {"tekken", "tekken"},
                                  {"llama-bpe", "llama 3"},
                                  {"falcon3", "llama 3"},
                                  {"midm-2.0", "llama 3"},
                                  {"seed-coder", "seed coder"},
                                  {"starcoder", "starcoder"},
                                  {"gpt-2", "gpt 2"},
                                  {"mellum", "gpt 2"},
                                  {"granite-docling", "gpt 2"},
                                  {"deepseek-llm", "deepseek llm"},
                                  {"deepseek-coder", "deepseek coder"},
                                  {"deepseek-v3", "deepseek"},
                                  {"hunyuan-dense", "deepseek"},
                                  {"minimax-m2", "o200k"},
                                  {"command-r", "starcoder"},
                                  {"exaone4", "gpt 2"}})
    CHECK(tokenizer(pre).at("pre_tokenizer") == splits.at(name).at("parts").at("pre_tokenizer"));
  CHECK(tokenizer("falcon3") == tokenizer("llama-bpe"));
  CHECK(tokenizer("smaug-bpe").at("pre_tokenizer") == tokenizer("llama-bpe").at("pre_tokenizer"));
  CHECK(tokenizer("olmo").at("pre_tokenizer") == tokenizer("gpt-2").at("pre_tokenizer"));
  CHECK(tokenizer("olmo").at("normalizer") == nlohmann::ordered_json{{"type", "NFC"}});
  CHECK(tokenizer("deepseek-r1-qwen") == tokenizer("qwen2"));
  for (const char* like_qwen2 : {"hunyuan", "stablelm2"})
    CHECK(tokenizer(like_qwen2).at("pre_tokenizer") == tokenizer("qwen2").at("pre_tokenizer"));
}

TEST_CASE("a GGUF vocabulary of Gemma 4 has the pieces, merges and special tokens of its folder", "[runtime][gguf]") {
  const WrittenGguf written(tiny_gguf()
                                .text("tokenizer.ggml.model", "gemma4")
                                .texts("tokenizer.ggml.tokens", {"<unk>", "<bos>", "<|channel>", "a", "\n", "\n\n"})
                                .integers("tokenizer.ggml.token_type", {3, 3, 4, 1, 1, 1})
                                .texts("tokenizer.ggml.merges", {"\n \n"})
                                .integer("tokenizer.ggml.bos_token_id", 1)
                                .integer("tokenizer.ggml.unknown_token_id", 0)
                                .boolean("tokenizer.ggml.add_space_prefix", false)
                                .boolean("tokenizer.ggml.add_bos_token", false)
                                .bytes());
  const auto tokenizer = gguf_tokenizer(written.read());
  const auto parsed = [](const char* text) { return nlohmann::ordered_json::parse(text); };
  CHECK(tokenizer.at("normalizer") == parsed(R"({"type": "Replace", "pattern": {"String": " "}, "content": "▁"})"));
  CHECK(tokenizer.at("pre_tokenizer").is_null());
  CHECK(tokenizer.at("decoder").at("decoders").size() == 3);  // no space in front is cut off
  CHECK(tokenizer.at("model").at("merges") == nlohmann::ordered_json::array({"\n \n"}));
  CHECK((tokenizer.at("model").at("byte_fallback") == true && tokenizer.at("model").at("unk_token") == "<unk>"));
  for (const auto& token : tokenizer.at("added_tokens")) CHECK(token.at("special") == true);
  CHECK(tokenizer.at("added_tokens").size() == 3);
  // The first token is put in front even where a file says that it is not.
  CHECK(tokenizer.at("post_processor").at("special_tokens").contains("<bos>"));
}

TEST_CASE("vocabularies that Weft cannot use are refused by name", "[runtime][gguf]") {
  const auto refused = [](GgufFile file, const std::string& words) {
    const WrittenGguf written(file.bytes());
    const Gguf gguf = written.read();
    CHECK_THROWS_WITH(gguf_tokenizer(gguf), Contains(words));
  };
  const auto vocabulary = [](const std::string& kind) {
    return tiny_gguf().text("tokenizer.ggml.model", kind).texts("tokenizer.ggml.tokens", {"a", "b"});
  };
  refused(vocabulary("bert"), "'bert'; read are gpt2, llama and gemma4");
  refused(vocabulary("gpt2"), "'default', by which Weft cannot cut texts into words; it can by gpt-2");
  refused(vocabulary("gpt2").text("tokenizer.ggml.pre", "gpt-2"), "'tokenizer.ggml.merges' is missing");
  refused(vocabulary("gemma4"), "'tokenizer.ggml.merges' is missing");
  refused(vocabulary("llama"), "'tokenizer.ggml.scores' is no list of 2 floats");
  refused(vocabulary("llama").integers("tokenizer.ggml.token_type", {1}), "has 1 entries");
  refused(tiny_gguf().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", {"a", "a"}),
          "'a' twice: 0 and 1");
  refused(tiny_gguf().text("tokenizer.ggml.model", "gpt2").texts("tokenizer.ggml.tokens", {"\xFF"}),
          "no UTF-8, as token 0");
}
