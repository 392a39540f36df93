// tests/runtime/model/model_source_test.cc: the configs of a model folder as files, sound and broken.
#include "runtime/model/model_source.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <nlohmann/json.hpp>
#include <tuple>

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
      {R"({"model_type":"opt","hidden_size":18446744073709551616})",
       "hidden_size' must be an integer from 1 to 131072"},
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
  write_text(folder / "b.gguf", "");
  write_text(folder / "a.gguf", "");
  CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains("or a GGUF file, here 'a.gguf'"));
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

TEST_CASE("ids that cannot occur end no text, and a note says so", "[runtime]") {
  const TemporaryFolder folder;
  const std::string config = R"({"model_type":"opt","vocab_size":100,"eos_token_id":)";
  for (const auto& [id, left, noted] : std::vector<std::tuple<std::string, Ids, std::string>>{
           {"100", {}, "eos_token_id 100 is beyond the vocabulary of 100"},
           {"-1", {}, "eos_token_id -1 is beyond"},
           {"18446744073709551615", {}, "eos_token_id 18446744073709551615 is beyond"},
           {"[2,100]", {2}, "eos_token_id 100 is beyond"},
           {"[]", {}, ""}}) {
    CAPTURE(id);
    write_text(folder / "config.json", config + id + "}");
    const policy::ModelSpec spec = read_model_spec(folder.path());
    CHECK(spec.eos == left);
    REQUIRE(spec.notes.size() == (noted.empty() ? 0 : 1));
    if (!noted.empty()) CHECK_THAT(spec.notes[0], Contains(noted));
  }
  write_text(folder / "config.json", config + "7,\"bos_token_id\":100}");
  CHECK_FALSE(read_model_spec(folder.path()).bos);
  CHECK_THAT(read_model_spec(folder.path()).notes.at(0), Contains("bos_token_id 100 is beyond the vocabulary"));
  write_text(folder / "generation_config.json", R"({"eos_token_id":[100]})");
  CHECK(read_model_spec(folder.path()).eos == Ids{7});
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
      {R"({"eos_token_id":1.0})", "'eos_token_id' must be a token id, a list of them, or null"},
      {R"({"eos_token_id":"2"})", "'eos_token_id' must be a token id"},
      {R"({"eos_token_id":true})", "'eos_token_id' must be a token id"},
      {R"({"eos_token_id":[[2]]})", "'eos_token_id' must be a token id"},
      {R"({"eos_token_id":{}})", "'eos_token_id' must be a token id"},
  };
  for (const auto& [text, expected] : cases) {
    CAPTURE(text.substr(0, 100));
    write_text(file, text);
    CHECK_THROWS_AS(read_model_spec(folder.path()), DataError);
    CHECK_THROWS_WITH(read_model_spec(folder.path()), Contains(file.string()) && Contains(expected));
  }
}

namespace {

/// A copy of a golden checkpoint in one file, with tensors of its hidden size added: 16-bit numbers that are `value`.
struct Changed {
  TemporaryFolder folder;
  explicit Changed(const char* golden) {
    for (const auto& file : fs::directory_iterator(data_path("golden") / golden))
      fs::copy_file(file.path(), folder / file.path().filename().string());
  }
  void add(const std::vector<std::string>& names, std::vector<std::int64_t> shape, std::uint16_t value) {
    const std::string file = read_text(folder / "model.safetensors");
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, file.data(), sizeof(bytes));
    nlohmann::json header = nlohmann::json::parse(file.substr(8, bytes));
    std::string data = file.substr(8 + bytes);
    std::int64_t elements = 1;
    for (const std::int64_t n : shape) elements *= n;
    for (const std::string& name : names) {
      const std::size_t begin = data.size();
      for (std::int64_t i = 0; i < elements; ++i) data.append(reinterpret_cast<const char*>(&value), sizeof(value));
      header[name] = {{"dtype", "F16"}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
    }
    const std::string text = header.dump();
    bytes = text.size();
    write_text(folder / "model.safetensors",
               std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + text + data);
  }
  auto open() const { return runtime::open_model(folder.path(), "auto", ""); }
};

}  // namespace

TEST_CASE("tensors of the layers that config.json does not announce are refused", "[runtime]") {
  const std::int64_t hidden = read_model_spec(data_path("golden") / "llama-absent-keys-f16").hidden;
  for (const auto& [name, kind] : std::vector<std::pair<std::string, std::string>>{
           {"model.layers.0.self_attn.q_proj.bias", "1 biases"},
           {"model.layers.1.mlp.down_proj.bias", "1 biases"},
           {"model.norm.bias", "1 biases"},
           {"model.layers.0.self_attn.q_norm.weight", "1 norms"},
           {"model.layers.99.input_layernorm.weight", "1 layers"},
           {"model.layers.0.self_attn.q_proj.lora_A.weight", "1 parts of LoRA"}}) {
    Changed changed("llama-absent-keys-f16");
    changed.add({name}, {hidden}, 0x3C00);
    CAPTURE(name);
    CHECK_THROWS_AS(changed.open(), DataError);
    CHECK_THROWS_WITH(changed.open(), Contains("model.safetensors: ") && Contains(kind) && Contains("'" + name + "'") &&
                                          !Contains("\n"));
  }
}

TEST_CASE("tensors that change nothing are left out, and the user is told which", "[runtime]") {
  Changed changed("llama-absent-keys-f16");
  changed.add({"model.layers.0.self_attn.q_proj.bias"}, {4}, 0);
  changed.add({"model.layers.0.self_attn.rotary_emb.inv_freq"}, {4}, 0x3C00);
  CHECK_NOTHROW(changed.open());  // GPTQ's tools write biases of zeros
  changed.add({"vision_tower.layers.0.norm.weight", "mtp.fc.weight"}, {4}, 0x3C00);
  const auto source = changed.open();
  REQUIRE(source->notes.size() == 1);
  CHECK_THAT(source->notes.front(),
             Contains("'mtp.fc.weight'") && Contains("'vision_tower.layers.0.norm.weight'") && !Contains("inv_freq"));
}

TEST_CASE("keys of layers that attend to those of others are left out", "[runtime]") {
  Changed changed("gemma4-slides-shared-f32");
  changed.add({"model.layers.4.self_attn.k_proj.weight", "model.layers.4.self_attn.k_norm.weight"}, {24}, 0x3C00);
  const auto source = changed.open();
  REQUIRE(source->notes.size() == 1);
  CHECK_THAT(source->notes.front(), Contains("2 tensors") && Contains("'model.layers.4.self_attn.k_norm.weight'"));
  changed.add({"model.layers.4.self_attn.norm.weight"}, {24}, 0x3C00);
  CHECK_THROWS_WITH(changed.open(), Contains("1 norms"));
}

TEST_CASE("a file's own head is used although config.json ties it", "[runtime]") {
  Changed changed("qwen2-tied-f16");
  const policy::ModelSpec spec = read_model_spec(changed.folder.path());
  REQUIRE(spec.tied_head);
  CHECK(changed.open()->spec.tied_head);
  changed.add({"lm_head.weight"}, {spec.vocab, spec.hidden}, 0x3C00);
  const auto source = changed.open();
  CHECK_FALSE(source->spec.tied_head);
  CHECK(source->units.back().kind == policy::Unit::Kind::head);
  REQUIRE(source->notes.size() == 1);
  CHECK_THAT(source->notes.front(), Contains("'lm_head.weight' is not the embedding"));
}

TEST_CASE("bfloat16 weights are computed in bfloat16 where config.json names no dtype", "[runtime]") {
  Changed changed("smollm2-gqa-tied-bf16");
  CHECK(changed.open()->notes.empty());
  nlohmann::json config = nlohmann::json::parse(read_text(changed.folder / "config.json"));
  for (const char* key : {"dtype", "torch_dtype"}) config.erase(key);
  write_text(changed.folder / "config.json", config.dump());
  const auto source = changed.open();
  CHECK(source->type == DType::bf16);
  REQUIRE(source->notes.size() == 1);
  CHECK_THAT(source->notes.front(), Contains("the weights are bfloat16"));
}

TEST_CASE("the tokenizer's own end token ends answers too", "[runtime]") {
  const TemporaryFolder folder;
  for (const char* name : {"config.json", "merges.txt", "vocab.json"})
    fs::copy_file(source_path("models/demo") / name, folder / name);
  const auto open = [&](const std::string& tokenizer_config) {
    write_text(folder / "tokenizer_config.json", tokenizer_config);
    return runtime::open_model(folder.path(), "auto", "random:1");
  };
  for (const char* text : {R"({"eos_token":"<pad>"})", R"({"eos_token":{"content":"<pad>"}})"}) {
    CAPTURE(text);
    const auto source = open(text);
    CHECK(source->spec.eos == Ids{2, 1});
    REQUIRE(source->notes.size() == 1);
    CHECK_THAT(source->notes.front(), Contains("<pad> ends answers too"));
  }
  for (const char* text : {R"({"eos_token":"</s>"})", R"({"eos_token":null})", "{}"}) {
    CAPTURE(text);
    CHECK(open(text)->spec.eos == Ids{2});
    CHECK(open(text)->notes.empty());
  }
}

namespace {

/// Changes keys of a folder's config.json.
void change_config(const fs::path& folder, const std::string& changes) {
  nlohmann::json config = nlohmann::json::parse(read_text(folder / "config.json"));
  config.merge_patch(nlohmann::json::parse(changes));
  write_text(folder / "config.json", config.dump());
}

}  // namespace

TEST_CASE("a quantization_config that plain weights have kept is not followed", "[runtime]") {
  const Changed changed("llama-absent-keys-f16");
  const std::string config =
      GENERATE(R"({"quant_method":"bitsandbytes","load_in_4bit":true})", R"({"group_size":64,"bits":4})",
               R"({"quant_method":"gptq","bits":4,"group_size":32})");
  CAPTURE(config);
  change_config(changed.folder.path(), R"({"quantization_config":)" + config + "}");
  const auto source = changed.open();
  REQUIRE(source->notes.size() == 1);
  CHECK_THAT(source->notes[0], Contains("has a quantization_config, but the weights are plain numbers"));
  CHECK_FALSE(source->spec.quantisation);
  CHECK_FALSE(source->weight_format);
  CHECK(runtime::open_model(changed.folder.path(), "auto", "", policy::WeightFormat{.dtype = DType::i8})->packs());
}

TEST_CASE("a quantization_config that cannot be read is refused where weights are not plain, or not there",
          "[runtime]") {
  Changed changed("llama-absent-keys-f16");
  change_config(changed.folder.path(), R"({"quantization_config":{"quant_method":"eetq"}})");
  const auto refused = Contains("quantization_config is that of 'eetq'");
  CHECK_THROWS_WITH(runtime::open_model(changed.folder.path(), "auto", "random:1"), refused);
  CHECK_THROWS_WITH(read_model_spec(changed.folder / "config.json"), refused);
  std::string file = read_text(changed.folder / "model.safetensors");
  const std::size_t at = file.find("layers.0.mlp.up_proj.weight");
  file.replace(file.find("F16", at), 3, "I16");
  write_text(changed.folder / "model.safetensors", file);
  CHECK_THROWS_WITH(changed.open(), refused);
}

TEST_CASE("a file that is passed over is named", "[runtime]") {
  const Changed changed("llama-absent-keys-f16");
  write_text(changed.folder / "model.safetensors.index.json", "{}");
  REQUIRE(changed.open()->notes.size() == 1);
  CHECK_THAT(changed.open()->notes[0], Contains("model.safetensors is read, model.safetensors.index.json"));
}
