// tests/cuda_sim/state.cc: configuration, errors, findings and planted failures.
#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "internal.h"

namespace cusim {
namespace {

struct Planted {
  std::uint64_t calls_left;
  int error;
  bool asynchronous;
};

std::atomic<int> sticky_error{0};
thread_local cudaError_t last_error = cudaSuccess;
Planted planted[kWhats];  // under the lock

struct Findings {
  std::mutex mutex;  // not the simulator's lock: a finding may order what it likes
  std::vector<std::string> all;
};
Findings& findings() {
  static Findings& all = *new Findings;  // outlives the workers
  return all;
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

Config from_environment() {
  Config c;
  const std::string order = environment("CUSIM_ORDER"), protect = environment("CUSIM_PROTECT");
  c.order = order == "reverse" ? Order::reverse : order == "random" ? Order::random : Order::forward;
  c.protect = protect == "none" ? Protect::none : protect == "pages" ? Protect::pages : Protect::keys;
  if (const std::string seed = environment("CUSIM_SEED"); !seed.empty()) c.seed = std::stoull(seed);
  if (const std::string arch = environment("CUSIM_ARCH"); !arch.empty()) c.architecture = std::stoi(arch);
  if (const std::string most = environment("CUSIM_REGISTER_MIB"); !most.empty())
    c.register_most = std::stoull(most) << 20;
  if (const std::string memory = environment("CUSIM_DEVICE_MIB"); !memory.empty())
    c.device_capacity = std::stoull(memory) << 20;
  c.lazy = environment("CUSIM_LAZY");
  c.ptx = environment("CUSIM_PTX");
  c.ptx_counts = !environment("CUSIM_PTX_COUNTS").empty();
  c.abort_on_finding = !environment("CUSIM_ABORT").empty();
  return c;
}

}  // namespace

std::mutex& mutex() {
  static std::mutex& one = *new std::mutex;
  return one;
}

Config& config() {
  static Config& c = *new Config(from_environment());  // outlives the workers
  return c;
}

int compiled_for() { return config().ptx.empty() ? 80 : config().architecture; }

std::size_t Config::shared_optin() const {
  constexpr std::size_t kib = 1024;
  if (architecture >= 120) return 99 * kib;
  if (architecture >= 90) return 227 * kib;
  if (architecture == 80 || architecture == 87) return 163 * kib;
  return (architecture > 80 ? 99 : 64) * kib;
}

Stats& counters() {
  static Stats all;
  return all;
}
Stats stats() {
  Lock lock;
  return counters();
}

void set_sticky(cudaError_t error) {
  int none = 0;
  sticky_error.compare_exchange_strong(none, error);
}
cudaError_t sticky() { return static_cast<cudaError_t>(sticky_error.load()); }
cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

void finding(const char* kind, const std::string& text) {
  std::fprintf(stderr, "cusim: %s: %s\n", kind, text.c_str());
  if (config().abort_on_finding) std::abort();
  std::lock_guard lock(findings().mutex);
  findings().all.push_back(std::string(kind) + ": " + text);
}
std::vector<std::string> take_findings() {
  std::lock_guard lock(findings().mutex);
  return std::exchange(findings().all, {});
}

void fail_nth(What what, std::uint64_t n, int error, bool asynchronous) {
  Lock lock;
  planted[static_cast<int>(what)] = {n, error, asynchronous};
}
Injected injected(What what) {
  Lock lock;
  Planted& p = planted[static_cast<int>(what)];
  Injected result;
  if (p.calls_left > 0 && --p.calls_left == 0)
    (p.asynchronous ? result.later : result.now) = static_cast<cudaError_t>(p.error);
  return result;
}

void reset() {
  drain_all();
  take_findings();
  Lock lock;
  sticky_error = 0;
  last_error = cudaSuccess;
  for (Planted& p : planted) p = {};
}

}  // namespace cusim

extern "C" {
cudaError_t cudaPeekAtLastError() {
  const cudaError_t broken = cusim::sticky();
  return broken != cudaSuccess ? broken : cusim::last_error;
}
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  cusim::last_error = cudaSuccess;
  return error;
}
const char* cudaGetErrorName(cudaError_t error) {
#define CUSIM_NAME(name) \
  case name: return #name;
  switch (error) {
    CUSIM_NAME(cudaSuccess)
    CUSIM_NAME(cudaErrorInvalidValue)
    CUSIM_NAME(cudaErrorMemoryAllocation)
    CUSIM_NAME(cudaErrorInvalidConfiguration)
    CUSIM_NAME(cudaErrorNoDevice)
    CUSIM_NAME(cudaErrorInvalidDevice)
    CUSIM_NAME(cudaErrorECCUncorrectable)
    CUSIM_NAME(cudaErrorOperatingSystem)
    CUSIM_NAME(cudaErrorInvalidResourceHandle)
    CUSIM_NAME(cudaErrorNotReady)
    CUSIM_NAME(cudaErrorNotPermitted)
    CUSIM_NAME(cudaErrorNotSupported)
    CUSIM_NAME(cudaErrorStreamCaptureUnsupported)
    CUSIM_NAME(cudaErrorStreamCaptureInvalidated)
    CUSIM_NAME(cudaErrorIllegalAddress)
    CUSIM_NAME(cudaErrorHostMemoryAlreadyRegistered)
    CUSIM_NAME(cudaErrorHostMemoryNotRegistered)
    CUSIM_NAME(cudaErrorMisalignedAddress)
    CUSIM_NAME(cudaErrorLaunchFailure)
    CUSIM_NAME(cudaErrorUnknown)
  }
#undef CUSIM_NAME
  return "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    default: return cudaGetErrorName(error);
  }
}
}
