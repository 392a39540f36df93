// tests/offload/disk_faults_test.cc: what the disk store does when the kernel, the disk or the file misbehave.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "offload/disk_store.h"
#include "tests/offload/engines.h"
#include "tests/support/bytes.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::offload;
using Catch::Matchers::Contains;
using test::every_engine;
using test::kMiB;

namespace {

struct Bench {
  test::TemporaryFolder folder;
  std::vector<std::byte> data = test::noise(4 * kMiB + 999, 1);
  test::DiskFaults faults;
  DiskStore store;
  FileId model, spill;
  std::vector<std::byte> memory = std::vector<std::byte>(data.size() + kPage);

  explicit Bench(DiskEngine engine) : store(engine, test::with_faults(faults)) {
    test::write_bytes(folder / "model", data);
    model = store.open(folder / "model");
    spill = store.create_spill(folder.path(), 2 * kMiB);
  }
  std::string model_name() const { return (folder / "model").string(); }
  bool read_model(std::size_t offset = 0) {
    const std::size_t bytes = data.size() - offset;
    store.read({model, offset, bytes}, memory.data());
    return std::equal(memory.data(), memory.data() + bytes, data.data() + offset);
  }
  bool read_spill() {
    store.read({spill, 0, 2 * kMiB}, memory.data());
    return std::equal(memory.data(), memory.data() + 2 * kMiB, data.data());
  }
  void write_spill() { store.write({spill, 0, 2 * kMiB}, data.data()); }
};

/// From now on `number` fails with EPERM in this thread and in those that it starts.
void forbid(int number) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(number), 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    throw std::runtime_error("no seccomp here");
}

}  // namespace

TEST_CASE("short transfers are continued from an aligned place", "[offload]") {
  Bench bench(every_engine());
  const bool aligned = GENERATE(true, false);
  std::mt19937 random(2);
  int shortened = 0;
  bench.faults.before = [&](DiskTransfer& transfer) -> std::optional<std::int64_t> {
    // Progress of at least a page: less than that, and an aligned continuation has to begin where it was.
    if (transfer.bytes > 2 * kPage && random() % 2) {
      transfer.bytes = kPage + (aligned ? round_down(random() % (transfer.bytes - kPage), kPage) : 0);
      ++shortened;
    }
    return std::nullopt;
  };
  REQUIRE(bench.read_model());
  REQUIRE(bench.read_model(77));
  bench.write_spill();
  REQUIRE(bench.read_spill());
  REQUIRE(shortened > 10);
}

TEST_CASE("EINTR and EAGAIN are patience, not failure", "[offload]") {
  Bench bench(every_engine());
  std::mt19937 random(3);
  bench.faults.before = [&](DiskTransfer&) -> std::optional<std::int64_t> {
    const auto dice = random() % 4;
    return dice == 0   ? std::optional<std::int64_t>(-EINTR)
           : dice == 1 ? std::optional<std::int64_t>(-EAGAIN)
                       : std::nullopt;
  };
  REQUIRE(bench.read_model());
  bench.write_spill();
  REQUIRE(bench.read_spill());
}

TEST_CASE(
    "a file system that takes O_DIRECT at open and refuses it later, or refuses a driver's memory, is read "
    "through the page cache",
    "[offload]") {
  Bench bench(GENERATE(DiskEngine::io_uring, DiskEngine::threads));
  const int code = GENERATE(EINVAL, EFAULT);
  bench.faults.before = [&](DiskTransfer& transfer) -> std::optional<std::int64_t> {
    return fcntl(transfer.fd, F_GETFL) & O_DIRECT ? std::optional<std::int64_t>(-code) : std::nullopt;
  };
  REQUIRE(bench.read_model(5));
  bench.write_spill();
  REQUIRE(bench.read_spill());
  REQUIRE_THAT(bench.store.engine_line(), Contains("page cache for " + bench.model_name()));
}

TEST_CASE("an unreadable place is tried three times, then named, and nothing is left in flight", "[offload]") {
  Bench bench(every_engine());
  const int failures = GENERATE(2, 3);
  CAPTURE(failures);
  int left = failures;
  bench.faults.before = [&](DiskTransfer& transfer) -> std::optional<std::int64_t> {
    if (transfer.offset <= 3 * kMiB && transfer.offset + transfer.bytes > 3 * kMiB && left-- > 0) return -EIO;
    return std::nullopt;
  };
  if (failures < 3) {
    REQUIRE(bench.read_model());
  } else {
    REQUIRE_THROWS_WITH(bench.read_model(), Contains(bench.model_name()) && Contains("Input/output error") &&
                                                Contains("at offset") && Contains("check the disk"));
    REQUIRE(bench.faults.in_flight == 0);
    REQUIRE(bench.read_model());  // the store is as good as new
  }
}

TEST_CASE("a failed write is an error at once, and its pages cannot be read", "[offload]") {
  Bench bench(every_engine());
  bench.write_spill();
  const int code = GENERATE(EIO, ENOSPC, EDQUOT);
  bench.faults.before = [&](DiskTransfer& transfer) -> std::optional<std::int64_t> {
    return transfer.write && transfer.offset == kMiB ? std::optional<std::int64_t>(-code) : std::nullopt;
  };
  if (code == EIO) REQUIRE_THROWS_AS(bench.write_spill(), IoError);
  else REQUIRE_THROWS_AS(bench.write_spill(), FullDisk);
  REQUIRE(bench.faults.in_flight == 0);
  REQUIRE_THROWS_WITH(bench.read_spill(), Contains("page 16 holds 0 bytes"));
  bench.faults.before = {};
  bench.write_spill();
  REQUIRE(bench.read_spill());
}

TEST_CASE("a spoiled page is read again once, then named", "[offload]") {
  Bench bench(every_engine());
  bench.write_spill();
  const int spoilings = GENERATE(1, 2);
  int left = spoilings;
  bench.faults.after_read = [&](const DiskTransfer& transfer) {
    const std::uint64_t place = 19 * kSpillPage + 12345;
    if (transfer.offset <= place && place < transfer.offset + transfer.bytes && left-- > 0)
      transfer.data[place - transfer.offset] ^= std::byte{1};
  };
  if (spoilings == 1) REQUIRE(bench.read_spill());
  else
    REQUIRE_THROWS_WITH(bench.read_spill(), Contains("page 19") && Contains("offset 1245184") &&
                                                Contains("not what was written") && Contains("(spill)"));
  REQUIRE(bench.faults.in_flight == 0);
}

TEST_CASE("lost and misdirected writes are seen", "[offload]") {
  Bench bench(every_engine());
  bench.write_spill();
  const bool lost = GENERATE(true, false);
  bench.faults.before = [&](DiskTransfer& transfer) -> std::optional<std::int64_t> {
    if (!transfer.write) return std::nullopt;
    if (lost) return static_cast<std::int64_t>(transfer.bytes);
    transfer.offset = kMiB - transfer.offset;
    return std::nullopt;
  };
  std::reverse(bench.data.begin(), bench.data.begin() + 2 * kMiB);
  bench.write_spill();
  bench.faults.before = {};
  REQUIRE_THROWS_WITH(bench.read_spill(), Contains("write 2") && Contains("not what was written"));
}

TEST_CASE("a file that is cut while in use is an error, not a hang", "[offload]") {
  Bench bench(every_engine());
  const std::size_t left = GENERATE(0, 1, 4096, 10000, 3 * 1048576 + 1808);
  REQUIRE(truncate(bench.model_name().c_str(), static_cast<off_t>(left)) == 0);
  REQUIRE_THROWS_WITH(bench.read_model(),
                      Contains(bench.model_name()) && Contains("changed size while in use (was 4195303 "
                                                               "bytes, is " +
                                                               std::to_string(left) + ")"));
}

TEST_CASE("no more is in flight than promised", "[offload]") {
  Bench bench(every_engine());
  for (int i = 0; i < 3; ++i) REQUIRE(bench.read_model());
  REQUIRE(bench.faults.most_in_flight <= static_cast<int>(DiskIo::kMostInFlight));
  std::vector<ReadRequest> rows;
  for (std::size_t i = 0; i < 1000; ++i) rows.push_back({{bench.model, i * 4000, 100}, bench.memory.data() + i * 100});
  bench.store.read(rows);
  REQUIRE(bench.faults.most_in_flight > 16);
  REQUIRE(bench.faults.most_in_flight <= static_cast<int>(DiskIo::kMostInFlight));
}

TEST_CASE("space that cannot be reserved is a capacity error with both numbers", "[offload]") {
  Bench bench(DiskEngine::threads);  // the engine takes no part in it
  int attempts = 0;
  bench.faults.allocate = [&](std::uint64_t) -> std::optional<int> { return ++attempts > 0 ? ENOSPC : 0; };
  REQUIRE_THROWS_WITH(bench.store.create_spill(bench.folder.path(), 3 * kMiB),
                      Contains("needs 3145728 bytes") && Contains("are free") && Contains("No space left"));
  REQUIRE(attempts > 1);  // what a killed run held comes back a little later

  attempts = 0;
  bench.faults.allocate = [&](std::uint64_t) { return ++attempts < 3 ? std::optional<int>(ENOSPC) : std::nullopt; };
  REQUIRE_NOTHROW(bench.store.create_spill(bench.folder.path(), 3 * kMiB));
}

TEST_CASE("a file system without reservations grows the file instead", "[offload]") {
  Bench bench(every_engine());
  bench.faults.allocate = [](std::uint64_t) { return std::optional<int>(EOPNOTSUPP); };
  const FileId file = bench.store.create_spill(bench.folder.path(), kMiB);
  bench.store.write({file, 0, kMiB}, bench.data.data());
  bench.store.read({file, 0, kMiB}, bench.memory.data());
  REQUIRE(std::equal(bench.data.data(), bench.data.data() + kMiB, bench.memory.data()));
}

TEST_CASE("a real full disk gives back what a failed reservation took", "[offload]") {
  test::TemporaryFolder folder;
  std::string said = "not allowed to mount";
  std::thread thread([&] {  // with a mount table of its own
    if (unshare(CLONE_NEWNS) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", folder.path().c_str(), "tmpfs", 0, "size=2m") != 0)
      return;
    try {
      DiskStore store;
      const FileId small = store.create_spill(folder.path(), kMiB);
      std::vector<std::byte> data(kMiB, std::byte{7}), back(kMiB);
      store.write({small, 0, kMiB}, data.data());
      store.read({small, 0, kMiB}, back.data());
      said = back == data ? "" : "wrong data";
      try {
        store.create_spill(folder.path(), 8 * kMiB);
        said += "no error";
      } catch (const CapacityError& error) {
        said += error.what();
      }
      store.create_spill(folder.path(), kMiB);  // still fits
    } catch (const std::exception& error) {
      said += std::string("; then: ") + error.what();
    }
    umount2(folder.path().c_str(), MNT_DETACH);
  });
  thread.join();
  if (said == "not allowed to mount") WARN("no right to mount a small tmpfs: the seam's ENOSPC must do");
  else
    REQUIRE(said == folder.path().string() +
                        ": the spill file needs 8388608 bytes, 1048576 are free (No space left on "
                        "device); free space, name another directory with --disk-dir, or place less on disk");
}

TEST_CASE("without io_uring the threads take over and say why", "[offload]") {
  Bench bench(DiskEngine::threads);
  std::string line, refused;
  bool equal = false;
  std::thread thread([&] {
    try {
      forbid(SYS_io_uring_setup);
      DiskStore store;
      line = store.engine_line();
      const FileId file = store.open(bench.model_name());
      store.read({file, 0, bench.data.size()}, bench.memory.data());
      equal = std::equal(bench.data.begin(), bench.data.end(), bench.memory.begin());
      DiskStore only(DiskEngine::io_uring);
    } catch (const std::exception& error) {
      refused = error.what();
    }
  });
  thread.join();
  REQUIRE(line ==
          "disk: io_uring not available (Operation not permitted; Docker's default seccomp profile blocks it): "
          "16 I/O threads, O_DIRECT, 1 MiB x 16");
  REQUIRE(equal);
  REQUIRE_THAT(refused, Contains("io_uring is not available: Operation not permitted"));
}

TEST_CASE("a ring that can be made but not used is no ring", "[offload]") {
  std::string line;
  std::thread thread([&] {
    forbid(SYS_io_uring_enter);
    line = DiskStore().engine_line();
  });
  thread.join();
  REQUIRE_THAT(line, Contains("io_uring not available (Operation not permitted"));
}
