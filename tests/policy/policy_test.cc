// tests/policy/policy_test.cc: policies in and out of JSON, FlexGen's percentages, sizes as text.
#include "policy/layout/policy.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/layout/policy_text.h"
#include "tests/support/files.h"

using namespace weft;
using Catch::Matchers::Contains;
using policy::bytes_from_text;
using policy::bytes_to_text;
using policy::Fractions;
using policy::PartialPolicy;

namespace {

PartialPolicy partial(const std::string& json) {
  return PartialPolicy::from_json(nlohmann::json::parse(json), "p.json");
}

constexpr const char* kWhole = R"({"version":1,"gpu_batch_size":4,"num_gpu_batches":8,
  "weights":{"device":0.2,"host":0.3,"disk":0.5},"kv":{"host":1.0},"activations":{"device":1.0},"attention":"host",
  "retention":{"rule":"h2o","heavy":0.1,"recent":0.1,"sinks":0,"of":"prompt+generation"},
  "overlap":true,"budgets":{"device":"4GiB","host":"64GiB","disk":"1TiB"}})";

}  // namespace

TEST_CASE("a whole policy is read as it says", "[policy]") {
  const PartialPolicy read = partial(kWhole);
  CHECK(read.gpu_batch_size == 4);
  CHECK(read.num_gpu_batches == 8);
  CHECK(read.weights == Fractions{{0.2, 0.3, 0.5}});
  CHECK(read.kv == Fractions{{0, 1, 0}});
  CHECK(read.activations == Fractions{{1, 0, 0}});
  CHECK(read.attention_on_host == 1);
  CHECK(read.retention->kept(50, 50).heavy == 10);
  CHECK(read.overlap == true);
  CHECK(read.budgets[0] == std::uint64_t{4} << 30);
  CHECK(read.budgets[2] == std::uint64_t{1} << 40);
}

TEST_CASE("an empty policy leaves everything open", "[policy]") {
  const PartialPolicy read = partial("{}");
  CHECK_FALSE((read.gpu_batch_size || read.num_gpu_batches || read.weights || read.kv || read.activations ||
               read.attention_on_host || read.retention || read.overlap || read.budgets[0] || read.budgets[1] ||
               read.budgets[2]));
}

TEST_CASE("the format of weights is read with their placement or alone, and reads back", "[policy]") {
  const PartialPolicy both = partial(R"({"weights":{"disk":1,"dtype":"int4","group":32,"arithmetic":"exact"}})");
  CHECK(both.weights == Fractions{{0, 0, 1}});
  CHECK(both.weight_format == policy::WeightFormat{DType::i4, 32, Arithmetic::exact});
  const PartialPolicy alone = partial(R"({"weights":{"dtype":"int8"}})");
  CHECK_FALSE(alone.weights.has_value());
  CHECK(alone.weight_format == policy::WeightFormat{.dtype = DType::i8});
  CHECK_FALSE(partial(R"({"weights":{"device":1,"dtype":"auto"}})").weight_format.has_value());
  CHECK(alone.over(both).weight_format == alone.weight_format);
  policy::Policy whole;
  for (const auto& format :
       {std::optional<policy::WeightFormat>{}, both.weight_format, alone.weight_format,
        std::optional(policy::WeightFormat{.dtype = DType::bf16}), std::optional(policy::WeightFormat::of(DType::f8)),
        std::optional(policy::WeightFormat{DType::bf16, 64, Arithmetic::bfloat16}),
        std::optional(policy::WeightFormat{DType::i4, 32, Arithmetic::bfloat16})}) {
    whole.weight_format = format;
    CHECK(PartialPolicy::from_json(whole.to_json(), "again").weight_format == format);
  }
  const std::pair<const char*, const char*> refused[] = {
      {R"({"weights":{"dtype":"int3"}})",
       "weights.dtype must be auto, float16, bfloat16, float32, float8, int8 or int4"},
      {R"({"weights":{"dtype":"float8","group":64}})",
       "weights.group must be 128 numbers for weights of float8, got 64"},
      {R"({"weights":{"dtype":"float8","arithmetic":"int8"}})",
       "weights.arithmetic must be exact for weights of float8"},
      {R"({"kv":{"dtype":"float8"}})", "kv.dtype must be auto, float16, bfloat16, float32, int8 or int4"},
      {R"({"weights":{"dtype":"int4","group":48}})", "weights.group must be 16, 32, 64 or 128"},
      {R"({"weights":{"dtype":"int4","arithmetic":"fast"}})",
       "weights.arithmetic must be exact, int8 or bfloat16 for weights of int4"},
      {R"({"weights":{"dtype":"float16","group":64}})", "weights.group: is only for the dtypes int8 and int4"},
      {R"({"weights":{"device":1,"arithmetic":"exact"}})", "weights.arithmetic: needs a dtype"},
      {R"({"weights":{"dtype":"bfloat16","arithmetic":"int8"}})",
       "weights.arithmetic must be exact or bfloat16 for weights of bfloat16"},
      {R"({"weights":{"dtype":"float16","arithmetic":"bfloat16"}})", "weights.arithmetic must be exact for weights of"},
      {R"({"weights":{"dtype":"int4","devise":1}})", "devise"},
      {R"({"weights":{}})", "sum to 1"}};
  for (const auto& [json, words] : refused) CHECK_THROWS_WITH(partial(json), Contains(words));
}

TEST_CASE("a policy's JSON reads back as itself", "[policy]") {
  const PartialPolicy read = partial(kWhole);
  const policy::Policy whole{.gpu_batch_size = 4,
                             .num_gpu_batches = 8,
                             .weights = *read.weights,
                             .kv = *read.kv,
                             .activations = *read.activations,
                             .weight_format = {},
                             .kv_format = {DType::i4, true, DType::i8},
                             .attention_on_host = 0.25,
                             .retention = *read.retention,
                             .overlap = false,
                             .budgets = {{1, 2, std::uint64_t{3} << 40}}};
  const PartialPolicy again = partial(whole.to_json().dump());
  CHECK(again.weights == read.weights);
  CHECK(again.kv_format == whole.kv_format);
  CHECK(again.attention_on_host == 0.25);
  CHECK(again.overlap == false);
  CHECK(again.budgets[2] == std::uint64_t{3} << 40);
  CHECK(again.retention->to_json() == whole.retention.to_json());
}

TEST_CASE("the shipped policies are policies", "[policy]") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path("configs/policies"))) {
    CAPTURE(entry.path());
    CHECK_NOTHROW(partial(test::read_text(entry.path())));
    ++count;
  }
  CHECK(count > 0);
}

TEST_CASE("a slip of the keys is refused with the key that was meant", "[policy]") {
  CHECK_THROWS_WITH(partial(R"({"weigths":{"disk":1.0}})"),
                    Contains("p.json") && Contains("'weigths'") && Contains("did you mean 'weights'?"));
  CHECK_THROWS_WITH(partial(R"({"kv":{"hots":1.0}})"), Contains("p.json: kv") && Contains("did you mean 'host'?"));
  CHECK_THROWS_WITH(partial(R"({"budgets":{"devise":1}})"), Contains("did you mean 'device'?"));
  CHECK_THROWS_WITH(partial(R"({"gpu_batchsize":1})"), Contains("did you mean 'gpu_batch_size'?"));
}

TEST_CASE("a value that cannot be is refused by its key", "[policy]") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "must be an object"},
      {R"({"version":0})", "'version'"},
      {R"({"version":2})", "'version'"},
      {R"({"version":1.0})", "'version'"},
      {R"({"version":"1"})", "'version'"},
      {R"({"version":true})", "'version'"},
      {R"({"version":null})", "'version'"},
      {R"({"gpu_batch_size":0})", "'gpu_batch_size'"},
      {R"({"gpu_batch_size":-1})", "'gpu_batch_size'"},
      {R"({"gpu_batch_size":"4"})", "'gpu_batch_size'"},
      {R"({"gpu_batch_size":null})", "'gpu_batch_size'"},
      {R"({"num_gpu_batches":32769})", "'num_gpu_batches'"},
      {R"({"num_gpu_batches":9223372036854775808})", "'num_gpu_batches'"},
      {R"({"num_gpu_batches":2.0})", "'num_gpu_batches'"},
      {R"({"weights":{"device":"1"}})", "weights: 'device'"},
      {R"({"weights":{"device":true}})", "weights: 'device'"},
      {R"({"weights":{"device":null,"disk":1}})", "weights: 'device'"},
      {R"({"weights":{"device":1.01}})", "weights: 'device'"},
      {R"({"weights":[0.2,0.3,0.5]})", "weights: must be an object"},
      {R"({"kv":null})", "kv: must be an object"},
      {R"({"activations":"device"})", "activations: must be an object"},
      {R"({"attention":"gpu"})", "attention must be"},
      {R"({"attention":{"device":0.5,"host":0.5,"disk":0}})", "'disk'"},
      {R"({"retention":"full"})", "retention: must be an object"},
      {R"({"retention":{"rule":7}})", "'rule'"},
      {R"({"retention":{"rule":"recent"}})", "rule 'recent' needs 'recent'"},
      {R"({"retention":{"rule":"h2o","heavy":"4","recent":4}})", "heavy"},
      {R"({"retention":{"rule":"h2o","heavy":4,"recent":4,"of":"all"}})", "'of'"},
      {R"({"overlap":0})", "'overlap'"},
      {R"({"overlap":"yes"})", "'overlap'"},
      {R"({"overlap":null})", "'overlap'"},
      {R"({"schedule":"dynamic"})", "schedule must be continuous or static"},
      {R"({"schedule":true})", "'schedule'"},
      {R"({"budgets":"4GiB"})", "budgets: must be an object"},
      {R"({"budgets":{"device":1.5}})", "budgets.device must be"},
      {R"({"budgets":{"device":-1}})", "budgets.device must be"},
      {R"({"budgets":{"device":true}})", "budgets.device must be"},
      {R"({"budgets":{"host":null}})", "budgets.host must be"},
      {R"({"budgets":{"host":"20XB"}})", "budgets.host must be"},
      {R"({"budgets":{"disk":"20 gib"}})", "budgets.disk must be"},
      {R"({"budgets":{"disk":""}})", "budgets.disk must be"},
      {R"({"budgets":{"disk":9223372036854775808}})", "budgets.disk must be"},
  };
  for (const auto& [text, words] : cases) {
    CAPTURE(text);
    CHECK_THROWS_AS(partial(text), UsageError);
    CHECK_THROWS_WITH(partial(text), Contains("p.json") && Contains(words));
  }
}

TEST_CASE("fractions must sum to 1", "[policy]") {
  CHECK(partial(R"({"kv":{"device":0.1,"host":0.2,"disk":0.7}})").kv ==
        Fractions{{0.1, 0.2, 0.7}});  // 1 - 1e-16 in binary
  CHECK_THROWS_WITH(partial(R"({"kv":{"device":0.5,"host":0.49}})"), Contains("sum to 1") && Contains("0.99"));
  CHECK_THROWS_AS(partial(R"({"kv":{}})"), UsageError);
  CHECK_THROWS_AS(partial(R"({"kv":{"device":-0.5,"host":1.5}})"), UsageError);
}

TEST_CASE("attention is on one side or on both", "[policy]") {
  CHECK(partial(R"({"attention":{"device":1}})").attention_on_host == 0);
  CHECK(partial(R"({"attention":{"device":0,"host":1.0}})").attention_on_host == 1);
  CHECK(partial(R"({"attention":{"device":0.3,"host":0.7}})").attention_on_host == 0.7);
  CHECK_THROWS_WITH(partial(R"({"attention":{"device":0.3,"host":0.6}})"), Contains("sum to 1"));
  CHECK_THROWS_AS(partial(R"({"attention":{"host":0.7}})"), UsageError);
  CHECK_THROWS_AS(partial(R"({"attention":1})"), UsageError);
}

TEST_CASE("experts are on one side or on both", "[policy][experts]") {
  CHECK(partial(R"({"experts":{"device":0.5,"host":0.5}})").experts_on_host == 0.5);
  CHECK(partial(R"({"experts":{"device":1}})").experts_on_host == 0);
  CHECK(partial(R"({"experts":"host"})").experts_on_host == 1);
  CHECK_FALSE(partial("{}").experts_on_host);
  CHECK_THROWS_WITH(partial(R"({"experts":{"device":0.3,"host":0.6}})"), Contains("experts") && Contains("sum to 1"));
  CHECK_THROWS_WITH(partial(R"({"experts":{"device":1,"hosts":0}})"), Contains("experts") && Contains("hosts"));
  CHECK_THROWS_WITH(partial(R"({"experts":{"device":-1,"host":2}})"), Contains("experts") && Contains("device"));
  CHECK_THROWS_WITH(partial(R"({"experts":0.5})"), Contains("experts must be") && Contains("0.5"));
  CHECK_THROWS_WITH(partial(R"({"experts":"disk"})"), Contains("experts must be") && Contains("disk"));
  policy::Policy policy;
  CHECK_FALSE(policy.to_json().contains("experts"));
  policy.experts_on_host = 0.25;
  CHECK(partial(policy.to_json().dump()).experts_on_host == 0.25);
  CHECK(policy::host_share_from_text("0.5", "--experts") == 0.5);
  CHECK_THROWS_WITH(policy::host_share_from_text("1.5", "--experts"), Contains("--experts must be device, host"));
}

TEST_CASE("percentages mean what they mean in FlexGen", "[policy]") {
  PartialPolicy partial;
  partial.set_percent({20, 30, 0, 100, 100, 0});  // weights, cache, activations on device and host, the rest on disk
  CHECK(partial.weights->device() == Approx(0.2));
  CHECK(partial.weights->host() == Approx(0.3));
  CHECK(partial.weights->disk() == Approx(0.5));
  CHECK(partial.kv == Fractions{{0, 1, 0}});
  CHECK(partial.activations == Fractions{{1, 0, 0}});
  for (const std::array<double, 6>& bad : {std::array<double, 6>{60, 41, 0, 0, 0, 0},
                                           {0, 0, -1, 0, 0, 0},
                                           {0, 0, 0, 0, 101, 0},
                                           {0, 0, 0, 0, 0, std::nan("")}})
    CHECK_THROWS_AS(partial.set_percent(bad), UsageError);
}

TEST_CASE("what is said above beats what is said below", "[policy]") {
  PartialPolicy above, below = partial(kWhole);
  above.gpu_batch_size = 1;
  above.overlap = false;
  above.budgets[1] = 5;
  const PartialPolicy both = above.over(below);
  CHECK(both.gpu_batch_size == 1);
  CHECK(both.num_gpu_batches == 8);
  CHECK(both.overlap == false);
  CHECK(both.weights == below.weights);
  CHECK(both.budgets[0] == below.budgets[0]);
  CHECK(both.budgets[1] == std::uint64_t{5});
}

TEST_CASE("sizes are whole bytes, in binary units or GB", "[policy]") {
  CHECK(bytes_from_text("0", "x") == 0);
  CHECK(bytes_from_text("1073741824", "x") == std::uint64_t{1} << 30);
  CHECK(bytes_from_text("17B", "x") == 17);
  CHECK(bytes_from_text("1.5GiB", "x") == std::uint64_t{3} << 29);
  CHECK(bytes_from_text("1TiB", "x") == std::uint64_t{1} << 40);
  CHECK(bytes_from_text("16G", "x") == std::uint64_t{1} << 34);
  CHECK(bytes_from_text("16GB", "x") == 16'000'000'000u);
  for (const char* text : {"", "GiB", "4XB", "4 GiB", "4gib", "-1", "1e3", ".5GiB", "0.3B", "0.0001KiB", "1..5GiB",
                           "1.5.5GiB", "99999999TiB", "123456789012345678901"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(bytes_from_text(text, "--device-memory"),
                      Contains("--device-memory") && Contains("4GiB") && Contains(text));
  }
  CHECK(bytes_to_text(0) == "0 B");
  CHECK(bytes_to_text(1023) == "1023 B");
  CHECK(bytes_to_text(std::uint64_t{13} << 28) == "3.25 GiB");
  CHECK(bytes_to_text(std::uint64_t{1} << 52) == "4096.00 TiB");
}

TEST_CASE("a policy says what keys and values are stored as, beside their shares or alone", "[policy]") {
  const PartialPolicy both = partial(R"({"kv":{"device":0.25,"host":0.75,"dtype":"int4","rotate":false}})");
  CHECK(both.kv == Fractions{{0.25, 0.75, 0}});
  CHECK(both.kv_format == policy::KvFormat{DType::i4, false, DType::i8});
  CHECK(both.kv_format->int8_keys());
  const PartialPolicy small = partial(R"({"kv":{"dtype":"int4","keys":"int4"}})");
  CHECK(small.kv_format == policy::KvFormat{DType::i4, true, DType::i4});
  CHECK_FALSE(small.kv_format->int8_keys());
  CHECK(policy::to_text(*both.kv_format, DType::f16) == "int4, keys int8");
  CHECK(policy::to_text(*small.kv_format, DType::f16) == "int4, rotated");
  const PartialPolicy alone = partial(R"({"kv":{"dtype":"int8"}})");
  CHECK_FALSE(alone.kv.has_value());
  CHECK(alone.kv_format == policy::KvFormat{DType::i8, true, {}});
  CHECK(alone.kv_format->rotates());
  CHECK_FALSE(partial(R"({"kv":{"dtype":"auto"}})").kv_format->dtype);
  CHECK_FALSE(partial(R"({"kv":{"device":1}})").kv_format);
  CHECK(PartialPolicy{}.over(alone).kv_format == alone.kv_format);
  CHECK(both.over(alone).kv_format == both.kv_format);

  policy::Policy whole;
  CHECK_FALSE(whole.to_json()["kv"].contains("dtype"));
  whole.kv_format = {DType::i4, {}, {}};
  CHECK(whole.to_json()["kv"]["dtype"] == "int4");
  CHECK(whole.to_json()["kv"]["rotate"] == false);
  CHECK(whole.to_json()["kv"]["keys"] == "int4");
  CHECK(PartialPolicy::from_json(whole.to_json(), "p.json").kv_format == policy::KvFormat{DType::i4, false, DType::i4});
  whole.kv_format = {DType::bf16, {}, {}};
  CHECK(whole.to_json()["kv"]["dtype"] == "bfloat16");
  CHECK_FALSE(whole.to_json()["kv"].contains("rotate"));

  CHECK_THROWS_WITH(partial(R"({"kv":{"dtype":"int5"}})"),
                    "p.json: kv.dtype must be auto, float16, bfloat16, float32, int8 or int4, got 'int5'");
  CHECK_THROWS_AS(partial(R"({"kv":{"dtype":4}})"), UsageError);
  for (const char* text : {R"({"kv":{"dtype":"int8","keys":"int8"}})", R"({"kv":{"keys":"int8"}})"})
    CHECK_THROWS_WITH(policy::check(*partial(text).kv_format, "p.json: kv"),
                      Contains("p.json: kv: keys have a type of their own only with values of int4"));
  CHECK_THROWS_WITH(policy::check(*partial(R"({"kv":{"dtype":"int4","keys":"float16"}})").kv_format, "p.json: kv"),
                    "p.json: kv: keys are float16, wanted int8 or int4");
  CHECK_THROWS_AS(partial(R"({"kv":{"dtype":"int4","rotate":1}})"), UsageError);
  CHECK_NOTHROW(policy::check(policy::KvFormat{DType::f16, false, {}}, "p.json"));
  CHECK_THROWS_WITH(policy::check(policy::KvFormat{DType::f16, true, {}}, "p.json"),
                    Contains("p.json: rotate is for") && Contains("int4"));
  CHECK_THROWS_AS(policy::check(policy::KvFormat{{}, true, {}}, "p.json"), UsageError);
}

TEST_CASE("percentages add up", "[policy]") {
  CHECK(policy::percentages({{1, 0, 0}}) == "100/0/0");
  CHECK(policy::percentages({{0.025, 0.975, 0}}) == "2/98/0");
  CHECK(policy::percentages({{1.0 / 3, 1.0 / 3, 1.0 / 3}}) == "34/33/33");
  CHECK(policy::percentages({{0.125, 0.125, 0.75}}) == "12/13/75");
  CHECK(policy::percentages({{0.004, 0.992, 0.004}}) == "1/99/0");
}
