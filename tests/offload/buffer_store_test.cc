// tests/offload/buffer_store_test.cc
#include "offload/buffer_store.h"

#include <catch2/catch.hpp>

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/error.h"
#include "tests/support/bytes.h"
#include "tests/support/threaded_backend.h"

using namespace weft;
using namespace weft::offload;
using Catch::Matchers::Contains;

namespace {

/// Allows just as many bytes as were counted.
class TightBackend : public test::ThreadedBackend {
 public:
  std::unique_ptr<kernels::Memory> allocate_device(std::size_t bytes) override {
    device = bytes;
    return test::ThreadedBackend::allocate_device(bytes);
  }
  std::unique_ptr<kernels::Memory> allocate_host(std::size_t bytes) override {
    host.push_back(bytes);
    return test::ThreadedBackend::allocate_host(bytes);
  }
  std::size_t device = 0;
  std::vector<std::size_t> host;  // one for each call
};

struct Place {
  std::byte* begin;
  std::size_t bytes;
};

}  // namespace

TEST_CASE("what is allocated is what was counted, and all of it is apart", "[offload]") {
  const auto seed = GENERATE(range(1u, 6u));
  std::mt19937 random(seed);
  BufferStore buffers;
  std::array<std::array<std::size_t, kKinds.size()>, 3> expected{};
  std::array<std::size_t, 3> in_windows{};
  std::size_t in_place = 0;  // bytes of host memory, with padding
  std::vector<BufferId> ids;
  std::vector<WindowId> windows;
  for (int i = 0; i < 40; ++i) {
    const Kind kind = kKinds[random() % kKinds.size()];
    const std::size_t bytes = random() % 20000;
    const Tier tier = kTiers[random() % 3];
    const Use use = random() % 2 ? Use::in_place : Use::copied;
    if (i % 8 == 0) {
      const Tier memory = kTiers[random() % 2];
      windows.push_back(buffers.add_window(memory, static_cast<int>(random() % 4), bytes, use));
      if (memory == Tier::host && use == Use::in_place)
        in_place += static_cast<std::size_t>(buffers.slots(windows.back())) * round_up(bytes, kPage);
      in_windows[static_cast<std::size_t>(memory)] +=
          static_cast<std::size_t>(buffers.slots(windows.back())) * round_up(bytes, kPage);
    } else {
      ids.push_back(buffers.add(kind, bytes, tier, {}, use));
      if (tier == Tier::host && use == Use::in_place) in_place += round_up(bytes, kPage);
      expected[static_cast<std::size_t>(tier)][static_cast<std::size_t>(kind)] += bytes;
    }
  }
  for (const Tier tier : kTiers) REQUIRE(buffers.window_bytes(tier) == in_windows[static_cast<std::size_t>(tier)]);
  for (const Tier tier : kTiers)
    for (const Kind kind : kKinds)
      REQUIRE(buffers.bytes(tier, kind) == expected[static_cast<std::size_t>(tier)][static_cast<std::size_t>(kind)]);

  test::TemporaryFolder folder;
  TightBackend backend;
  DiskStore disk;
  buffers.allocate(backend, disk, folder.path());
  REQUIRE(backend.device == buffers.bytes(Tier::device));
  // What ops use in place is pinned before all else.
  REQUIRE(backend.host == std::vector<std::size_t>{in_place, buffers.bytes(Tier::host) - in_place});
  REQUIRE(disk.size(FileId{0}) == buffers.bytes(Tier::disk));
  REQUIRE(buffers.spill_bytes() == buffers.bytes(Tier::disk));

  // Every place gets its own pattern; then all must still be there.
  std::vector<Place> places;
  for (const BufferId id : ids) {
    if (buffers.home(id) != Tier::disk) places.push_back({buffers.home_data(id), buffers.bytes(id)});
    else REQUIRE(buffers.home_data(id) == nullptr);
  }
  for (const WindowId window : windows)
    for (int s = 0; s < buffers.slots(window); ++s) {
      REQUIRE(reinterpret_cast<std::uintptr_t>(buffers.slot(window, s)) % kPage == 0);
      places.push_back({buffers.slot(window, s),
                        s > 0 ? static_cast<std::size_t>(buffers.slot(window, s) - buffers.slot(window, s - 1)) : 1});
    }
  for (std::size_t i = 0; i < places.size(); ++i) std::memset(places[i].begin, static_cast<int>(i), places[i].bytes);
  for (const BufferId id : ids)
    if (buffers.home(id) == Tier::disk)
      buffers.write_to_disk(id, test::noise(buffers.bytes(id), static_cast<unsigned>(id)).data());
  for (std::size_t i = 0; i < places.size(); ++i)
    for (std::size_t b = 0; b < places[i].bytes; ++b)
      if (places[i].begin[b] != static_cast<std::byte>(i)) FAIL("place " << i << " was overwritten at " << b);
  for (const BufferId id : ids)
    if (buffers.home(id) == Tier::disk) {
      std::vector<std::byte> back(buffers.bytes(id));
      buffers.read_from_disk(id, back.data());
      REQUIRE(back == test::noise(buffers.bytes(id), static_cast<unsigned>(id)));
    }
}

TEST_CASE("a buffer on disk can be a checkpoint's own ranges", "[offload]") {
  test::TemporaryFolder folder;
  const auto a = test::noise(300000, 1), b = test::noise(50000, 2);
  test::write_bytes(folder / "a", a);
  test::write_bytes(folder / "b", b);
  DiskStore disk;
  const FileId file_a = disk.open(folder / "a"), file_b = disk.open(folder / "b");

  // Three tensors of two files; the first keeps its place modulo a page.
  const std::vector<FilePart> parts{
      {{file_a, 4096 + 88, 200000}, 88}, {{file_b, 7, 3000}, 204800}, {{file_b, 40000, 10000}, 208000}};
  const Tier home = GENERATE(Tier::disk, Tier::host);
  BufferStore buffers;
  const BufferId buffer = buffers.add(Kind::weights, 220000, home, parts);
  REQUIRE(buffers.spill_bytes() == 0);
  REQUIRE(buffers.bytes(home, Kind::weights) == 220000);
  REQUIRE(buffers.read_only(buffer) == (home == Tier::disk));
  test::ThreadedBackend backend;
  buffers.allocate(backend, disk, "/nonexistent");

  std::vector<std::byte> expected(220000, std::byte{0x5A});
  std::memcpy(&expected[88], &a[4096 + 88], 200000);
  std::memcpy(&expected[204800], &b[7], 3000);
  std::memcpy(&expected[208000], &b[40000], 10000);
  std::vector<std::byte> memory(220000, std::byte{0x5A});
  buffers.read_from_disk(buffer, memory.data());
  REQUIRE(memory == expected);
  REQUIRE_THROWS_AS(buffers.write_to_disk(buffer, memory.data()), UsageError);

  std::vector<std::byte> rows(3 * 500);
  const std::vector<BufferStore::PartRead> reads{
      {100, 500, rows.data()}, {150000, 500, &rows[500]}, {209000, 500, &rows[1000]}};
  buffers.read_parts(buffer, reads);
  for (std::size_t i = 0; i < reads.size(); ++i) REQUIRE(!std::memcmp(&rows[i * 500], &expected[reads[i].offset], 500));
}

TEST_CASE("rows of a spilled buffer are read through its checked pages", "[offload]") {
  const auto seed = GENERATE(range(1u, 4u));
  test::TemporaryFolder folder;
  DiskStore disk;
  test::ThreadedBackend backend;
  BufferStore buffers;
  buffers.add(Kind::kv, 70000, Tier::disk);
  const std::size_t bytes = 6000123;
  const BufferId buffer = buffers.add(Kind::weights, bytes, Tier::disk);
  buffers.allocate(backend, disk, folder.path());
  const auto data = test::noise(bytes, seed);
  buffers.write_to_disk(buffer, data.data());

  std::mt19937 random(seed);
  for (const std::size_t row : {std::size_t{64}, std::size_t{10000}, std::size_t{100000}, std::size_t{1000000}}) {
    std::vector<std::size_t> offsets;  // of rows that end with the buffer
    for (std::size_t offset = bytes % row; offset < bytes; offset += row)
      if (random() % (row == 64 ? 50 : 2) == 0 || offset + row == bytes) offsets.push_back(offset);
    std::vector<std::byte> rows(offsets.size() * row);
    std::vector<BufferStore::PartRead> reads;
    for (std::size_t i = 0; i < offsets.size(); ++i) reads.push_back({offsets[i], row, &rows[i * row]});
    const std::uint64_t before = disk.bytes_read();
    buffers.read_parts(buffer, reads);
    REQUIRE(disk.bytes_read() - before <= bytes + 2 * kSpillPage);  // each page once
    bool equal = true;
    for (std::size_t i = 0; i < offsets.size(); ++i) equal &= !std::memcmp(&rows[i * row], &data[offsets[i]], row);
    REQUIRE(equal);
  }
  const BufferStore::PartRead outside{bytes - 1, 2, nullptr};
  REQUIRE_THROWS_AS(buffers.read_parts(buffer, {&outside, 1}), UsageError);
}

TEST_CASE("the first bytes of a spilled buffer can be written and read by themselves", "[offload]") {
  test::TemporaryFolder folder;
  DiskStore disk;
  test::ThreadedBackend backend;
  BufferStore buffers;
  const std::size_t bytes = 3 * kSpillPage + 5000;
  const BufferId buffer = buffers.add(Kind::activations, bytes, Tier::disk);
  buffers.allocate(backend, disk, folder.path());
  std::vector<std::byte> memory(bytes);
  const auto first = test::noise(bytes, 1), second = test::noise(bytes, 2);
  buffers.write_to_disk(buffer, first.data());
  for (const std::size_t part : {std::size_t{100}, kSpillPage, 2 * kSpillPage + 1, bytes - 1, bytes}) {
    buffers.write_to_disk(buffer, second.data(), part);
    for (const std::size_t wanted : {std::size_t{1}, part / 2 + 1, part}) {
      buffers.read_from_disk(buffer, memory.data(), wanted);
      REQUIRE(!std::memcmp(memory.data(), second.data(), wanted));
    }
  }
  REQUIRE_THROWS_AS(buffers.write_to_disk(buffer, memory.data(), bytes + 1), UsageError);
}

TEST_CASE("a buffer store refuses what cannot be", "[offload]") {
  BufferStore buffers;
  REQUIRE_THROWS_WITH(buffers.add(Kind::weights, 100, Tier::disk, {{{FileId{0}, 0, 60}, 50}}),
                      Contains("60 bytes at 50") && Contains("100 bytes"));
  REQUIRE_THROWS_AS(buffers.add(Kind::weights, 100, Tier::disk, {{{FileId{0}, 0, 60}, SIZE_MAX}}), UsageError);
  REQUIRE_THROWS_AS(buffers.add_window(Tier::disk, 1, 1), UsageError);
  REQUIRE_THROWS_AS(buffers.add_window(Tier::host, -1, 1), UsageError);
  const BufferId on_host = buffers.add(Kind::kv, 100, Tier::host), spilled = buffers.add(Kind::kv, 100, Tier::disk);
  test::ThreadedBackend backend;
  DiskStore disk;
  REQUIRE_THROWS_AS(buffers.allocate(backend, disk, "/nonexistent"), IoError);
  test::TemporaryFolder folder;
  BufferStore good;
  REQUIRE(good.add(Kind::kv, 100, Tier::host) == on_host);
  REQUIRE(good.add(Kind::kv, 100, Tier::disk) == spilled);
  good.allocate(backend, disk, folder.path());
  std::byte memory[100];
  REQUIRE_THROWS_AS(good.read_from_disk(on_host, memory), UsageError);
  REQUIRE_THROWS_AS(good.write_to_disk(on_host, memory), UsageError);
  REQUIRE_THROWS_WITH(good.read_from_disk(spilled, memory), Contains("holds 0 bytes"));
}
