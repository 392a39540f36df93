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
