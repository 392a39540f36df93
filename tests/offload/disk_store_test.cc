// tests/offload/disk_store_test.cc: what every engine does with files as they should be.
#include "offload/disk_store.h"

#include <sys/stat.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "tests/offload/engines.h"
#include "tests/support/bytes.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::offload;
using Catch::Matchers::Contains;
using test::every_engine;
using test::kMiB;

namespace {

/// Memory that starts `shift` bytes after a page, and knows when somebody wrote around it.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t shift) : memory_(bytes + shift + 3 * kPage, std::byte{0xA5}), bytes_(bytes) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    first_ = round_up(address, kPage) + kPage + shift - address;
  }
  std::byte* data() { return memory_.data() + first_; }
  bool equals(const std::byte* expected, std::size_t bytes) const {
    return !std::memcmp(&memory_[first_], expected, bytes);
  }
  bool guarded() const {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if ((i < first_ || i >= first_ + bytes_) && memory_[i] != std::byte{0xA5}) return false;
    return true;
  }

 private:
  std::vector<std::byte> memory_;
  std::size_t bytes_, first_ = 0;
};

}  // namespace

TEST_CASE("the checksum is CRC-32C, by instruction and by table", "[offload]") {
  const char* digits = "123456789";
  REQUIRE(crc32c(reinterpret_cast<const std::byte*>(digits), 9) == 0xE3069283u);
  REQUIRE(crc32c(nullptr, 0) == 0);
  const auto data = test::noise(70000, 1);
  for (const std::size_t bytes : {1, 7, 8, 9, 4096, 16367, 16368, 16369, 32736, 65536, 69993})
    for (const std::size_t shift : {0, 1, 7}) {
      CAPTURE(bytes, shift);
      REQUIRE(crc32c(&data[shift], bytes) == crc32c_by_table(&data[shift], bytes));
    }
}

TEST_CASE("every engine reads any range to any address", "[offload]") {
  const DiskEngine engine = every_engine();
  const auto seed = GENERATE(range(1u, 4u));
  CAPTURE(static_cast<int>(engine), seed);
  test::TemporaryFolder folder;
  const auto data = test::noise(5 * kMiB + 1234, seed);
  test::write_bytes(folder / "model", data);
  DiskStore store(engine);
  const FileId file = store.open(folder / "model");
  REQUIRE(store.size(file) == data.size());

  std::mt19937 random(seed);
  const auto odd = [&](std::size_t limit) {
    return random() % 3 == 0 ? round_down(random() % limit, kPage) : random() % limit;
  };
  for (int i = 0; i < 40; ++i) {
    const std::size_t offset = odd(data.size());
    const std::size_t bytes = std::min<std::size_t>(odd(i % 2 ? 20000 : 4 * kMiB) + 1, data.size() - offset);
    const std::size_t shift = random() % 3 == 0 ? random() % kPage : offset % kPage;
    CAPTURE(offset, bytes, shift);
    Guarded memory(bytes, shift);
    store.read({file, offset, bytes}, memory.data());
    REQUIRE(memory.equals(&data[offset], bytes));
    REQUIRE(memory.guarded());
  }
}

TEST_CASE("every engine gathers many small rows in one call", "[offload]") {
  const DiskEngine engine = every_engine();
  test::TemporaryFolder folder;
  const auto data = test::noise(3 * kMiB, 5);
  test::write_bytes(folder / "embedding", data);
  DiskStore store(engine);
  const FileId file = store.open(folder / "embedding");
  for (const std::size_t row : {std::size_t{100}, std::size_t{4096}, std::size_t{7168}}) {
    const std::size_t header = 88, rows = (data.size() - header) / row, count = 500;
    std::mt19937 random(6);
    std::vector<std::byte> gathered(count * row);
    std::vector<std::size_t> ids;
    std::vector<ReadRequest> requests;
    for (std::size_t i = 0; i < count; ++i) {
      ids.push_back(random() % rows);
      requests.push_back({{file, header + ids[i] * row, row}, &gathered[i * row]});
    }
    store.read(requests);
    bool equal = true;
    for (std::size_t i = 0; i < count; ++i)
      equal &= !std::memcmp(&gathered[i * row], &data[header + ids[i] * row], row);
    REQUIRE(equal);
  }
}

TEST_CASE("an aligned superset may run past the end of the file, nothing else may", "[offload]") {
  const DiskEngine engine = every_engine();
  test::TemporaryFolder folder;
  const auto data = test::noise(kMiB + 5000, 7);
  test::write_bytes(folder / "model", data);
  DiskStore store(engine);
  const FileId file = store.open(folder / "model");
  const std::size_t whole = round_up(data.size(), kPage);
  Guarded memory(whole, 0);
  store.read({file, 0, whole}, memory.data());
  REQUIRE(memory.equals(data.data(), data.size()));
  REQUIRE(memory.guarded());
  REQUIRE_NOTHROW(store.read({file, whole, 0}, memory.data()));
  REQUIRE_THROWS_WITH(store.read({file, 0, whole + 1}, memory.data()),
                      Contains((folder / "model").string()) && Contains("is it cut off") && Contains("1053576"));
  REQUIRE_THROWS_AS(store.read({file, UINT64_MAX - 5, 10}, memory.data()), IoError);
  REQUIRE_THROWS_AS(store.write({file, 0, kPage}, memory.data()), UsageError);
}

TEST_CASE("spilled pages come back, whatever their length and address", "[offload]") {
  const DiskEngine engine = every_engine();
  const auto seed = GENERATE(range(1u, 4u));
  test::TemporaryFolder folder;
  DiskStore store(engine);
  const std::size_t pages = 60;
  const FileId file = store.create_spill(folder.path(), pages * kSpillPage);
  REQUIRE(std::filesystem::is_empty(folder.path()));
  std::mt19937 random(seed);
  for (int i = 0; i < 20; ++i) {
    const std::size_t first = random() % pages, limit = (pages - first) * kSpillPage;
    const std::size_t bytes = 1 + random() % limit;
    const std::size_t whole = i % 3 ? std::min<std::size_t>(round_up(bytes, kPage), limit) : bytes;
    const Extent extent{file, first * kSpillPage, whole};
    CAPTURE(seed, i, extent.offset, extent.bytes);
    const auto data = test::noise(whole, seed + static_cast<unsigned>(i));
    Guarded from(whole, random() % 2 ? 0 : random() % kPage), to(whole, random() % 2 ? 0 : random() % kPage);
    std::memcpy(from.data(), data.data(), whole);
    store.write(extent, from.data());
    store.read(extent, to.data());
    REQUIRE(to.equals(data.data(), whole));
    REQUIRE(to.guarded());
  }
  REQUIRE(store.bytes_read() >= store.bytes_written());
  REQUIRE(store.bytes_written() > 0);
}

TEST_CASE("a spill file refuses what it cannot check", "[offload]") {
  test::TemporaryFolder folder;
  DiskStore store;
  const FileId file = store.create_spill(folder.path(), 1);
  REQUIRE(store.size(file) == kSpillPage);
  std::vector<std::byte> memory(2 * kSpillPage);
  REQUIRE_THROWS_WITH(store.read({file, 0, kPage}, memory.data()), Contains("page 0 holds 0 bytes"));
  store.write({file, 0, 2 * kPage}, memory.data());
  REQUIRE_THROWS_WITH(store.read({file, 0, kPage}, memory.data()), Contains("holds 8192 bytes, 4096 are wanted"));
  REQUIRE_THROWS_AS(store.write({file, kPage, kPage}, memory.data()), UsageError);
  REQUIRE_THROWS_AS(store.write({file, 0, 2 * kSpillPage}, memory.data()), IoError);
  REQUIRE_THROWS_AS(store.read({FileId{9}, 0, 1}, memory.data()), UsageError);
}

TEST_CASE("bytes are counted", "[offload]") {
  const DiskEngine engine = every_engine();
  test::TemporaryFolder folder;
  DiskStore store(engine);
  const FileId file = store.create_spill(folder.path(), 4 * kMiB);
  Guarded memory(3 * kMiB, 0);
  store.write({file, 0, 3 * kMiB}, memory.data());
  store.read({file, 0, 3 * kMiB}, memory.data());
  REQUIRE(store.bytes_written() == 3 * kMiB);
  REQUIRE(store.bytes_read() == 3 * kMiB);
}

TEST_CASE("a reading and a writing lane do not disturb each other", "[offload]") {
  const DiskEngine engine = every_engine();
  test::TemporaryFolder folder;
  const auto data = test::noise(2 * kMiB, 11);
  test::write_bytes(folder / "model", data);
  DiskStore store(engine);
  const FileId model = store.open(folder / "model");
  const FileId spill = store.create_spill(folder.path(), 4 * kMiB);
  std::atomic<int> wrong{0};
  std::thread reader([&] {
    std::vector<std::byte> memory(data.size());
    for (int i = 0; i < 10; ++i) {
      store.read({model, 0, data.size()}, memory.data());
      wrong += memory != data;
    }
  });
  std::thread writer([&] {
    for (unsigned i = 0; i < 10; ++i) {
      const auto block = test::noise(kMiB, i);
      std::vector<std::byte> back(kMiB);
      store.write({spill, (i % 4) * kMiB, kMiB}, block.data());
      store.read({spill, (i % 4) * kMiB, kMiB}, back.data());
      wrong += back != block;
    }
  });
  reader.join();
  writer.join();
  REQUIRE(wrong == 0);
}

TEST_CASE("only regular files are opened, and a FIFO stops nobody", "[offload]") {
  test::TemporaryFolder folder;
  DiskStore store;
  REQUIRE_THROWS_WITH(store.open(folder / "absent"), Contains("absent") && Contains("No such file"));
  REQUIRE_THROWS_WITH(store.open(folder.path()), Contains("not a regular file"));
  REQUIRE(mkfifo((folder / "fifo").c_str(), 0600) == 0);
  REQUIRE_THROWS_WITH(store.open(folder / "fifo"), Contains("not a regular file"));
  REQUIRE_THROWS_AS(store.open("/dev/zero"), IoError);
  REQUIRE_THROWS_AS(store.create_spill(folder / "absent", 1), IoError);
  test::write_text(folder / "file", "x");
  REQUIRE_THROWS_WITH(store.create_spill(folder / "file", 1), Contains("Not a directory") && Contains("--disk-dir"));
}

TEST_CASE("a spill file is private and has no name", "[offload]") {
  test::TemporaryFolder folder;
  DiskStore store;
  store.create_spill(folder.path(), kMiB);
  bool found = false;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    const auto target = std::filesystem::read_symlink(entry.path(), ignored).string();
    if (target.find(folder.path().filename().string()) == std::string::npos) continue;
    struct stat status {};
    if (stat(entry.path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    found = true;
    REQUIRE((status.st_mode & 0777) == 0600);
    REQUIRE(status.st_nlink == 0);
    REQUIRE(status.st_blocks * 512 >= static_cast<blkcnt_t>(kMiB));
  }
  REQUIRE(found);
}

TEST_CASE("the store says in one line which engine it uses", "[offload]") {
  REQUIRE(DiskStore(DiskEngine::io_uring).engine_line() == "disk: io_uring, O_DIRECT, 1 MiB x 16");
  REQUIRE(DiskStore(DiskEngine::automatic).engine_line() == "disk: io_uring, O_DIRECT, 1 MiB x 16");
  REQUIRE(DiskStore(DiskEngine::threads).engine_line() == "disk: 16 I/O threads, O_DIRECT, 1 MiB x 16");
  REQUIRE(DiskStore(DiskEngine::buffered).engine_line() == "disk: 16 I/O threads, page cache, 1 MiB x 16");
}
