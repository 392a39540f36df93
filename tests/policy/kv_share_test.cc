// What a share of the KV cache's bytes is spent on.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "kernels/coarse_row.h"
#include "kernels/kv_row.h"
#include "policy/layout/kv_share.h"

using namespace weft;
using Catch::Contains;
using policy::choose_for_share;
using policy::PartialPolicy;

namespace {

/// The bytes of a choice's keys and values as a share of those in 16 bits.
double spent(const policy::KvChoice& choice, int head_dim) {
  constexpr std::int64_t all = 1'000'000;
  const policy::Retention retention = policy::Retention::from_text(choice.retention);
  const policy::KvFormat format = policy::KvFormat::from_text(choice.format, "test");
  const kernels::Keep keep = retention.kept(all, 0);
  const DType type = format.dtype.value_or(DType::f16);
  double bytes = 2.0 * double(keep.of_prompt()) * double(kernels::kv_row_bytes(type, head_dim));
  if (format.coarse)
    bytes += double(keep.cold) * double(kernels::coarse_row_bytes(format.coarse->keys, head_dim) +
                                        kernels::coarse_row_bytes(format.coarse->values, head_dim));
  return bytes / (2.0 * all * double(bytes_of(DType::f16, head_dim)));
}

}  // namespace

TEST_CASE("auto spends the share of bytes that it is given", "[policy]") {
  for (const int head_dim : {16, 64, 80, 128, 256})
    for (const double share : {0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5}) {
      CAPTURE(head_dim, share);
      const policy::KvChoice choice = choose_for_share(share, head_dim);
      CAPTURE(choice.retention, choice.format);
      CHECK(spent(choice, head_dim) <= share);
      CHECK(spent(choice, head_dim) > share - 0.001);
    }
}

TEST_CASE("auto chooses what was measured to lose least", "[policy]") {
  const auto chosen = [](double share) {
    const policy::KvChoice choice = choose_for_share(share, 64);
    return choice.retention + " " + choice.format;
  };
  CHECK(chosen(1) == "full auto");
  CHECK(chosen(0.6) == "full int8");
  CHECK(chosen(0.25) == "h2o:0.0500:0.0500:cold=1.0 int8:4:2");
  CHECK(chosen(0.2) == "h2o:0.0181:0.0181:cold=1.0 int8:3:2");
}

TEST_CASE("auto stands in place of a retention and a KV format", "[policy]") {
  const auto read = [](const char* json) { return PartialPolicy::from_json(nlohmann::json::parse(json), "p.json"); };
  PartialPolicy policy = read(R"({"retention": {"rule": "auto", "share": 0.25}})");
  CHECK(policy.kv_share == 0.25);
  CHECK_FALSE(policy.retention);
  const auto choice = policy::settle_kv_share(policy, 64);
  REQUIRE(choice);
  CHECK(policy.retention == policy::Retention::from_text(choice->retention));
  CHECK(policy.kv_format == policy::KvFormat::from_text("int8:4:2", "test"));
  CHECK_FALSE(policy.kv_share);
  CHECK_FALSE(policy::settle_kv_share(policy, 64));

  PartialPolicy file = read(R"({"retention": {"rule": "auto", "share": 0.5}})"), flags;
  CHECK(flags.over(file).kv_share == 0.5);
  flags.retention = policy::Retention{};
  CHECK_FALSE(flags.over(file).kv_share);
  file = read(R"({"retention": {"rule": "full"}})"), flags = {};
  flags.kv_share = 0.5;
  CHECK(flags.over(file).kv_share == 0.5);
  CHECK_FALSE(flags.over(file).retention);

  CHECK(policy::kv_share_from_text("auto:0.2", "--retention") == 0.2);
  CHECK_FALSE(policy::kv_share_from_text("h2o:0.1:0.1", "--retention"));
}

TEST_CASE("shares that mean nothing are refused by name", "[policy]") {
  for (const char* text : {"auto:", "auto:0", "auto:1.5", "auto:-1", "auto:nan", "auto:0.2x", "auto:0.2:sinks=4"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH(policy::kv_share_from_text(text, "--retention"), Contains("auto:SHARE") && Contains(text));
  }
  for (const char* json : {R"({"retention": {"rule": "auto"}})", R"({"retention": {"rule": "auto", "share": 0}})",
                           R"({"retention": {"rule": "auto", "share": 2}})",
                           R"({"retention": {"rule": "auto", "share": 0.2, "sinks": 4}})"}) {
    CAPTURE(json);
    CHECK_THROWS_WITH(PartialPolicy::from_json(nlohmann::json::parse(json), "p.json"), Contains("retention"));
  }
  PartialPolicy both;
  both.kv_share = 0.25, both.kv_format = policy::KvFormat{};
  CHECK_THROWS_WITH(policy::settle_kv_share(both, 64), Contains("leave out --kv-dtype"));
}
