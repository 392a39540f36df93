// tests/cuda_sim/internal.h: what the simulator's own sources share.
//
// They must not be compiled with -fsanitize=thread: they tell the sanitizer which accesses the device orders, where it
// would otherwise infer that from the simulator's own locks and find no race in the program.
#pragma once

#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "cusim.h"

extern "C" {  // there only where the program is linked with the sanitizer in question
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned);
[[gnu::weak]] void __tsan_destroy_fiber(void*);
[[gnu::weak]] void __tsan_switch_to_fiber(void*, unsigned);
[[gnu::weak]] void __tsan_acquire(void*);
[[gnu::weak]] void __tsan_release(void*);
[[gnu::weak]] void AnnotateIgnoreSyncBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreSyncEnd(const char*, int);
[[gnu::weak]] void AnnotateIgnoreReadsBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreReadsEnd(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesBegin(const char*, int);
[[gnu::weak]] void AnnotateIgnoreWritesEnd(const char*, int);
[[gnu::weak]] void __sanitizer_start_switch_fiber(void**, const void*, std::size_t);
[[gnu::weak]] void __sanitizer_finish_switch_fiber(void*, const void**, std::size_t*);
[[gnu::weak]] void __asan_poison_memory_region(const volatile void*, std::size_t);
[[gnu::weak]] void __asan_unpoison_memory_region(const volatile void*, std::size_t);
}

namespace cusim {

constexpr unsigned char kPoison = 0xFF;  // NaN in every float format, -1 in integers
constexpr std::size_t kPage = 4096;

inline bool thread_sanitizer() { return __tsan_create_fiber != nullptr; }
inline bool address_sanitizer() { return __asan_poison_memory_region != nullptr; }
/// Whether the thread sanitizer sees the threads of a block as threads, so that it finds races among them. It takes
/// hours over whole models; CUSIM_ONE_THREAD shows it a stream as one thread.
inline bool shows_device_threads() {
  static const bool shows = thread_sanitizer() && std::getenv("CUSIM_ONE_THREAD") == nullptr;
  return shows;
}
inline void acquire(void* tag) {
  if (thread_sanitizer()) __tsan_acquire(tag);
}
inline void release(void* tag) {
  if (thread_sanitizer()) __tsan_release(tag);
}
inline void set_valid(void* p, std::size_t bytes, bool valid) {  // in the address sanitizer's eyes
  if (!address_sanitizer()) return;
  if (valid) __asan_unpoison_memory_region(p, bytes);
  else __asan_poison_memory_region(p, bytes);
}
/// What this thread does meanwhile orders nothing in the thread sanitizer's eyes, and races with nothing.
struct Unseen {
  Unseen() {
    if (!thread_sanitizer()) return;
    AnnotateIgnoreSyncBegin(__FILE__, __LINE__);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~Unseen() {
    if (!thread_sanitizer()) return;
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
    AnnotateIgnoreSyncEnd(__FILE__, __LINE__);
  }
};

// state.cc
std::mutex& mutex();
/// The simulator's one lock. Never held while device work runs.
struct Lock {
  Unseen unseen;
  std::unique_lock<std::mutex> lock{mutex()};
};
Stats& counters();  ///< under the lock
void finding(const char* kind, const std::string& text);
void set_sticky(cudaError_t error);       ///< the first one stays
cudaError_t sticky();                     ///< the device is broken, and nothing runs any more, unless cudaSuccess
cudaError_t remember(cudaError_t error);  ///< for cudaGetLastError; returns it
struct Injected {
  cudaError_t now = cudaSuccess, later = cudaSuccess;
};
Injected injected(What what);

// memory.cc
/// While one lives, its thread may touch device memory.
struct DeviceAccess {
  DeviceAccess();
  DeviceAccess(const DeviceAccess&) = delete;
  ~DeviceAccess();
};
struct Range {
  const void* p;
  std::size_t bytes;
};
enum class Where { nowhere, device, pinned, beyond };  // beyond: begins in an allocation and ends behind it
Where where_is(Range range);
/// False, with a finding, where the range is not, or no longer, inside device or pinned memory.
bool check_range(Range range);
std::string describe(const void* address);
/// The device or pinned memory that an address lies in; null where there is none.
struct Extent {
  const void* p;
  std::size_t bytes;
};
Extent allocation_of(const void* address);

// streams.cc
cudaError_t submit(What what, cudaStream_t stream, std::vector<Range> ranges, std::function<void()> work);
void drain_all();
/// Whether this thread captures a stream. Then it may neither allocate nor wait, and doing so spoils the capture.
bool spoils_capture();

// runtime.cc
/// What a block of the kernel may have, more where it asked for more.
std::size_t shared_limit(const void* kernel);

// grid.cc
void run_grid(const cudaLaunchConfig_t& config, const void* kernel, const KernelCall& call);
bool handle_kernel_fault(void* address, void* signal_context);  ///< true if the fault was a device thread's

}  // namespace cusim

/// Of calls that a thread may not make while it captures a stream.
#define CUSIM_NOT_IN_CAPTURE() \
  if (cusim::spoils_capture()) return cusim::remember(cudaErrorStreamCaptureUnsupported)
/// Calls fail as long as the device is broken.
#define CUSIM_ENTER() \
  if (const cudaError_t broken = cusim::sticky(); broken != cudaSuccess) return cusim::remember(broken)
