// tests/cuda_sim/include/cusim.h: the control panel of the CUDA simulator, for tests. Product code never includes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace cusim {

enum class Order { forward, reverse, random };              ///< in which the threads of a block advance
enum class Protect { none, keys, pages };                   ///< how host access to device memory is trapped
enum class What { alloc, host_alloc, copy, launch, gemm };  ///< what can be made to fail
constexpr int kWhats = 5;

/// Read when a call needs it; change it only while the device is idle. The environment presets what is named there.
struct Config {
  Order order = Order::forward;  ///< CUSIM_ORDER=forward|reverse|random
  std::uint64_t seed = 1;        ///< CUSIM_SEED: of the random order
  /// CUSIM_LAZY, for example "01": one digit per created stream, repeating. 1: its work runs only when somebody waits
  /// for it or asks after it, so that a missing wait shows.
  std::string lazy;
  int lazy_milliseconds = 60;  ///< after which a lazy stream runs work that nobody asked for
  /// CUSIM_DEVICE_MIB: what the device has.
  std::size_t device_capacity = std::size_t{4} << 30, pinned_capacity = std::size_t{8} << 30;
  /// CUSIM_REGISTER_MIB: one registration of host memory takes at most so many bytes; a larger one fails with
  /// register_error (a cudaError_t, 0: cudaErrorInvalidValue). The drivers' own limits differ.
  std::size_t register_most = SIZE_MAX;
  int register_error = 0;
  std::size_t graph_node_bytes = 16 << 10;  ///< of device memory that a node of an executable graph takes
  bool keeps_graph_memory = false;  ///< what a graph gives back does not become free: only other graphs can have it
  bool loses_graph_memory = false;  ///< nor can they
  bool host_register = true;        ///< cudaDeviceProp::hostRegisterSupported
  bool host_pointer = true;  ///< canUseHostPointerForRegisteredMem; if not, kernels may not use registered memory
  std::size_t host_alloc_most = SIZE_MAX;          ///< a larger cudaHostAlloc fails with cudaErrorMemoryAllocation
  std::size_t malloc_most = std::size_t{1} << 47;  ///< what is larger is no size: cudaErrorInvalidValue
  /// CUSIM_ARCH, for example 90: the compute capability, which says how much shared memory a block may have. By
  /// default the least of those that the project supports.
  int architecture = 75;
  int multiprocessors = 4;
  std::size_t shared_default = 48 << 10;
  std::size_t shared_optin() const;
  bool strict_exit = true;       ///< exited threads at a barrier or in a warp's mask are a finding
  bool pageable_copies = false;  ///< else an async copy to or from pageable memory is a finding
  /// cuBLASLt's heuristic chooses by a product's shape among algorithms that sum in different orders. Else all sums
  /// have one order.
  bool products_by_shape = false;
  bool abort_on_finding = false;  ///< CUSIM_ABORT=1: stops a debugger at the first finding
  /// CUSIM_PROTECT=none|keys|pages. Keys need a processor that has them, else pages. Pages do not trap a host access
  /// while some stream is at work, nor, once all have been idle 64 times, after more than every eighth time.
  Protect protect = Protect::keys;
  /// CUSIM_PTX: a folder of PTX that nvcc made of the sources. Then kernels run as it says, and not as the host's
  /// compiler understood them; see tests/cuda_sim/ptx/README.md.
  std::string ptx;
  bool ptx_counts = false;  ///< CUSIM_PTX_COUNTS: looks at every request to memory, for ptx_counts() in ptx.h
};
Config& config();

struct Stats {
  std::uint64_t graphs = 0;  ///< launched
  std::uint64_t kernels = 0, blocks = 0, threads = 0, switches = 0;
  std::uint64_t wide_atomics = 0;    ///< atomicAdd() on 64 bits: in shared memory a loop on every GPU
  std::uint64_t bank_conflicts = 0;  ///< rows of ldmatrix that met another in their bank of shared memory
  std::uint64_t shared_bytes = 0;    ///< of dynamic shared memory, of all thread blocks together
  std::uint64_t copies = 0, to_device_bytes = 0, to_host_bytes = 0, on_device_bytes = 0;
  std::uint64_t products = 0, slow_products = 0;             ///< by cuBLASLt; with operands off words of 16 bytes
  std::uint64_t executables_live = 0, executables_peak = 0;  ///< graphs that could be launched
  std::uint64_t graph_memory_kept = 0;                       ///< bytes of device_live, by keeps_graph_memory
  std::uint64_t device_live = 0, device_peak = 0, pinned_live = 0, streams_live = 0, events_live = 0;  ///< for leaks
};
Stats stats();
/// How many kernels have run whose name, with its parameters, contains `part`.
std::uint64_t kernels_named(const std::string& part);

/// The n-th call of that kind from now on, from 1, fails with `error` (a cudaError_t): at the call, or, of work that is
/// queued and if `asynchronous`, when it would have run, as a sticky error like that of a broken device.
void fail_nth(What what, std::uint64_t n, int error, bool asynchronous = false);

/// What was misused since the last call; each was also printed to stderr, after "cusim: ".
std::vector<std::string> take_findings();

/// Drains all streams; clears the sticky error, what fail_nth() planted and the findings. Keeps allocations.
void reset();

}  // namespace cusim
