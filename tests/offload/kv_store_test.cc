// tests/offload/kv_store_test.cc
#include "offload/kv_store.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/error.h"

using namespace weft;
using namespace weft::offload;
using Catch::Matchers::Contains;

TEST_CASE("the parts of a KV block are aligned, in order and apart", "[offload]") {
  const auto [sequences, heads, slots, head_dim] =
      GENERATE(table<int, int, int, int>({{1, 1, 1, 1}, {3, 2, 7, 12}, {4, 8, 33, 64}, {2, 5, 101, 80}}));
  const DType dtype = GENERATE(DType::f16, DType::f32);
  const bool scores = GENERATE(true, false);
  const KvShape shape{sequences, heads, slots, head_dim, dtype, scores};
  CAPTURE(sequences, heads, slots, head_dim, name_of(dtype), scores);

  const std::size_t places = static_cast<std::size_t>(sequences * heads * slots);
  const auto at = shape.offsets();
  for (const std::size_t offset : {at.k, at.v, at.score, at.position, at.free_slot}) REQUIRE(offset % 64 == 0);
  REQUIRE(at.v >= at.k + places * shape.row_bytes());
  REQUIRE(at.score >= at.v + places * shape.row_bytes());
  REQUIRE(at.position >= at.score + (scores ? places * 4 : 0));
  REQUIRE(at.free_slot >= at.position + places * 4);
  REQUIRE(at.end == at.free_slot + static_cast<std::size_t>(sequences * heads) * 4);
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
}

TEST_CASE("copying the changed ranges carries a step over, and nothing more than it must", "[offload]") {
  const auto seed = GENERATE(range(1, 21));
  CAPTURE(seed);
  std::mt19937 random(static_cast<unsigned>(seed));
  const KvShape shape{1 + static_cast<int>(random() % 5), 1 + static_cast<int>(random() % 4),
                      1 + static_cast<int>(random() % 9), 16, random() % 2 ? DType::f16 : DType::f32, random() % 2 == 0};
  std::vector<std::byte> before(shape.bytes());
  for (auto& byte : before) byte = static_cast<std::byte>(random());
  std::vector<std::byte> after = before;

  std::vector<std::int32_t> free_slot(static_cast<std::size_t>(shape.sequences * shape.kv_heads));
  for (auto& slot : free_slot) slot = static_cast<std::int32_t>(random() % static_cast<unsigned>(shape.slots));
  std::vector<std::int32_t> sequence;
  for (std::int32_t s = 0; s < shape.sequences; ++s)
    if (random() % 3) sequence.push_back(s);
  std::shuffle(sequence.begin(), sequence.end(), random);

  // What a step may write: the rows at the free slots, and anything in scores, positions and free slots.
  const auto at = shape.offsets();
  for (const std::int32_t s : sequence)
    for (int h = 0; h < shape.kv_heads; ++h) {
      const auto head = static_cast<std::size_t>(s * shape.kv_heads + h);
      const std::size_t row = head * static_cast<std::size_t>(shape.slots) + static_cast<std::size_t>(free_slot[head]);
      for (const std::size_t base : {at.k, at.v})
        for (std::size_t i = 0; i < shape.row_bytes(); ++i) after[base + row * shape.row_bytes() + i] ^= std::byte{0xFF};
    }
  if (!sequence.empty())
    for (std::size_t i = at.score; i < at.end; ++i) after[i] = static_cast<std::byte>(random());

  const auto ranges = changed_ranges(shape, free_slot, sequence);
  std::vector<std::byte> copy = before;
  std::size_t bytes = 0, end = 0;
  for (const ByteRange& range : ranges) {
    REQUIRE((bytes == 0 || range.offset > end));  // in order, apart, and merged where they touch
    end = range.offset + range.bytes;
    bytes += range.bytes;
    REQUIRE(end <= shape.bytes());
    std::memcpy(copy.data() + range.offset, after.data() + range.offset, range.bytes);
  }
  REQUIRE(copy == after);
  const std::size_t rows = sequence.size() * static_cast<std::size_t>(shape.kv_heads);
  REQUIRE(bytes == (rows == 0 ? 0 : 2 * rows * shape.row_bytes() + at.end - at.score));
}

TEST_CASE("changed_ranges refuses slots and sequences that are not there", "[offload]") {
  const KvShape shape{2, 1, 4, 8};
  const std::vector<std::int32_t> good{0, 3}, bad{0, 4};
  REQUIRE_THROWS_WITH(changed_ranges(shape, bad, std::vector<std::int32_t>{1}), Contains("slot 4 of 4"));
  REQUIRE_THROWS_WITH(changed_ranges(shape, good, std::vector<std::int32_t>{2}), Contains("sequence 2 of 2"));
  REQUIRE_THROWS_AS(changed_ranges(shape, std::vector<std::int32_t>{0}, {}), UsageError);
}
