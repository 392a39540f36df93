// tests/offload/kv_layout_test.cc
#include "offload/kv_layout.h"

#include <catch2/catch.hpp>
#include <vector>

#include "kernels/ops.h"

using namespace weft;
using namespace weft::offload;

TEST_CASE("the parts of a KV buffer are aligned, in order and apart", "[offload]") {
  const auto [sequences, heads, slots, head_dim] =
      GENERATE(table<int, int, int, int>({{1, 1, 1, 1}, {3, 2, 7, 12}, {4, 8, 33, 64}, {2, 5, 101, 80}}));
  const DType dtype = GENERATE(DType::f16, DType::f32, DType::i8, DType::i4);
  const bool scores = GENERATE(true, false), rest = GENERATE(true, false), key_sums = GENERATE(true, false);
  const bool means = dtype == DType::i8 && !rest && GENERATE(true, false);
  const bool int8_keys = dtype == DType::i4 && GENERATE(true, false);
  const KvShape shape{.sequences = sequences,
                      .kv_heads = heads,
                      .slots = slots,
                      .head_dim = head_dim,
                      .dtype = dtype,
                      .scores = scores,
                      .rest = rest,
                      .int8_keys = int8_keys,
                      .key_sums = key_sums,
                      .means = means};
  CAPTURE(sequences, heads, slots, head_dim, name_of(dtype), scores, rest, int8_keys, key_sums, means);

  const std::size_t places = static_cast<std::size_t>(sequences * heads * slots);
  const auto at = shape.offsets();
  for (const std::size_t offset : {at.k, at.v, at.score, at.position, at.free_slot}) REQUIRE(offset % 64 == 0);
  REQUIRE(at.v >= at.k + places * kernels::kv_row_bytes(int8_keys ? DType::i8 : dtype, head_dim));
  REQUIRE(at.score >= at.v + places * kernels::kv_row_bytes(dtype, head_dim));
  REQUIRE(at.position >= at.score + (scores ? places * 4 : 0));
  REQUIRE(at.free_slot >= at.position + places * 4);
  const std::size_t all_heads = static_cast<std::size_t>(sequences * heads);
  REQUIRE(at.rest >= at.free_slot + all_heads * 4);
  const std::size_t end =
      rest ? at.rest + all_heads * static_cast<std::size_t>(1 + 2 * head_dim) * 4 : at.free_slot + all_heads * 4;
  REQUIRE(at.key_sum >= end);
  const std::size_t sums_end = key_sums ? at.key_sum + all_heads * static_cast<std::size_t>(head_dim) * 4 : end;
  if (key_sums) REQUIRE(at.key_sum % 64 == 0);
  REQUIRE(at.mean >= sums_end);
  if (means) REQUIRE(at.mean % 64 == 0);
  REQUIRE(at.end == (means ? at.mean + all_heads * static_cast<std::size_t>(2 * head_dim) * 4 : sums_end));
  if (rest) REQUIRE(at.rest % 64 == 0);
  REQUIRE(shape.bytes() % 4096 == 0);
  REQUIRE(shape.bytes() >= at.end);
  REQUIRE(shape.bytes() < at.end + 4096);

  std::vector<std::byte> memory(shape.bytes());
  std::byte* const base = memory.data();
  const kernels::KvSlots view = shape.view(base);
  REQUIRE(view.k == base + at.k);
  REQUIRE(view.v == base + at.v);
  REQUIRE((view.score == nullptr) == !scores);
  if (scores) REQUIRE(reinterpret_cast<std::byte*>(view.score) == base + at.score);
  REQUIRE(reinterpret_cast<std::byte*>(view.position) == base + at.position);
  REQUIRE(reinterpret_cast<std::byte*>(view.free_slot) == base + at.free_slot);
  REQUIRE((view.sequences == sequences && view.kv_heads == heads && view.slots == slots && view.head_dim == head_dim));
  REQUIRE(view.dtype == dtype);
  REQUIRE(view.int8_keys == int8_keys);
  REQUIRE(reinterpret_cast<std::byte*>(view.key_sum) == (key_sums ? base + at.key_sum : nullptr));
  REQUIRE(reinterpret_cast<std::byte*>(view.rest) == (rest ? base + at.rest : nullptr));
  REQUIRE(reinterpret_cast<std::byte*>(view.mean) == (means ? base + at.mean : nullptr));
}

TEST_CASE("a quantised row holds its levels in whole words, then a scale and a minimum for each 64 numbers",
          "[offload]") {
  struct Row {
    int head_dim;
    std::size_t int8, int4;
  };
  for (const Row row : {Row{1, 4 + 4, 4 + 4}, Row{8, 8 + 4, 4 + 4}, Row{16, 16 + 4, 8 + 4}, Row{64, 64 + 4, 32 + 4},
                        Row{80, 80 + 8, 40 + 8}, Row{96, 96 + 8, 48 + 8}, Row{112, 112 + 8, 56 + 8},
                        Row{128, 128 + 8, 64 + 8}, Row{256, 256 + 16, 128 + 16}}) {
    CAPTURE(row.head_dim);
    CHECK(KvShape{1, 1, 1, row.head_dim, DType::i8}.value_bytes() == row.int8);
    CHECK(KvShape{1, 1, 1, row.head_dim, DType::i4}.value_bytes() == row.int4);
    for (const DType dtype : {DType::i8, DType::i4})
      for (int d = 0; d < row.head_dim; ++d)
        REQUIRE(kernels::kv_level(dtype, row.head_dim, d).byte <
                static_cast<int>(kernels::kv_level_bytes(dtype, row.head_dim)));
  }
}
