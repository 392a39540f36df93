// tests/cuda_sim/host_memory_test.cc: drivers that take host memory in pieces, or not at all.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>

#include "cusim.h"
#include "kernels/backend.h"
#include "kernels/error.h"
#include "kernels/machine/cuda.h"
#include "tests/cuda_sim/reset_after.h"

using namespace weft;
using kernels::Backend;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

std::uint32_t word_at(std::size_t i) { return static_cast<std::uint32_t>(i * 2654435761u >> 3); }

void fill(kernels::Memory& memory) {
  for (std::size_t i = 0; i < memory.bytes(); i += 4) {
    const std::uint32_t word = word_at(i);
    std::memcpy(memory.data() + i, &word, std::min<std::size_t>(4, memory.bytes() - i));
  }
}

/// To the device and back, from `from` bytes into one host buffer to `to` bytes into another.
bool comes_back(Backend& backend, kernels::Memory& host, kernels::Memory& back, std::size_t from, std::size_t to,
                std::size_t bytes) {
  const auto device = backend.allocate_device(bytes);
  const auto stream = backend.make_stream();
  const auto done = backend.make_event();
  backend.copy(device->data(), host.data() + from, bytes, *stream);
  backend.copy(back.data() + to, device->data(), bytes, *stream);
  backend.record(*done, *stream);
  backend.synchronize(*done);
  return std::memcmp(host.data() + from, back.data() + to, bytes) == 0;
}

}  // namespace

TEST_CASE("copies cross the pieces in which a driver pins host memory", "[gpu][faults]") {
  const test::ResetAfter reset_after;
  const int error = GENERATE(as<int>(), cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotSupported,
                             cudaErrorOperatingSystem, cudaErrorUnknown);
  cusim::config().register_most = GENERATE(40 * kMiB, 17 * kMiB);
  cusim::config().register_error = error;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto pinned = cusim::stats().pinned_live;
  {
    const auto host = backend->allocate_host(100 * kMiB + 5), back = backend->allocate_host(100 * kMiB + 5);
    fill(*host);
    CHECK(backend->device_reaches(host->data(), host->bytes()));
    CHECK(backend->warning().empty());
    CHECK(comes_back(*backend, *host, *back, 4096, 0, 96 * kMiB));
    CHECK(comes_back(*backend, *host, *back, 3, 2 * kMiB + 1, 70 * kMiB));
    CHECK(comes_back(*backend, *host, *back, 0, 0, host->bytes()));
  }
  CHECK(cusim::stats().pinned_live == pinned);
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("host memory of more than 4 GiB is copied whole", "[gpu][large]") {
  const test::ResetAfter reset_after;
  cusim::config().register_most = std::size_t{3} << 30;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  constexpr std::size_t bytes = (std::size_t{4} << 30) + 3 * kMiB;
  cusim::config().device_capacity = bytes + (std::size_t{1} << 30);
  const auto host = backend->allocate_host(bytes), device = backend->allocate_device(bytes);
  const auto stream = backend->make_stream();
  const auto done = backend->make_event();
  fill(*host);
  backend->copy(device->data(), host->data(), bytes, *stream);
  backend->record(*done, *stream);
  backend->synchronize(*done);
  std::memset(host->data(), 0, bytes);
  backend->copy(host->data(), device->data(), bytes, *stream);
  backend->record(*done, *stream);
  backend->synchronize(*done);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < bytes; i += 4) {
    std::uint32_t word = 0;
    std::memcpy(&word, host->data() + i, 4);
    wrong += word != word_at(i);
  }
  CHECK(wrong == 0);
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("host memory that the driver does not register comes from cudaHostAlloc, whatever its error",
          "[gpu][faults]") {
  const test::ResetAfter reset_after;
  const int error = GENERATE(as<int>(), cudaErrorInvalidValue, cudaErrorMemoryAllocation, cudaErrorNotSupported,
                             cudaErrorNotPermitted, cudaErrorOperatingSystem, cudaErrorUnknown);
  CAPTURE(error);
  cusim::config().register_most = kMiB;
  cusim::config().register_error = error;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto pinned = cusim::stats().pinned_live;
  SECTION("which has it") {
    const auto host = backend->allocate_host(70 * kMiB), back = backend->allocate_host(70 * kMiB);
    CHECK(reinterpret_cast<std::uintptr_t>(host->data()) % 4096 == 0);
    fill(*host);
    CHECK(backend->device_reaches(host->data(), host->bytes()));
    CHECK(backend->warning().empty());
    CHECK(comes_back(*backend, *host, *back, 0, 0, 70 * kMiB));
  }
  SECTION("which has little: large memory is copied by a ring") {
    cusim::config().host_alloc_most = 65 * kMiB;
    const auto host = backend->allocate_host(70 * kMiB), back = backend->allocate_host(70 * kMiB);
    fill(*host);
    CHECK_FALSE(backend->device_reaches(host->data(), 1));
    CHECK_THAT(backend->warning(),
               Catch::Contains("70 MiB") && Catch::Contains(cudaGetErrorName(static_cast<cudaError_t>(error))) &&
                   Catch::Contains("cudaHostAlloc: cudaErrorMemoryAllocation") && Catch::Contains("slow"));
    CHECK(comes_back(*backend, *host, *back, 0, 0, 70 * kMiB));
    const auto small = backend->allocate_host(2 * kMiB);
    CHECK(backend->device_reaches(small->data(), small->bytes()));
  }
  SECTION("which has nothing: small memory must be pinned") {
    cusim::config().host_alloc_most = 0;
    try {
      backend->allocate_host(2 * kMiB);
      FAIL("small memory must be pinned");
    } catch (const CapacityError& refused) {
      CHECK_THAT(refused.what(), Catch::Contains(cudaGetErrorName(static_cast<cudaError_t>(error))) &&
                                     Catch::Contains("cudaHostAlloc: cudaErrorMemoryAllocation") &&
                                     Catch::Contains("ulimit -l"));
    }
  }
  CHECK(cusim::stats().pinned_live == pinned);
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("small host memory that one call refuses comes from the other", "[gpu][faults]") {
  const test::ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const std::size_t bytes = GENERATE(kMiB / 2, 30 * kMiB + 5);
  CAPTURE(bytes);
  SECTION("cudaHostAlloc refuses") {
    cusim::config().host_alloc_most = 0;
    if (bytes > kMiB) cusim::config().register_most = GENERATE(SIZE_MAX, 20 * kMiB);
  }
  SECTION("registration is refused") { cusim::config().register_most = 0; }
  const auto host = backend->allocate_host(bytes), back = backend->allocate_host(bytes);
  fill(*host);
  CHECK(backend->warning().empty());
  CHECK(backend->device_reaches(host->data(), host->bytes()));
  CHECK(comes_back(*backend, *host, *back, 3, 4097, bytes - 5000));
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("what the system's limit lets be pinned of large host memory is pinned, and leaves room for small memory",
          "[gpu][faults]") {
  const test::ResetAfter reset_after;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto pinned = cusim::stats().pinned_live;
  constexpr std::size_t bytes = 100 * kMiB;
  cusim::config().register_most = 13 * kMiB;  // eight pieces
  cusim::config().pinned_capacity = pinned + 130 * kMiB;
  {
    const auto host = backend->allocate_host(bytes);
    CHECK(cusim::stats().pinned_live == pinned + bytes / 8 * 5);
    CHECK_THAT(backend->warning(), Catch::Contains("37 MiB of host memory are not pinned"));
    CHECK(backend->device_reaches(host->data(), bytes / 8 * 5));
    CHECK_FALSE(backend->device_reaches(host->data(), bytes / 8 * 5 + 1));
    CHECK_FALSE(backend->device_reaches(host->data() + bytes - 1, 1));
    const auto small = backend->allocate_host(8 * kMiB);
    CHECK(backend->device_reaches(small->data(), small->bytes()));
    fill(*host);
    // Across the end of what is pinned, and back.
    const auto device = backend->allocate_device(bytes);
    const auto stream = backend->make_stream();
    const auto done = backend->make_event();
    backend->copy(device->data(), host->data(), bytes, *stream);
    backend->record(*done, *stream);
    backend->synchronize(*done);
    std::memset(host->data(), 0, bytes);
    backend->copy(host->data() + 5, device->data() + 5, bytes - 5, *stream);
    backend->record(*done, *stream);
    backend->synchronize(*done);
    std::size_t wrong = 0;
    for (std::size_t i = 8; i < bytes; i += 4) {
      std::uint32_t word = 0;
      std::memcpy(&word, host->data() + i, 4);
      wrong += word != word_at(i);
    }
    CHECK(wrong == 0);
  }
  CHECK(cusim::stats().pinned_live == pinned);
  CHECK(cusim::take_findings().empty());
}

TEST_CASE("a device that does not register host memory, or has other addresses for it, is not asked to",
          "[gpu][faults]") {
  const test::ResetAfter reset_after;
  (GENERATE(true, false) ? cusim::config().host_register : cusim::config().host_pointer) = false;
  const auto backend = kernels::make_cuda_backend({.threads = 1});
  const auto host = backend->allocate_host(70 * kMiB), back = backend->allocate_host(70 * kMiB);
  fill(*host);
  CHECK(backend->warning().empty());
  CHECK(backend->device_reaches(host->data(), host->bytes()));
  CHECK(comes_back(*backend, *host, *back, 0, 0, 70 * kMiB));
  cusim::config().host_alloc_most = 65 * kMiB;
  const auto pageable = backend->allocate_host(70 * kMiB);
  CHECK_THAT(backend->warning(), Catch::Contains("does not register"));
  fill(*pageable);
  CHECK(comes_back(*backend, *pageable, *back, 0, 0, 70 * kMiB));
  CHECK(cusim::take_findings().empty());
}
