// Cold tokens in retentions, formats and footprints.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/layout/footprint.h"
#include "policy/layout/policy.h"
#include "policy/planner/predict.h"
#include "tests/policy/machines.h"

using namespace weft;
using Catch::Contains;
using kernels::Keep;
using policy::KvFormat;
using policy::PartialPolicy;
using policy::Retention;

TEST_CASE("of what the budget leaves, so many tokens stay cold", "[policy]") {
  struct Row {
    const char* text;
    Keep kept;
    std::int64_t slots, cold;
  };
  // Prompt 60, generation 40: at most 99 tokens are stored.
  const Row rows[] = {
      {"h2o:0.1:0.1:cold=1.0", {.heavy = 10, .recent = 10, .cold = 80}, 21, 79},
      {"h2o:0.1:0.1:cold=0.5", {.heavy = 10, .recent = 10, .cold = 40}, 21, 40},
      {"h2o:0.1:0.1:cold=7", {.heavy = 10, .recent = 10, .cold = 7}, 21, 7},
      {"h2o:0.1:0.1:cold=0", {.heavy = 10, .recent = 10}, 21, 0},
      {"h2o:0.1:0.1:cold=0.0", {.heavy = 10, .recent = 10}, 21, 0},
      {"h2o:0.1:0.1:cold=500", {.heavy = 10, .recent = 10, .cold = 100}, 21, 79},
      {"recent:0.2:cold=0.25", {.heavy = 0, .recent = 20, .cold = 20}, 21, 20},
      {"h2o:90:90:cold=1.0", {.heavy = 90, .recent = 90}, 99, 0},
      {"h2o-flexgen:0.1:0.1:cold=1.0", {.heavy = 10, .recent = 10, .grace = 1, .cold = 80}, 21, 79},
      // Of the prompt; what comes after stays fine.
      {"snapkv:0.1:0.1:cold=1.0", {.heavy = 6, .recent = 6, .spare = 40, .cold = 48}, 53, 48},
      {"snapkv:0.1:0.1:cold=0.5", {.heavy = 6, .recent = 6, .spare = 40, .cold = 24}, 53, 24},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    const Retention retention = Retention::from_text(row.text);
    CHECK(retention.kept(60, 40) == row.kept);
    CHECK(retention.slots(60, 40) == row.slots);
    CHECK(retention.cold_slots(60, 40) == row.cold);
    CHECK(retention.cools() == (row.kept.cold > 0 || std::string_view(row.text) == "h2o:90:90:cold=1.0"));
    CHECK(Retention::from_json(retention.to_json(), "r") ==
          (retention.cools() ? retention : Retention::from_text("h2o:0.1:0.1")));
  }
  const Retention layers = Retention::from_text("h2o:0.1:0.1:cold=0.5:layers=full,1.5,0.5");
  CHECK(layers.kept(60, 40, 0) == Keep{.heavy = 0, .recent = 100});
  CHECK(layers.kept(60, 40, 1) == Keep{.heavy = 15, .recent = 15, .cold = 35});
  const policy::LayerSlots cold = layers.cold_slots(60, 40);
  CHECK((cold.of(0) == 0 && cold.of(1) == 35 && cold.of(2) == 45));
  // A model's window has room for the window alone.
  const Retention slides = Retention::from_text("h2o:0.1:0.1:cold=1.0");
  CHECK(slides.kept(60, 40, 0, 0, 32) == Keep{.heavy = 10, .recent = 10, .window = 32, .cold = 11});
  CHECK(slides.cold_slots(60, 40, {32}) == 11);
  CHECK(slides.kept(60, 40, 0, 0, 16) == Keep{.heavy = 0, .recent = 15});
  CHECK(slides.cold_slots(60, 40, {16}) == 0);
}

TEST_CASE("cold tokens that mean nothing are refused by name", "[policy]") {
  for (const auto& [text, wanted] :
       {std::pair{"full:cold=1.0", "cold"},
        {"h2o:0.1:0.1:cold=1", "'cold' is one token; write 1.0"},
        {"h2o:0.1:0.1:cold=all", "cold must be a number of tokens or a share"},
        {"h2o:0.1:0.1:cold=1.5", "cold must be a number of tokens or a share from 0 to 1"},
        {"h2o:0.1:0.1:cold=-3", "cold must be a number of tokens"},
        {"h2o:0.1:0.1:cold=1.0:rest=true", "'rest' needs the numbers of what is evicted"},
        {"h2o:10:10:cold=1.0:positions=rolled", "'positions' is 'rolled', but the few bits of a cold key"}}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(Retention::from_text(text), Contains(wanted));
  }
  const Retention cools = Retention::from_text("h2o:0.1:0.1:cold=1.0");
  CHECK_NOTHROW(policy::check(cools, KvFormat::of(DType::i8)));
  CHECK_NOTHROW(policy::check(Retention{}, KvFormat{}));
  for (const KvFormat& format : {KvFormat{}, KvFormat::of(DType::i4), KvFormat::of(DType::f16)})
    CHECK_THROWS_WITH(policy::check(cools, format), Contains("give --kv-dtype int8"));
}

TEST_CASE("the bits of cold tokens are read, printed and refused", "[policy]") {
  const KvFormat some = KvFormat::from_text("int8:3:2", "x");
  CHECK(some == KvFormat{DType::i8, true, {}, kernels::CoarseBits{3, 2}});
  CHECK(policy::to_text(some, DType::f16) == "int8, cold 3:2, rotated");
  CHECK(KvFormat::from_text("int8", "x") == KvFormat::of(DType::i8));
  CHECK(KvFormat::from_text("auto", "x") == KvFormat{});
  for (const char* text :
       {"int8:", "int8:3", "int8:3:", "int8:0:2", "int8:3:5", "int8:33:2", "int8:3:2:1", "int8:a:2"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(KvFormat::from_text(text, "--kv-dtype"),
                      Contains("--kv-dtype: the bits of cold keys") && Contains(text));
  }
  CHECK_THROWS_WITH(policy::check(KvFormat::from_text("int4:3:2", "x"), "x"), Contains("give --kv-dtype int8"));
  policy::Policy whole;
  whole.kv_format = some;
  CHECK(PartialPolicy::from_json(whole.to_json(), "p.json").kv_format == some);
  const auto json = nlohmann::json::parse(R"({"kv": {"dtype": "int8", "coarse": {"keys": 5, "values": 2}}})");
  CHECK_THROWS_WITH(PartialPolicy::from_json(json, "p.json"), Contains("keys"));
}

TEST_CASE("a footprint counts cold slots to the byte", "[policy]") {
  const Retention retention = Retention::from_text("h2o:0.1:0.1:cold=1.0");
  const test::Made made(test::decoder(2, 512, 8, 1000), 60, 40, 4, test::machine_of({}, {1 << 30, 1 << 30, 0}),
                        retention);
  policy::Policy policy;
  policy.gpu_batch_size = policy.num_gpu_batches = 2;
  policy.retention = retention;
  policy.kv_format = KvFormat::from_text("int8:3:2", "x");
  const policy::Footprint print = policy::footprint(made.model, made.units, policy, made.work, made.sizing);
  const std::uint64_t heads = 2u * static_cast<unsigned>(made.model.kv_heads),
                      dim = static_cast<unsigned>(made.model.head_dim);
  REQUIRE(dim == 64);
  const std::uint64_t fine = 21 * 2 * (dim + 4), cold = 79 * (dim * 3 / 8 + 4 + dim * 2 / 8 + 4), each = 100 * 8 + 4,
                      means = 2 * dim * 4;
  const std::uint64_t bytes = heads * (fine + cold + each + means);
  CHECK(print.kv_buffer_bytes(0) >= bytes);
  CHECK(print.kv_buffer_bytes(0) < bytes + 4096 + 8 * 64);
  // Where a step needs the keys as they are, rows are not less a mean.
  for (const bool sinks : {true, false}) {
    policy::ModelSpec other = made.model;
    if (sinks) other.sinks = true;
    else other.attention_cap = 50;
    const policy::Footprint plain = policy::footprint(other, made.units, policy, made.work, made.sizing);
    CHECK(plain.kv_buffer_bytes(0) < print.kv_buffer_bytes(0));
    CHECK((!plain.kv_shapes[0][0].means && print.kv_shapes[0][0].means));
  }
  policy.kv_format = KvFormat::of(DType::f16);
  CHECK_THROWS_WITH(policy::footprint(made.model, made.units, policy, made.work, made.sizing), Contains("int8"));
}

TEST_CASE("a plan counts cold tokens where a GPU attends them, and what of them crosses the link", "[policy]") {
  struct Seconds {
    double computing, crossing, bytes;
  };
  const auto seconds = [](const char* rule, policy::Fractions kv) {
    const test::DecodeOfRule of = test::decode_of_rule(rule, kv);
    return Seconds{of.busy(offload::Lane::device_compute), of.busy(offload::Lane::host_to_device),
                   double(of.footprint.kv_buffer_bytes(0))};
  };
  const policy::Fractions device{{1, 0, 0}}, host{{0, 1, 0}};
  const char *const few = "h2o:0.05:0.05", *const cools = "h2o:0.05:0.05:cold=1.0",
                    *const half = "h2o:0.05:0.05:cold=0.5";
  const auto of_device = [&](const char* rule) { return seconds(rule, device).computing; };
  CHECK(of_device(few) < of_device(half));
  CHECK(of_device(half) < of_device(cools));
  CHECK(of_device(cools) < of_device("full"));
  CHECK(seconds(cools, device).crossing == 0);
  // All of a buffer crosses in every sweep: a cold token's 4 and 2 bits, where a fine one has 8 and 8.
  const Seconds all = seconds("full", host), cold = seconds(cools, host);
  CHECK(cold.crossing / all.crossing == Approx(cold.bytes / all.bytes).epsilon(0.02));
  CHECK(cold.bytes / all.bytes < 0.55);
}
