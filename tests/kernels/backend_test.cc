#include "kernels/backend.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <utility>

#include "kernels/backend/attention_ceiling.h"
#include "kernels/backend/kernel_kind.h"
#include "kernels/error.h"
#include "kernels/machine/host_machine.h"
#include "kernels/machine/thread_pool.h"
#include "tests/support/array.h"
#include "tests/support/files.h"
#include "tests/support/numbers.h"

using namespace weft;
using namespace weft::test;

TEST_CASE("memory of every backend is aligned, apart and usable", "[kernels]") {
  Backend& backend = *GENERATE(from_range(every_backend()));
  CAPTURE(backend.name());
  const auto stream = backend.make_stream();
  const auto done = backend.make_event();
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, (std::size_t{6} << 20) + 3}) {
    const auto device = backend.allocate_device(bytes), host = backend.allocate_host(bytes),
               back = backend.allocate_host(bytes);
    for (const auto* memory : {&device, &host, &back}) {
      CHECK((*memory)->bytes() == bytes);
      // The host's own memory begins at a huge page; what CUDA allocates, at a page.
      const bool mapped = memory != &device && backend.name() == "cpu";
      CHECK(reinterpret_cast<std::uintptr_t>((*memory)->data()) % (memory == &device ? 256
                                                                   : mapped          ? 2 << 20
                                                                                     : 4096) ==
            0);
    }
    for (std::size_t i = 0; i < bytes; ++i) host->data()[i] = static_cast<std::byte>(i * 7 + (i >> 8));
    backend.copy(device->data(), host->data(), bytes, *stream);
    backend.copy(back->data(), device->data(), bytes, *stream);
    backend.record(*done, *stream);
    backend.synchronize(*done);
    CHECK(std::memcmp(host->data(), back->data(), bytes) == 0);
  }
}

TEST_CASE("large host memory is copied across every place where a registration may end", "[.][large][gpu]") {
  Backend& backend = *every_backend().back();
  constexpr std::size_t kMiB = 1 << 20, kGiB = 1 << 30, kWindow = 48 * kMiB;
  const std::size_t bytes = std::min(8 * kGiB + 64 * kMiB, backend.host_bytes_free() / 2);
  const auto host = backend.allocate_host(bytes), device = backend.allocate_device(kWindow),
             back = backend.allocate_host(kWindow);
  const auto stream = backend.make_stream();
  const auto done = backend.make_event();
  // Drivers take 4 GiB or all; where they take neither, halves of all, and halves of these.
  for (const std::size_t end : {4 * kGiB, 8 * kGiB, bytes / 2, bytes / 4, 3 * (bytes / 4)}) {
    if (end + kWindow > bytes) continue;  // a machine with little memory
    std::byte* const from = host->data() + end - kWindow / 2 - 24;
    for (std::size_t i = 0; i < kWindow; ++i) from[i] = static_cast<std::byte>(i * 7 + (i >> 9) + end);
    backend.copy(device->data(), from, kWindow, *stream);
    backend.copy(back->data(), device->data(), kWindow, *stream);
    backend.record(*done, *stream);
    backend.synchronize(*done);
    CHECK(std::memcmp(from, back->data(), kWindow) == 0);
  }
}

TEST_CASE("events order streams, and count as reached before they are recorded", "[kernels]") {
  Backend& backend = *GENERATE(from_range(every_backend()));
  const auto first = backend.make_stream(), second = backend.make_stream();
  const auto event = backend.make_event(), done = backend.make_event();
  backend.synchronize(*event);
  const auto from = backend.allocate_host(1 << 20), device = backend.allocate_device(1 << 20),
             to = backend.allocate_host(1 << 20);
  for (int round = 0; round < 20; ++round) {
    std::memset(from->data(), round, 1 << 20);
    backend.copy(device->data(), from->data(), 1 << 20, *first);
    backend.record(*event, *first);
    std::thread other([&] {  // the second lane's thread
      backend.wait(*second, *event);
      backend.copy(to->data(), device->data(), 1 << 20, *second);
      backend.record(*done, *second);
    });
    other.join();
    backend.synchronize(*done);
    REQUIRE(to->data()[(1 << 20) - 1] == static_cast<std::byte>(round));
  }
}

TEST_CASE("every backend refuses memory that it does not have, and says what is there", "[kernels]") {
  Backend& backend = *GENERATE(from_range(every_backend()));
  const std::size_t free = backend.device_bytes_free();
  CHECK(free > 0);
  CHECK_THROWS_AS(backend.allocate_device(std::size_t{1} << 60), CapacityError);
  CHECK_THROWS_AS(backend.allocate_device(SIZE_MAX), CapacityError);
  CHECK_THROWS_WITH(backend.allocate_host(std::size_t{1} << 60), Catch::Contains("wanted 1152921504606846976 bytes"));
}

TEST_CASE("the CPU backend says what it is", "[kernels]") {
  const auto backend = kernels::make_cpu_backend({.threads = 2});
  CHECK(backend->name() == "cpu");
  CHECK_THAT(backend->description(), Catch::Contains("2 threads"));
  CHECK(backend->device_is_host_memory());
  CHECK(backend->product_type(DType::f16) == DType::f32);
  CHECK_THROWS_AS(kernels::make_cpu_backend({.threads = -1}), UsageError);
  CHECK(kernels::processors() >= 1);
}

TEST_CASE("kernels whose bits may differ are told apart", "[kernels]") {
  const std::string mine = kernels::kernel_kind(*kernels::make_cpu_backend({}));
  CHECK(kernels::same_bits(mine, mine));
  CHECK(kernels::same_bits("AVX2", "AVX-512"));
  for (const std::string vectors : {"AVX2", "AVX-512"})
    for (const std::string other :
         {"AVX-512, bfloat16 products", "AVX-512, bfloat16 products by AMX", "plain C++", "CUDA on AVX2", ""}) {
      CHECK_FALSE(kernels::same_bits(vectors, other));
      CHECK_FALSE(kernels::same_bits(other, vectors));
    }
  CHECK_FALSE(kernels::same_bits("AVX-512, bfloat16 products", "AVX-512, bfloat16 products by AMX"));
  CHECK_FALSE(kernels::same_bits("CUDA on a", "CUDA on b"));
}

TEST_CASE("a paced link takes the time that its rate asks for", "[kernels]") {
  const auto backend = kernels::make_cpu_backend({.threads = 1, .link_bytes_per_second = 100e6});
  const auto stream = backend->make_stream();
  const auto from = backend->allocate_host(1 << 20), to = backend->allocate_device(1 << 20);
  std::memset(from->data(), 3, 1 << 20);
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) backend->copy(to->data(), from->data(), 1 << 20, *stream);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  CHECK(seconds >= 5 * (1 << 20) / 100e6);
  CHECK(to->data()[77] == std::byte{3});
}

TEST_CASE("available memory is the tightest of the machine and its control groups", "[kernels]") {
  const TemporaryFolder root;
  const auto put = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    write_text(root / path, text);
  };
  const auto available = [&] { return kernels::memory_available(root.path().string()); };
  put("proc/meminfo", "MemTotal:  2000000 kB\nMemAvailable:    1000 kB\n");
  CHECK(available() == 1024000);
  const auto total = [&] { return kernels::memory_total(root.path().string()); };
  CHECK(total() == 2048000000);

  put("proc/self/cgroup", "0::/jobs/one\n");
  put("sys/fs/cgroup/jobs/one/memory.max", "max\n");
  put("sys/fs/cgroup/jobs/one/memory.current", "900000\n");
  CHECK(available() == 1024000);
  put("sys/fs/cgroup/jobs/memory.max", "950000\n");  // the group above has the limit
  put("sys/fs/cgroup/jobs/memory.current", "900000\n");
  put("sys/fs/cgroup/jobs/memory.stat", "anon 500000\ninactive_file 100000\n");
  CHECK(available() == 150000);
  CHECK(total() == 950000);
  put("sys/fs/cgroup/jobs/memory.current", "2000000\n");
  CHECK(available() == 0);
  // Pages that were read more than once can be given back as well, but for a small part of the limit.
  put("sys/fs/cgroup/jobs/memory.max", "960000\n");
  put("sys/fs/cgroup/jobs/memory.current", "900000\n");
  put("sys/fs/cgroup/jobs/memory.stat", "anon 100000\ninactive_file 100000\nactive_file 600000\n");
  CHECK(available() == 960000 - (900000 - 700000 + 30000));
  put("sys/fs/cgroup/jobs/memory.stat", "active_file 20000\n");
  CHECK(available() == 70000);
  put("sys/fs/cgroup/jobs/memory.high", "max\n");
  CHECK(available() == 70000);
  put("sys/fs/cgroup/jobs/memory.high", "910000\n");  // past it the group is slowed down
  CHECK(available() == 20000);
  CHECK(total() == 910000);

  put("proc/self/cgroup", "3:cpu:/x\n7:hugetlb,memory:/docker/a\n");  // version 1; the container sees its group as root
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
  CHECK(available() == 200000);
  CHECK(total() == 500000);
}

TEST_CASE("processors are those of the affinity mask, or what a control group's quota leaves of them", "[kernels]") {
  const TemporaryFolder root;
  const auto put = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    write_text(root / path, text);
  };
  const auto count = [&] { return kernels::processors(root.path().string()); };
  const auto there = static_cast<int>(kernels::allowed_processors().size());
  REQUIRE(there >= 1);
  CHECK(count() == there);
  put("proc/self/cgroup", "0::/jobs/one\n");
  put("sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  CHECK(count() == there);
  put("sys/fs/cgroup/jobs/cpu.max", "50000 100000\n");  // the group above has the quota; a part counts as one
  CHECK(count() == 1);
  put("sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  CHECK(count() == std::min(there, 2));
  put("sys/fs/cgroup/jobs/cpu.max", "6400000 100000\n");
  CHECK(count() == std::min(there, 64));
  put("proc/self/cgroup", "4:cpu,cpuacct:/docker/a\n");  // version 1; the container sees its group as root
  put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  CHECK(count() == there);
  put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "30000\n");
  CHECK(count() == 1);
  CHECK(kernels::processor_time(root.path().string()) == Approx(0.3));
}

TEST_CASE("the limit of open files is raised as far as it may be", "[kernels]") {
  rlimit before{}, after{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{64, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
  kernels::raise_open_files();
  REQUIRE(getrlimit(RLIMIT_NOFILE, &after) == 0);
  setrlimit(RLIMIT_NOFILE, &before);
  CHECK(after.rlim_cur == before.rlim_max);
}

TEST_CASE("threads that feed a device get cores next to it, and no more than they need", "[kernels]") {
  using kernels::share_cores;
  const auto numbers = [](int first, int end) {
    std::vector<int> all(static_cast<std::size_t>(end - first));
    std::iota(all.begin(), all.end(), first);
    return all;
  };
  const std::vector<int> all = numbers(0, 16);
  const auto shares = share_cores(16, all, {}, 0);
  CHECK(shares.computing == 13);
  CHECK(shares.feeding == numbers(13, 16));
  CHECK(shares.others == numbers(0, 13));
  for (const auto& [count, left] : {std::pair(1, 0), {2, 0}, {3, 0}, {4, 1}, {8, 2}, {12, 3}, {64, 3}}) {
    CHECK(share_cores(count, numbers(0, count), {}, 0).computing == count - left);
    CHECK(share_cores(count, numbers(0, count), {}, 0).feeding.size() == static_cast<std::size_t>(left));
  }
  // The processors of the device's node, as far as they are allowed.
  CHECK(share_cores(16, all, numbers(0, 8), 0).feeding == numbers(5, 8));
  CHECK(share_cores(16, all, numbers(0, 8), 0).others == std::vector<int>{0, 1, 2, 3, 4, 8, 9, 10, 11, 12, 13, 14, 15});
  CHECK(share_cores(16, all, {2, 90, 91}, 0).feeding == std::vector<int>{14, 15, 2});
  // Threads that are asked for are taken as given.
  CHECK(share_cores(16, all, {}, 16).computing == 16);
  CHECK(share_cores(16, all, {}, 16).feeding.empty());
  CHECK(share_cores(16, all, {}, 40).computing == 40);
  CHECK(share_cores(16, all, {}, 40).feeding.empty());
  CHECK(share_cores(16, all, {}, 14).computing == 14);
  CHECK(share_cores(16, all, {}, 14).feeding == numbers(14, 16));
  CHECK(share_cores(16, all, {}, 2).computing == 2);
  CHECK(share_cores(16, all, {}, 2).feeding.size() == 3);
  // A quota of fewer than are allowed, and a mask that cannot be read.
  CHECK(share_cores(4, all, {}, 0).computing == 3);
  CHECK(share_cores(4, all, {}, 0).feeding == numbers(15, 16));
  CHECK(share_cores(16, {}, {}, 0).feeding.empty());
}

TEST_CASE("a pool's threads stay on the processors that it is given", "[kernels]") {
  const std::vector<int> allowed = kernels::allowed_processors(), last = {allowed.back()};
  std::thread([&] {  // so that this program's own thread stays where it may be
    kernels::stay_on({});
    CHECK(kernels::allowed_processors() == allowed);
    kernels::stay_on(last);
    CHECK(kernels::allowed_processors() == last);
  })
      .join();
  kernels::ThreadPool pool(3, last);
  std::atomic<int> present{0}, wrong{0};
  pool.run(3, [&](std::int64_t, int thread) {
    ++present;
    while (present < 3) std::this_thread::yield();  // each takes one
    if (kernels::allowed_processors() != (thread == 0 ? allowed : last)) ++wrong;
  });
  CHECK(wrong == 0);
}

TEST_CASE("memory next to a device is preferred where the system says which that is", "[kernels]") {
  const TemporaryFolder root;
  const auto put = [&](const std::string& device, const std::string& text) {
    std::filesystem::create_directories(root / "sys/bus/pci/devices" / device);
    write_text(root / "sys/bus/pci/devices" / device / "numa_node", text);
  };
  put("0000:3b:00.0", "1\n");
  put("0000:af:00.0", "-1\n");
  put("0000:d8:00.0", "70000\n");
  const auto node = [&](const char* pci) { return kernels::memory_node(pci, root.path().string()); };
  CHECK(node("0000:3B:00.0") == 1);
  CHECK(node("0000:AF:00.0") == -1);
  CHECK(node("0000:D8:00.0") == -1);
  CHECK(node("0000:00:00.0") == -1);
  CHECK(node("") == -1);
  CHECK(node("../devices/0000:3b:00.0") == -1);

  std::filesystem::create_directories(root / "sys/devices/system/node/node1");
  write_text(root / "sys/devices/system/node/node1/cpulist", "4-6,12,20-21\n");
  CHECK(kernels::processors_of_node(1, root.path().string()) == std::vector<int>{4, 5, 6, 12, 20, 21});
  CHECK(kernels::processors_of_node(0, root.path().string()).empty());
  CHECK(kernels::processors_of_node(-1, root.path().string()).empty());

  constexpr std::size_t bytes = 8 << 20;
  const auto memory = kernels::make_cpu_backend({.threads = 1})->allocate_host(bytes);
  for (const int none_or_absent : {-1, 0, 1, 1023}) kernels::prefer_node(memory->data(), bytes, none_or_absent);
  std::memset(memory->data(), 3, bytes);
  CHECK(memory->data()[bytes - 1] == std::byte{3});
}

TEST_CASE("without a GPU, CUDA's libraries or a build with CUDA the CUDA backend says so", "[kernels][cpu]") {
  const auto refusal = [](const char* library) {
    try {
      const auto backend = kernels::make_cuda_backend({.threads = 1, .library = library});
      return "there is a GPU: " + backend->description();
    } catch (const DeviceError& error) {  // by type, though it may have been thrown in the library
      CHECK_THAT(error.what(), Catch::EndsWith("use --backend cpu"));
      return std::string(error.what());
    }
  };
  CHECK(refusal(kernels::CudaOptions().library) != "");
  CHECK_THAT(refusal("libweft_absent.so"), Catch::Contains("built without CUDA (there is no libweft_absent.so)"));
  const TemporaryFolder folder;
  write_text(folder / "libweft_cuda.so", "not a library");
  CHECK_THAT(refusal((folder / "libweft_cuda.so").c_str()),
             Catch::Contains("invalid ELF") || Catch::Contains("too short"));
}

TEST_CASE("the attention ceiling measures blocks of any shape", "[kernels]") {
  kernels::ThreadPool pool(2);
  for (const DType dtype : {DType::f16, DType::i8, DType::i4}) {
    const auto rate = kernels::measure_decode_attention(pool, 1 << 20, 33, 20, dtype, 0.001);
    CHECK((rate.bytes_per_second > 0 && rate.heads_per_second > 0));
  }
  CHECK(kernels::measure_decode_attention(pool, 1 << 20, 33, 20, DType::i8, 0.001, 5).heads_per_second > 0);
  CHECK_THROWS_AS(kernels::measure_decode_attention(pool, 1 << 20, 33, 20, DType::f16, 0.001, 5), UsageError);
  CHECK_THROWS_AS(kernels::measure_decode_attention(pool, 1 << 20, 2, 64, DType::f16, 0.001), UsageError);
  CHECK_THROWS_AS(kernels::measure_decode_attention(pool, 1 << 20, 33, 64, DType::i32, 0.001), UsageError);
}
