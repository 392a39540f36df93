// Tokens that steps read in full, in retentions, formats, footprints and plans.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/layout/footprint.h"
#include "policy/layout/policy.h"
#include "policy/layout/policy_text.h"
#include "policy/planner/predict.h"
#include "tests/policy/machines.h"

using namespace weft;
using Catch::Contains;
using kernels::Keep;
using policy::KvFormat;
using policy::PartialPolicy;
using policy::Retention;

TEST_CASE("a share of all tokens, or a number of them, is read in full", "[policy]") {
  struct Row {
    const char* text;
    Keep kept;
  };
  // Prompt 60, generation 40.
  const Row rows[] = {
      {"full:read=0.1", {.heavy = 0, .recent = 100, .read = 10}},
      {"full:read=7", {.heavy = 0, .recent = 100, .read = 7}},
      {"full:read=1.0", {.heavy = 0, .recent = 100, .read = 100}},
      {"full:read=500", {.heavy = 0, .recent = 100, .read = 100}},
      {"full:read=0.001", {.heavy = 0, .recent = 100, .read = 1}},
      {"full:read=0.1:of=prompt", {.heavy = 0, .recent = 100, .read = 6}},
      {"full", {.heavy = 0, .recent = 100}},
      {"h2o:0.2:0.1:read=0.15", {.heavy = 20, .recent = 10, .read = 15}},
      {"recent:0.4:sinks=2:read=0.1", {.heavy = 2, .recent = 40, .sinks = 2, .read = 10}},
      {"snapkv:0.2:0.1:read=0.5", {.heavy = 12, .recent = 6, .spare = 40, .read = 30}},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Retention retention = Retention::from_text(row.text);
    CHECK(retention.kept(60, 40) == row.kept);
    CHECK(retention.selects() == (row.kept.read > 0));
    CHECK(Retention::from_json(retention.to_json(), "again") == retention);
  }
  // Factors of layers do not change it, and neither does a sliding window.
  const auto layers = Retention::from_text("h2o:0.1:0.1:read=0.1:layers=full,1.5,0.5");
  for (int layer = 0; layer < 3; ++layer) CHECK(layers.kept(60, 40, layer).read == 10);
  CHECK(Retention::from_text("full:read=0.1").kept(60, 40, 0, 0, 32) == Keep{.heavy = 0, .recent = 31, .read = 10});
  CHECK(retention_name(Retention::from_text("full:read=0.1")) == "full read 0.1");
}

TEST_CASE("what `read` does not go with is refused by name", "[policy]") {
  const auto refused = [](const char* text) {
    CHECK_THROWS_AS(Retention::from_text(text), UsageError);
    try {
      Retention::from_text(text);
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  CHECK_THAT(refused("full:read=0"), Contains("a number of tokens or a share above 0"));
  CHECK_THAT(refused("full:read=0.0"), Contains("leave it out, so that all are read"));
  CHECK_THAT(refused("full:read=1"), Contains("'read' is one token; write 1.0 for all"));
  CHECK_THAT(refused("full:read=1.5"), Contains("read must be a number of tokens or a share"));
  CHECK_THAT(refused("h2o:4:4:cold=1.0:read=0.1"), Contains("'cold' takes bits away"));
  CHECK_THAT(refused("h2o:4:4:rest=true:read=0.1"), Contains("'rest' and 'read'"));
  CHECK_THAT(refused("h2o:4:4:positions=rolled:read=0.1"), Contains("the pieces of a key ('read')"));
  const auto full = Retention::from_text("full:read=0.1");
  CHECK_NOTHROW(check(full, KvFormat::of(DType::i8)));
  for (const std::optional<DType> type : {std::optional<DType>{}, {DType::i4}, {DType::f16}})
    CHECK_THROWS_WITH(check(full, KvFormat::of(type)), Contains("give --kv-dtype int8"));
}

TEST_CASE("split slots take the bytes of int8, and a step reads fewer of them", "[policy]") {
  for (const int dim : {64, 128, 80}) {
    CAPTURE(dim);
    const offload::KvShape whole{.sequences = 2, .kv_heads = 3, .slots = 50, .head_dim = dim, .dtype = DType::i8};
    for (int bits = 1; bits <= kernels::kMostCoarseBits; ++bits) {
      offload::KvShape split = whole;
      split.coarse = {.keys = bits, .values = 5 - bits}, split.split = true, split.read = 5;
      const std::size_t padding = dim % 64 == 0 ? 0 : 2 * (64 - static_cast<std::size_t>(dim) % 64);
      CHECK(split.bytes_per_step() + split.low_bytes_per_step() == whole.bytes_per_step() + padding);
      CHECK(split.bytes_per_step() < whole.bytes_per_step());
      CHECK(whole.low_bytes() == 0);
      CHECK(split.low_bytes() == (2 * 3 * 50 * split.low_key_bytes() + 63) / 64 * 64 +
                                     (2 * 3 * 50 * split.low_value_bytes() + 63) / 64 * 64);
      std::size_t all = 0;
      for (const auto& part : split.parts()) all += part.head_bytes(split.all_slots());
      CHECK(all == 50 * (split.key_bytes() + split.value_bytes() + split.low_bytes_per_step() +
                         2 * split.split_scales_bytes() + 8) +
                       4);
    }
  }
}

TEST_CASE("a footprint knows what is read in full", "[policy]") {
  const auto bytes_of_layer = [](const char* text) {
    const Retention retention = Retention::from_text(text);
    const test::Made made(test::decoder(2, 512, 8, 1000), 60, 40, 4, test::machine_of({}, {1 << 30, 1 << 30, 0}),
                          retention);
    policy::Policy policy;
    policy.gpu_batch_size = policy.num_gpu_batches = 2;
    policy.retention = retention;
    policy.kv_format = KvFormat::from_text("int8:3:2", "x");
    const policy::Footprint print = policy::footprint(made.model, made.units, policy, made.work, made.sizing);
    const offload::KvShape& shape = print.kv_shapes.front().front();
    CHECK(shape.split == retention.selects());
    CHECK(shape.read == retention.kept(60, 40).read);
    return print.kv_buffer_bytes(0);
  };
  const auto whole = bytes_of_layer("full");
  CHECK(bytes_of_layer("full:read=0.1") <= whole + 4096);
  CHECK(bytes_of_layer("full:read=0.5") == bytes_of_layer("full:read=0.1"));
}

TEST_CASE("a plan counts what a device reads in full, and what of it crosses the link", "[policy]") {
  struct Seconds {
    double computing, crossing, from_host, whole;
  };
  const auto seconds = [](const char* rule, policy::Fractions kv) {
    const test::DecodeOfRule of = test::decode_of_rule(rule, kv);
    return Seconds{of.busy(offload::Lane::device_compute), of.busy(offload::Lane::host_to_device),
                   double(of.footprint.kv_bytes_from_host(0)), double(of.footprint.kv_buffer_bytes(0))};
  };
  const policy::Fractions device{{1, 0, 0}}, host{{0, 1, 0}};
  const auto of_device = [&](const char* rule) { return seconds(rule, device).computing; };
  CHECK(of_device("full:read=0.05") < of_device("full:read=0.3"));
  CHECK(of_device("full:read=0.1") < of_device("full"));
  CHECK(of_device("h2o:0.1:0.1:read=0.05") < of_device("full:read=0.05"));
  CHECK(seconds("full:read=0.1", device).crossing == 0);
  // Of a buffer at home on the host low rows stay there: 4 and 6 bits of 8 and 8, and what a step reads of them is its
  // own time. From the disk all of it comes.
  const Seconds all = seconds("full", host), part = seconds("full:read=0.1", host),
                more = seconds("full:read=0.2", host);
  CHECK(all.from_host == all.whole);
  CHECK(part.crossing / all.crossing == Approx(part.from_host / all.whole).epsilon(0.02));
  CHECK(part.from_host / part.whole < 0.5);
  CHECK(more.crossing == Approx(part.crossing));
  const auto gathered = [&](const char* rule) { return seconds(rule, host).computing - of_device(rule); };
  CHECK(gathered("full") == Approx(0).margin(1e-12));
  CHECK(gathered("full:read=0.1") > 0);
  CHECK(gathered("full:read=0.2") == Approx(2 * gathered("full:read=0.1")).epsilon(0.01));
}
