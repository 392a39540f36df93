// What config.json says of weights that are quantised, as llm-compressor, AutoGPTQ, GPTQModel and AutoAWQ write it.
#include "policy/model/quantisation.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"

using namespace weft;
using Catch::Contains;
using nlohmann::json;
using policy::Quantisation;
using Packing = Quantisation::Packing;

namespace {

Quantisation read(const json& config) { return policy::quantisation_from_config(config, "config.json: q"); }
Quantisation read(const json& base, const char* patch) {
  json config = base;
  config.merge_patch(json::parse(patch));  // null removes a key
  return read(config);
}

const json kGptq = {{"quant_method", "gptq"}, {"bits", 4}, {"group_size", 128}, {"desc_act", false}, {"sym", true}};
const json kAwq = {{"quant_method", "awq"}, {"bits", 4}, {"group_size", 64}, {"zero_point", true}, {"version", "gemm"}};
const json kCompressed = json::parse(R"({"quant_method":"compressed-tensors","format":"pack-quantized",
  "config_groups":{"group_0":{"targets":["Linear"],"input_activations":null,"output_activations":null,
    "weights":{"num_bits":4,"type":"int","symmetric":true,"strategy":"group","group_size":32,"dynamic":false,
               "actorder":null}}},
  "ignore":["lm_head"],"kv_cache_scheme":null,"quantization_status":"compressed"})");

}  // namespace

TEST_CASE("quantisations of others are read as their writers mean them", "[policy]") {
  const Quantisation gptq = read(kGptq);
  CHECK(gptq.packing == Packing::gptq);
  CHECK((gptq.dtype == DType::i4 && gptq.group == 128 && !gptq.whole_rows && !gptq.reordered && !gptq.whole_words));
  CHECK(gptq.foreign());
  CHECK(read(kGptq, R"({"desc_act":true})").reordered);
  CHECK(read(kGptq, R"({"checkpoint_format":"gptq_v2"})").packing == Packing::gptq_v2);
  CHECK(read(kGptq, R"({"format":"gptq_v2"})").packing == Packing::gptq_v2);
  CHECK(read(kGptq, R"({"meta":{"quantizer":["gptqmodel:2.0.0"]}})").whole_words);
  CHECK_FALSE(read(kGptq, R"({"meta":{"quantizer":"optimum:1.0"}})").whole_words);
  CHECK_FALSE(read(kGptq, R"({"checkpoint_format":"gptq_v2","meta":{"quantizer":["gptqmodel:2"]}})").whole_words);
  CHECK(read(kGptq, R"({"group_size":-1})").whole_rows);
  CHECK(read(kGptq, R"({"group_size":-1})").group == 128);
  CHECK(read(kGptq, R"({"bits":8})").dtype == DType::i8);
  CHECK(read(kGptq, R"({"bits":8,"dynamic":{".*down.*":{"bits":8}}})").dtype == DType::i8);
  for (const auto& [size, group, repeats] : {std::tuple{32, 32, 1},
                                             {64, 64, 1},
                                             {96, 32, 3},
                                             {128, 128, 1},
                                             {160, 32, 5},
                                             {192, 64, 3},
                                             {256, 128, 2},
                                             {1024, 128, 8}}) {
    CAPTURE(size);
    for (const json& base : {kGptq, kAwq}) {
      json config = base;
      config["group_size"] = size;
      CHECK((read(config).group == group && read(config).repeats == repeats && !read(config).whole_rows));
    }
  }
  CHECK(read(kGptq, R"({"dynamic":{"-:lm_head":{},"+:.*":{"bits":4,"group_size":128}}})").group == 128);

  CHECK(read(kAwq).packing == Packing::awq);
  CHECK(read(kAwq).group == 64);
  CHECK(read(kAwq, R"({"version":"GEMM","bits":null,"w_bit":4,"group_size":null,"q_group_size":32})").group == 32);

  CHECK(read(kCompressed).packing == Packing::compressed_tensors);
  // What a checkpoint wants of a KV cache is for engines whose cache has that form.
  CHECK(read(kCompressed, R"({"kv_cache_scheme":{"num_bits":8,"type":"float"}})").packing ==
        Packing::compressed_tensors);
  CHECK((read(kCompressed).group == 32 && !read(kCompressed).zero_points && !read(kCompressed).reordered));
  const auto weights = [](const std::string& patch) {
    return read(kCompressed, (R"({"config_groups":{"group_0":{"weights":)" + patch + "}}}").c_str());
  };
  CHECK(weights(R"({"symmetric":false})").zero_points);
  CHECK(weights(R"({"strategy":"channel","group_size":null})").whole_rows);
  CHECK(weights(R"({"num_bits":8})").dtype == DType::i8);
  CHECK((weights(R"({"group_size":512})").group == 128 && weights(R"({"group_size":512})").repeats == 4));
  CHECK(weights(R"({"actorder":"group"})").reordered);
  CHECK_FALSE(weights(R"({"actorder":"weight"})").reordered);
  CHECK_FALSE(weights(R"({"actorder":"static"})").reordered);

  const Quantisation weft{
      .packing = Packing::weft, .dtype = DType::i4, .group = 64, .uniform = true, .plain = {"a", "b"}, .int8 = {"c"}};
  const Quantisation again = read(policy::to_config(weft));
  CHECK((again.packing == Packing::weft && again.dtype == DType::i4 && again.group == 64 && again.plain == weft.plain &&
         again.int8 == weft.int8 && again.uniform));
  CHECK_FALSE(again.foreign());
  CHECK(policy::to_config(weft).at("version") == 1);
  Quantisation tables = weft;
  tables.table = LevelTable::e2m1;
  tables.other_tables = {{"d", LevelTable::even}, {"e", LevelTable::iq4_nl}};
  const auto written = policy::to_config(tables);
  CHECK(written.at("version") == 2);
  CHECK((read(written).table == tables.table && read(written).other_tables == tables.other_tables));
  CHECK((tables.table_of("a") == LevelTable::e2m1 && tables.table_of("e") == LevelTable::iq4_nl));
  Quantisation with_head = tables;
  with_head.head = DType::i8;
  CHECK(policy::to_config(with_head).at("version") == 3);
  CHECK((read(policy::to_config(with_head)).head == DType::i8 && !again.head));
  CHECK(read(policy::to_config(with_head)).other_tables == tables.other_tables);
  with_head.table = LevelTable::even, with_head.other_tables = {};
  CHECK((read(policy::to_config(with_head)).head == DType::i8 &&
         read(policy::to_config(with_head)).table == LevelTable::even));
  Quantisation groups = tables;
  groups.group = 32, groups.other_groups = {{"c", 16}, {"e", 128}}, groups.other_tables = {};
  for (const auto head : {std::optional<DType>(), std::optional(DType::i8)})
    for (const LevelTable table : {LevelTable::even, LevelTable::e2m1}) {
      groups.head = head, groups.table = table;
      CHECK(policy::to_config(groups).at("version") == 4);
      const Quantisation found = read(policy::to_config(groups));
      CHECK((found.other_groups == groups.other_groups && found.head == head && found.table == table));
    }
  CHECK((groups.group_of("a") == 32 && groups.group_of("c") == 16));
  json strange = json(policy::to_config(groups));
  strange["modules_by_group_size"] = {{"48", {"a"}}};
  CHECK_THROWS_WITH(read(strange), Catch::Contains("'modules_by_group_size' must be lists by group sizes of 16"));
  strange["modules_by_group_size"] = {{"16", {1}}};
  CHECK_THROWS_WITH(read(strange), Catch::Contains("modules_by_group_size"));
  strange.erase("modules_by_group_size");
  CHECK_THROWS_WITH(read(strange), Catch::Contains("'modules_by_group_size' is missing"));
  strange = json(policy::to_config(with_head));
  strange["head_dtype"] = "float16";
  CHECK_THROWS_WITH(read(strange), Catch::Contains("'head_dtype' must be int4, int8 or float8"));
  strange = json(written);
  strange["level_table"] = "nf8";
  CHECK_THROWS_WITH(read(strange), Catch::Contains("'level_table' must be even, e2m1, iq4_nl or nf4"));
}

TEST_CASE("weights of 8 bits with scales keep their format", "[policy]") {
  for (const char* config :
       {R"({"quant_method":"fp8","fmt":"e4m3","weight_block_size":[128,128],"activation_scheme":"dynamic"})",
        R"({"quant_method":"fp8","activation_scheme":"static"})", R"({"quant_method":"fbgemm_fp8"})",
        R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"group_0":
            {"input_activations":{"num_bits":8},"weights":{"num_bits":8,"type":"float","strategy":"channel"}}}})",
        R"({"quant_method":"modelopt","quant_algo":"FP8"})"}) {
    const Quantisation found = read(json::parse(config));
    CHECK((found.packing == Quantisation::Packing::fp8 && found.dtype == DType::f8 && found.group == 128));
    CHECK((found.foreign() && found.keeps_levels() && found.uniform));
  }
  const Quantisation packed{
      .packing = Quantisation::Packing::weft, .dtype = DType::f8, .group = 128, .uniform = true, .head = DType::f8};
  const Quantisation again = read(policy::to_config(packed));
  CHECK((again.dtype == DType::f8 && again.group == 128 && again.uniform && again.head == DType::f8));
  const auto refused = [](const char* config, const char* words) {
    CHECK_THROWS_WITH(read(json::parse(config)), Contains(words) && Contains("use the unquantized model"));
  };
  refused(R"({"quant_method":"fp8","fmt":"e5m2"})", "'fmt' must be e4m3");
  refused(R"({"quant_method":"fp8","weight_block_size":[64,64]})", "'weight_block_size' must be [128, 128]");
  refused(R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":
              {"weights":{"num_bits":4,"type":"float","strategy":"group"}}}})",
          "'num_bits' must be 8");
  refused(R"({"quant_method":"compressed-tensors","format":"float-quantized","config_groups":{"g":
              {"weights":{"num_bits":8,"type":"float","strategy":"group"}}}})",
          "'strategy' must be tensor, channel or block");
}

TEST_CASE("weights of 4 bits that are floats, or levels of a table", "[policy]") {
  const json mxfp4 = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  const auto floats = [](const char* format, int group, const char* strategy) {
    json weights = {{"num_bits", 4}, {"type", "float"}, {"group_size", group}, {"strategy", strategy}};
    return json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups",
                 {{"group_0", {{"weights", weights}, {"input_activations", {{"num_bits", 4}}}, {"format", format}}}}}};
  };
  const json mx = floats("mxfp4-pack-quantized", 32, "group"), nv = floats("nvfp4-pack-quantized", 16, "tensor_group");
  for (const json& config : {mxfp4, mx}) {
    const Quantisation found = read(config);
    CHECK((found.packing == Packing::mxfp4 && found.dtype == DType::i4 && found.group == 32 && found.uniform));
    CHECK(found.keeps_levels());
  }
  const json modelopt = {{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}, {"ignore", {"lm_head"}}};
  for (const json& config : {nv, modelopt}) {
    const Quantisation found = read(config);
    CHECK((found.packing == Packing::nvfp4 && found.dtype == DType::i4 && found.group == 16 && found.uniform));
    CHECK((found.foreign() && found.keeps_levels()));
  }
  const auto own_file = [](const char* text) {
    return policy::quantisation_from_modelopt(json::parse(text), "hf_quant_config.json");
  };
  CHECK(own_file(R"({"producer":{"name":"modelopt"},"quantization":{"quant_algo":"nvfp4","group_size":16,
                     "kv_cache_quant_algo":"FP8","exclude_modules":["lm_head"]}})")
            .packing == Packing::nvfp4);
  CHECK(own_file(R"({"quantization":{"quant_algo":"FP8","exclude_modules":[]}})").packing == Packing::fp8);
  CHECK_THROWS_WITH(own_file(R"({"quantization":{"quant_algo":"NVFP4_AWQ"}})"),
                    Contains("hf_quant_config.json.quantization: 'quant_algo' must be NVFP4, W4A16_NVFP4, FP8") &&
                        Contains("NVFP4_AWQ"));
  CHECK_THROWS_WITH(own_file(R"({"quantization":{"quant_algo":"NVFP4","group_size":32}})"),
                    Contains("'group_size' must be 16"));
  CHECK_THROWS_WITH(own_file(R"({"quantization":[]})"), Contains("must be an object"));
  CHECK_THROWS_WITH(own_file(R"({"quantization":{}})"), Contains("'quant_algo' is missing"));

  const Quantisation nf4 = read(json::parse(R"({"quant_method":"bitsandbytes","load_in_4bit":true,
      "load_in_8bit":false,"bnb_4bit_quant_type":"nf4","bnb_4bit_use_double_quant":true})"));
  CHECK((nf4.packing == Packing::bitsandbytes && nf4.dtype == DType::i4 && nf4.group == 64 && nf4.uniform));
  const Quantisation fp4 = read(json::parse(R"({"quant_method":"bitsandbytes","load_in_4bit":true})"));
  CHECK((fp4.packing == Packing::bitsandbytes && !fp4.keeps_levels()));
  const json int8 = {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}, {"llm_int8_threshold", 6.0}};
  CHECK((read(int8).packing == Packing::bitsandbytes && read(int8).dtype == DType::i8 && read(int8).whole_rows));
  CHECK_THROWS_WITH(read(int8, R"({"llm_int8_has_fp16_weight":true})"),
                    Contains("'llm_int8_has_fp16_weight' must be false"));
  CHECK_THROWS_WITH(read(int8, R"({"load_in_8bit":false})"), Contains("'load_in_4bit' is missing"));
  CHECK_THROWS_WITH(read(int8, R"({"load_in_8bit":1})"), Contains("'load_in_8bit'"));

  const char* const of_rows = R"({"format":"int-quantized","config_groups":{"group_0":{"input_activations":
      {"num_bits":8,"dynamic":true},"weights":{"num_bits":8,"strategy":"channel","group_size":null}}}})";
  json bytes = kCompressed;
  bytes.merge_patch(json::parse(of_rows));
  CHECK((read(bytes).packing == Packing::compressed_tensors && read(bytes).dtype == DType::i8));
  CHECK((read(bytes).whole_rows && read(bytes).group == 128 && read(bytes).uniform));

  const auto group = [](const json& base, const std::string& patch, const char* words) {
    CHECK_THROWS_WITH(read(base, (R"({"config_groups":{"group_0":)" + patch + "}}").c_str()), Contains(words));
  };
  group(bytes, R"({"weights":{"num_bits":4}})", "'num_bits' must be 8");
  group(bytes, R"({"weights":{"strategy":"tensor"}})", "'strategy' must be channel");
  group(bytes, R"({"weights":{"symmetric":false}})", "'symmetric' must be true");
  group(bytes, R"({"format":"pack-quantized"})", "'format' must be int-quantized");
  group(nv, R"({"weights":{"group_size":32}})", "'group_size' must be 16, got 32");
  group(nv, R"({"weights":{"num_bits":8}})", "'num_bits' must be 4");
  group(nv, R"({"weights":{"type":"int"}})", "'type' must be float");
  group(nv, R"({"weights":{"symmetric":false}})", "'symmetric' must be true");
  group(nv, R"({"format":"float-quantized"})", "'format' must be nvfp4-pack-quantized");
  group(mx, R"({"weights":{"group_size":16}})", "'group_size' must be 32, got 16");
  group(mx, R"({"weights":null})", "'weights' is missing");
  CHECK_THROWS_WITH(read(nv, R"({"transform_config":{"config_groups":{"u":{}}}})"), Contains("'transform_config'"));
  CHECK_THROWS_WITH(read(nv, R"({"config_groups":null})"), Contains("'config_groups' is missing"));
}

TEST_CASE("quantisations that are not read are refused by name, with what to do", "[policy]") {
  const auto refused = [](const json& base, const char* patch, const char* words) {
    CAPTURE(patch);
    CHECK_THROWS_AS(read(base, patch), DataError);
    CHECK_THROWS_WITH(read(base, patch), Contains("config.json: q") && Contains(words));
  };
  for (const char* method : {"quark", "hqq", "gguf", "auto-round", "quanto", "aqlm"}) {
    CAPTURE(method);
    CHECK_THROWS_WITH(read({{"quant_method", method}}),
                      Contains(std::string("that of '") + method + "'") && Contains("use the unquantized model"));
  }
  refused(kGptq, R"({"quant_method":null})", "names no quant_method");
  refused(kGptq, R"({"bits":3})", "'bits' must be 4 or 8, got 3");
  refused(kGptq, R"({"bits":2})", "use the unquantized model");
  refused(kGptq, R"({"bits":"4"})", "'bits'");
  refused(kGptq, R"({"bits":null})", "'bits' is missing");
  refused(kGptq, R"({"group_size":48})", "'group_size' must be -1 or a multiple of 32, got 48");
  refused(kGptq, R"({"group_size":16})", "'group_size' must be -1 or a multiple of 32, got 16");
  refused(kGptq, R"({"group_size":0})", "'group_size'");
  refused(kGptq, R"({"group_size":2097152})", "'group_size'");
  refused(kGptq, R"({"group_size":null})", "'group_size' is missing");
  refused(kGptq, R"({"checkpoint_format":"marlin"})", "'checkpoint_format' must be gptq or gptq_v2");
  refused(kGptq, R"({"is_marlin_format":true})", "'is_marlin_format'");
  refused(kGptq, R"({"pack_dtype":"int16"})", "'pack_dtype'");
  refused(kGptq, R"({"desc_act":1})", "'desc_act'");
  refused(kGptq, R"({"dynamic":{".*down.*":{"bits":8}}})", "mixture of bits");
  refused(kGptq, R"({"bits":8,"dynamic":{".*down.*":{"bits":4}}})", "differs from the 8 of the rest");
  refused(kGptq, R"({"dynamic":{".*down.*":{"group_size":32}}})", "'group_size' differs");
  refused(kGptq, R"({"dynamic":{".*down.*":{"group_size":256}}})", "'group_size' differs");
  refused(kGptq, R"({"dynamic":[1]})", "'dynamic'");
  refused(kAwq, R"({"bits":8})", "'bits' must be 4, got 8");
  refused(kAwq, R"({"group_size":16})", "'group_size'");
  refused(kAwq, R"({"version":"gemv"})", "'version' must be gemm");
  refused(kAwq, R"({"zero_point":false})", "'zero_point' must be true");
  refused(kCompressed, R"({"format":"marlin-24"})", "'format' must be pack-quantized");
  refused(kCompressed, R"({"format":null})", "'format' is missing");
  refused(kCompressed, R"({"sparsity_config":{"format":"sparse-24-bitmask"}})", "'sparsity_config'");
  refused(kCompressed, R"({"transform_config":{"config_groups":{"u":{}}}})", "'transform_config'");
  refused(kCompressed, R"({"config_groups":{"group_0":null}})", "'config_groups'");
  refused(kCompressed, R"({"config_groups":5})", "'config_groups'");
  const auto group = [&](const std::string& patch, const char* words) {
    refused(kCompressed, (R"({"config_groups":{"group_0":)" + patch + "}}").c_str(), words);
  };
  group(R"({"input_activations":{"num_bits":8}})", "'input_activations' must be null");
  group(R"({"format":"nvfp4-pack-quantized"})", "'format'");
  group(R"({"weights":null})", "'weights' is missing");
  group(R"({"weights":{"num_bits":3}})", "'num_bits' must be 4 or 8, got 3");
  group(R"({"weights":{"type":"float"}})", "'type' must be int");
  group(R"({"weights":{"strategy":"tensor"}})", "'strategy' must be group or channel");
  group(R"({"weights":{"group_size":16}})", "'group_size'");
  group(R"({"weights":{"dynamic":true}})", "'dynamic'");
  group(R"({"weights":{"actorder":"size"}})", "'actorder'");
  json two = kCompressed;
  two["config_groups"]["group_1"] = two["config_groups"]["group_0"];
  CHECK(read(two).group == 32);
  refused(two, R"({"config_groups":{"group_1":{"weights":{"group_size":64}}}})", "a mixture is not read");
  refused(two, R"({"config_groups":{"group_1":{"weights":{"num_bits":8}}}})",
          "its bits or groups differ from those of another");

  const json weft = policy::to_config({.packing = Packing::weft, .dtype = DType::i4, .group = 64});
  refused(weft, R"({"modules_to_not_convert":5})", "'modules_to_not_convert'");
  refused(weft, R"({"modules_to_not_convert":[5]})", "'modules_to_not_convert'");
}
