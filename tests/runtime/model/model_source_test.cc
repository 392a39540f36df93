// tests/runtime/model/model_source_test.cc: the configs of a model folder as files, sound and broken.
#include "runtime/model/model_source.h"

#include <catch2/catch.hpp>

#include "kernels/error.h"
#include "tests/support/files.h"

using namespace weft;
using namespace weft::test;
using Catch::Matchers::Contains;
using runtime::read_model_spec;
namespace fs = std::filesystem;

namespace {

using Ids = std::vector<std::int32_t>;

std::string nested(int depth) { return std::string(depth, '[') + std::string(depth, ']'); }

}  // namespace

TEST_CASE("a broken config.json is refused by file and key", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path file = folder / "config.json";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "empty"},
      {"[]", "must be an object"},
      {"null", "must be an object"},
      {R"({"model_type":"opt")", "not valid JSON"},
      {R"({"model_type":"opt",})", "not valid JSON"},
      {R"({"model_type":"opt","hidden_size":NaN})", "not valid JSON"},
      {"{\"model_type\":\"opt\",\"x\":\"\xff\"}", "UTF-8"},
      {"\xef\xbb\xbf{\"model_type\":\"opt\"}", "byte order mark"},
      {R"({"model_type":"opt","num_hidden_layers":2,"num_hidden_layers":3})", "'num_hidden_layers' appears twice"},
      {R"({"model_type":"opt","x":)" + nested(1000) + "}", "nested deeper than 32 levels"},
      {R"({"model_type":"opt","hidden_size":9223372036854775808})", "hidden_size"},
      {R"({"model_type":"opt","hidden_size":18446744073709551616})", "64 bits"},
      {R"({"model_type":"opt","activation_function":"relu6x"})", "relu6x"},
      {std::string((1 << 20) + 1, ' '), "is larger than 1048576 bytes"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text.substr(0, 100), expected);
    write_text(file, text);
    CHECK_THROWS_AS(read_model_spec(folder.path()), DataError);
    CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains(file.string()) && Contains(expected));
    CHECK_THROWS_WITH(read_model_spec(folder.path()), !Contains("\n"));
  }
  fs::remove(file);
  CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains("there is no config.json"));
  fs::create_directory(file);
  CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains("config.json: is a directory, wanted a regular file"));
}

TEST_CASE("generation_config.json says what ends a text, where it says so", "[runtime]") {
  const TemporaryFolder folder;
  write_text(folder / "config.json", R"({"model_type":"opt","vocab_size":100,"eos_token_id":7})");
  CHECK(read_model_spec(folder.path()).eos == Ids{7});
  const std::vector<std::pair<std::string, Ids>> cases = {
      {R"({"eos_token_id":8})", {8}},
      {R"({"eos_token_id":[8,99,0]})", {8, 99, 0}},
      {R"({"eos_token_id":null})", {7}},
      {R"({"temperature":0.6,"max_length":null})", {7}},
  };
  for (const auto& [text, eos] : cases) {
    CAPTURE(text);
    write_text(folder / "generation_config.json", text);
    CHECK(read_model_spec(folder.path()).eos == eos);
  }
}

TEST_CASE("a broken generation_config.json is refused by file and key", "[runtime]") {
  const TemporaryFolder folder;
  const fs::path file = folder / "generation_config.json";
  write_text(folder / "config.json", R"({"model_type":"opt","vocab_size":100})");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "empty"},
      {"[]", "must be an object"},
      {"{", "not valid JSON"},
      {R"({"x":)" + nested(1000) + "}", "nested"},
      {R"({"eos_token_id":1,"eos_token_id":2})", "'eos_token_id' appears twice"},
      {R"({"eos_token_id":100})", "'eos_token_id' must be an id from 0 to 99, a list of them, or null"},
      {R"({"eos_token_id":-1})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":1.0})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":"2"})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":true})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":18446744073709551615})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":[2,100]})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":[]})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":[[2]]})", "'eos_token_id' must be an id from 0 to 99"},
      {R"({"eos_token_id":{}})", "'eos_token_id' must be an id from 0 to 99"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text.substr(0, 100));
    write_text(file, text);
    CHECK_THROWS_AS(read_model_spec(folder.path()), DataError);
    CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains(file.string()) && Contains(expected));
  }
}
