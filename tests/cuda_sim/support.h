// tests/cuda_sim/support.h: what the tests of the simulator share.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>
#include <vector>

#include "cusim.h"
#include "kernels/machine/device_cuda.h"

namespace weft::test {

#if defined(__SANITIZE_THREAD__)
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

struct Stream {
  cudaStream_t handle = nullptr;
  Stream() { REQUIRE(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess); }
  Stream(const Stream&) = delete;
  ~Stream() { static_cast<void>(cudaStreamDestroy(handle)); }
  cudaError_t synchronize() const { return cudaStreamSynchronize(handle); }
};
struct Event {
  cudaEvent_t handle = nullptr;
  Event() { REQUIRE(cudaEventCreateWithFlags(&handle, cudaEventDisableTiming) == cudaSuccess); }
  Event(const Event&) = delete;
  ~Event() { static_cast<void>(cudaEventDestroy(handle)); }
};

/// Pinned host memory, every byte 0xFF.
template <class T> struct Pinned {
  T* data = nullptr;
  std::size_t size;
  explicit Pinned(std::size_t n) : size(n) {
    REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&data), n * sizeof(T), cudaHostAllocMapped) == cudaSuccess);
  }
  Pinned(const Pinned&) = delete;
  ~Pinned() { static_cast<void>(cudaFreeHost(data)); }
};

/// Pages that nobody pinned yet.
struct Pages {
  char* data;
  explicit Pages(std::size_t bytes) : data(static_cast<char*>(std::aligned_alloc(4096, bytes))) {}
  Pages(const Pages&) = delete;
  ~Pages() { std::free(data); }
};

template <class... P, class... A>
cudaError_t launch(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, const Stream& stream,
                   A&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream.handle;
  return cudaLaunchKernelEx(&config, kernel, static_cast<P>(std::forward<A>(args))...);
}
/// Launches on a stream of its own and waits.
template <class... P, class... A>
cudaError_t run(void (*kernel)(P...), dim3 grid, dim3 block, std::size_t shared_bytes, A&&... args) {
  const Stream stream;
  const cudaError_t error = launch(kernel, grid, block, shared_bytes, stream, std::forward<A>(args)...);
  return error != cudaSuccess ? error : stream.synchronize();
}

/// Device memory that a kernel works on, with the host's side of it.
template <class T> struct Device {
  T* data = nullptr;
  std::size_t size;
  explicit Device(std::size_t n) : size(n) { REQUIRE(cudaMalloc(&data, n * sizeof(T)) == cudaSuccess); }
  explicit Device(const std::vector<T>& values) : Device(values.size()) {
    const Pinned<T> staging(size);
    std::copy(values.begin(), values.end(), staging.data);
    copy(data, staging.data, cudaMemcpyHostToDevice);
  }
  Device(const Device&) = delete;
  ~Device() { static_cast<void>(cudaFree(data)); }
  std::vector<T> fetch() const {
    const Pinned<T> staging(size);
    copy(staging.data, data, cudaMemcpyDeviceToHost);
    return std::vector<T>(staging.data, staging.data + size);
  }

 private:
  void copy(T* to, const T* from, cudaMemcpyKind kind) const {
    const Stream stream;
    REQUIRE(cudaMemcpyAsync(to, from, size * sizeof(T), kind, stream.handle) == cudaSuccess);
    REQUIRE(stream.synchronize() == cudaSuccess);
  }
};

/// Puts the simulator's configuration back.
struct Restore {
  cusim::Config before = cusim::config();
  ~Restore() { cusim::config() = before; }
};

inline std::string findings() {
  std::string all;
  for (const std::string& finding : cusim::take_findings()) all += finding + "\n";
  return all;
}

struct Outcome {
  bool ended_well = false;  ///< exit code 0
  std::string report;       ///< what it wrote to stderr
};
/// What becomes of a process that runs this test case up to here and then `fault`, for faults that may kill it. There,
/// calls with other names do nothing; the process ends after `fault`.
template <class Fault> Outcome alone(const std::string& name, Fault fault) {
  constexpr const char* kVariable = "WEFT_TEST_ALONE";
  if (const char* chosen = std::getenv(kVariable)) {
    if (chosen == name) {
      fault();
      std::exit(0);
    }
    return {};
  }
  std::array<int, 2> pipe_ends;
  REQUIRE(pipe(pipe_ends.data()) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, pipe_ends[0]);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  std::string program = "/proc/self/exe", test;
  for (const char c : Catch::getResultCapture().getCurrentTestName())
    test += c == ',' ? std::string("\\,") : std::string(1, c);
  std::array<char*, 3> arguments{program.data(), test.data(), nullptr};
  setenv(kVariable, name.c_str(), 1);
  pid_t child = 0;
  const int spawned = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  unsetenv(kVariable);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  REQUIRE(spawned == 0);
  Outcome outcome;
  std::array<char, 4096> buffer;
  for (ssize_t n; (n = read(pipe_ends[0], buffer.data(), buffer.size())) > 0;)
    outcome.report.append(buffer.data(), static_cast<std::size_t>(n));
  close(pipe_ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  outcome.ended_well = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  return outcome;
}

}  // namespace weft::test
