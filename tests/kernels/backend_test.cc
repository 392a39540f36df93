#include "kernels/backend.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "kernels/backend/attention_ceiling.h"
#include "kernels/backend/kernel_kind.h"
#include "kernels/error.h"
#include "kernels/machine/host_machine.h"
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
      CHECK(reinterpret_cast<std::uintptr_t>((*memory)->data()) % (memory == &device ? 256 : 2 << 20) == 0);
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

TEST_CASE("kernels that sum in another order are told apart", "[kernels]") {
  const std::string mine = kernels::kernel_kind(*kernels::make_cpu_backend({}));
  CHECK(kernels::same_bits(mine, mine));
  CHECK(kernels::same_bits("AVX2", "AVX-512"));
  for (const std::string vectors : {"AVX2", "AVX-512"})
    for (const std::string other : {"plain C++", "CUDA on AVX2", ""}) {
      CHECK_FALSE(kernels::same_bits(vectors, other));
      CHECK_FALSE(kernels::same_bits(other, vectors));
    }
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

  put("proc/self/cgroup", "3:cpu:/x\n7:hugetlb,memory:/docker/a\n");  // version 1; the container sees its group as root
  put("sys/fs/cgroup/memory/memory.limit_in_bytes", "500000\n");
  put("sys/fs/cgroup/memory/memory.usage_in_bytes", "300000\n");
  CHECK(available() == 200000);
  CHECK(total() == 500000);
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
  CHECK_THROWS_AS(kernels::measure_decode_attention(pool, 1 << 20, 2, 64, DType::f16, 0.001), UsageError);
  CHECK_THROWS_AS(kernels::measure_decode_attention(pool, 1 << 20, 33, 64, DType::i32, 0.001), UsageError);
}
