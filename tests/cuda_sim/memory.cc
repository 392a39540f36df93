// tests/cuda_sim/memory.cc: device memory, which only device work may touch, and pinned memory.
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <map>

#include "internal.h"

namespace cusim {
namespace {

using Byte = unsigned char;

// Device memory is laid out as: guard page, poisoned slack, the bytes, slack up to 256, guard page.
struct Allocation {
  std::size_t bytes;
  Byte* map;  // what the simulator itself took; null for registered memory
  std::size_t map_bytes;
};
using Allocations = std::map<std::uintptr_t, Allocation>;
struct Tables {  // under the lock
  Allocations device, pinned;
  // Where pages are protected:
  int at_work = 0;  // threads that may touch device memory
  bool open = false;
  std::uint64_t idle = 0;  // how often the last of them has stopped
};
Tables& tables() {
  static Tables& all = *new Tables;
  return all;
}
struct sigaction previous_segv, previous_bus;

std::uintptr_t number(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }

const Allocations::value_type* find(const Allocations& all, const void* p) {
  auto next = all.upper_bound(number(p));
  if (next == all.begin()) return nullptr;
  --next;
  return number(p) - next->first < next->second.bytes ? &*next : nullptr;
}
bool ends_at(const Allocations& all, const void* p) {
  auto next = all.lower_bound(number(p));
  return next != all.begin() && (--next)->first + next->second.bytes == number(p);
}

bool mapped(const void* p) {  // by anybody in this process
  return msync(reinterpret_cast<void*>(number(p) / kPage * kPage), 1, MS_ASYNC) == 0;
}

void on_fault(int signal, siginfo_t* info, void* context) {
  // A sanitizer's own report names the line, so there device threads die of it too.
  const bool sanitized = address_sanitizer() || thread_sanitizer();
  if (!sanitized && handle_kernel_fault(info->si_addr, context)) return;
  std::fprintf(stderr, "cusim: host access: host code, or a fault beyond repair, touched %s\n",
               describe(info->si_addr).c_str());
  sigaction(signal, signal == SIGBUS ? &previous_bus : &previous_segv, nullptr);  // returning faults once more
}

/// Again and again, for test frameworks install handlers of their own per test.
void install_fault_handler() {
  static std::mutex& one_at_a_time = *new std::mutex;
  const Unseen unseen;
  std::lock_guard lock(one_at_a_time);
  for (const auto& [signal, previous] : {std::pair{SIGSEGV, &previous_segv}, {SIGBUS, &previous_bus}}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if ((action.sa_flags & SA_SIGINFO) && action.sa_sigaction == on_fault) continue;
    action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    sigaction(signal, &action, previous);
  }
}

/// The key that all device memory has, or -1 where the processor has none.
int access_key() {
  static const int key = config().protect == Protect::keys ? pkey_alloc(0, PKEY_DISABLE_ACCESS) : -1;
  return key;
}
Protect protection() {
  const Protect wanted = config().protect;
  return wanted == Protect::keys && access_key() < 0 ? Protect::pages : wanted;
}
/// Under the lock.
void protect_all(int mode) {
  for (auto& [base, a] : tables().device) mprotect(a.map + kPage, a.map_bytes - 2 * kPage, mode);
  tables().open = mode != PROT_NONE;
}
/// Whether pages are closed now that the device is idle: the first times, later once in eight, for each time costs two
/// system calls an allocation, and what host code does wrong it does again. Under the lock.
bool is_time_to_close() {
  constexpr std::uint64_t kAlways = 64, kEvery = 8;
  const std::uint64_t n = tables().idle++;
  return n < kAlways || n % kEvery == 0;
}

cudaError_t allocate(void** address, std::size_t bytes) {
  *address = nullptr;
  if (const cudaError_t planted = injected(What::alloc).now; planted != cudaSuccess || bytes == 0) return planted;
  if (bytes > config().malloc_most) return cudaErrorInvalidValue;
  install_fault_handler();
  const Protect protect = protection();
  if (bytes > config().device_capacity) return cudaErrorMemoryAllocation;
  const std::size_t taken = round_up(bytes, 256), body = round_up(taken, kPage);
  Lock lock;
  if (counters().device_live + taken > config().device_capacity) return cudaErrorMemoryAllocation;
  void* const map = mmap(nullptr, body + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return cudaErrorMemoryAllocation;
  Byte *const first = static_cast<Byte*>(map) + kPage, *const base = first + body - taken;
  mprotect(first, body, PROT_READ | PROT_WRITE);
  madvise(first, body, MADV_HUGEPAGE);  // what is often protected and opened again should be few pages
  std::memset(first, kPoison, body);
  set_valid(first, body - taken, false);
  set_valid(base + bytes, taken - bytes, false);
  if (protect == Protect::keys) pkey_mprotect(first, body, PROT_READ | PROT_WRITE, access_key());
  if (protect == Protect::pages && !tables().open) mprotect(first, body, PROT_NONE);
  tables().device[number(base)] = {bytes, static_cast<Byte*>(map), body + 2 * kPage};
  counters().device_live += taken;
  counters().device_peak = std::max(counters().device_peak, counters().device_live);
  *address = base;
  return cudaSuccess;
}

cudaError_t deallocate(void* address) {
  Allocations::node_type node;
  {
    Lock lock;
    node = tables().device.extract(number(address));
    if (!node) return cudaErrorInvalidValue;
    counters().device_live -= round_up(node.mapped().bytes, 256);
  }
  const Allocation a = node.mapped();
  Byte *const first = a.map + kPage, *const base = static_cast<Byte*>(address);
  Byte* const end = a.map + a.map_bytes - kPage;
  DeviceAccess access;
  mprotect(first, a.map_bytes - 2 * kPage, PROT_READ | PROT_WRITE);
  set_valid(a.map, a.map_bytes, true);
  const auto untouched = [](const Byte* from, const Byte* to) {
    return std::all_of(from, to, [](Byte b) { return b == kPoison; });
  };
  if (!untouched(first, base) || !untouched(base + a.bytes, end))
    finding("device memory overrun", "bytes next to an allocation of " + std::to_string(a.bytes) + " were overwritten");
  munmap(a.map, a.map_bytes);
  return cudaSuccess;
}

cudaError_t pin(void* p, std::size_t bytes, bool owned) {
  if (const cudaError_t planted = injected(What::host_alloc).now; planted != cudaSuccess) return planted;
  if (p == nullptr || bytes == 0) return cudaErrorInvalidValue;
  if (owned && bytes > config().host_alloc_most) return cudaErrorMemoryAllocation;
  if (!owned && !config().host_register) return cudaErrorNotSupported;
  if (!owned && bytes > config().register_most)
    return config().register_error != 0 ? static_cast<cudaError_t>(config().register_error) : cudaErrorInvalidValue;
  Lock lock;
  for (const auto& [base, a] : tables().pinned)
    if (number(p) < base + a.bytes && base < number(p) + bytes) return cudaErrorHostMemoryAlreadyRegistered;
  if (counters().pinned_live + bytes > config().pinned_capacity) return cudaErrorMemoryAllocation;
  counters().pinned_live += bytes;
  tables().pinned[number(p)] = {bytes, owned ? static_cast<Byte*>(p) : nullptr, 0};
  return cudaSuccess;
}
cudaError_t unpin(void* p, bool owned) {
  CUSIM_NOT_IN_CAPTURE();
  drain_all();
  Lock lock;
  const auto found = tables().pinned.find(number(p));
  if (found == tables().pinned.end() || (found->second.map != nullptr) != owned)
    return owned ? cudaErrorInvalidValue : cudaErrorHostMemoryNotRegistered;
  counters().pinned_live -= found->second.bytes;
  tables().pinned.erase(found);
  if (owned) std::free(p);
  return cudaSuccess;
}

void report_pointer(const void* p, std::size_t bytes, const char* what) {
  char text[200];
  std::snprintf(text, sizeof text, "%s, [%p, +%zu), is not, or no longer, inside device or pinned memory", what, p,
                bytes);
  finding("pageable or freed memory", text);
  set_sticky(cudaErrorIllegalAddress);
}

}  // namespace

DeviceAccess::DeviceAccess() {
  install_fault_handler();
  const Protect protect = protection();
  if (protect == Protect::keys) pkey_set(access_key(), 0);
  if (protect != Protect::pages) return;
  Lock lock;
  tables().at_work++;
  if (!tables().open) protect_all(PROT_READ | PROT_WRITE);
}
DeviceAccess::~DeviceAccess() {
  const Protect protect = protection();
  if (protect == Protect::keys) pkey_set(access_key(), PKEY_DISABLE_ACCESS);
  if (protect != Protect::pages) return;
  Lock lock;
  if (--tables().at_work == 0 && is_time_to_close()) protect_all(PROT_NONE);
}

Where where_is(Range range) {
  Lock lock;
  for (const auto& [all, where] : {std::pair{&tables().device, Where::device}, {&tables().pinned, Where::pinned}})
    if (const auto* a = find(*all, range.p))
      return number(range.p) + range.bytes <= a->first + a->second.bytes ? where : Where::beyond;
  return Where::nowhere;
}

bool check_range(Range range) {
  if (range.bytes == 0) return true;
  const Where where = where_is(range);
  if (where == Where::device || where == Where::pinned) return true;
  report_pointer(range.p, range.bytes, "a range");
  return false;
}

/// Whether the device has another address for it.
bool only_copied(const void* p) {
  if (config().host_pointer) return false;
  Lock lock;
  const auto* const a = find(tables().pinned, p);
  return a && a->second.map == nullptr;
}

void check_pointer(const void* p) {
  if (p == nullptr) return;
  if (only_copied(p)) return report_pointer(p, 1, "a kernel's argument, an address of the host's own,");
  if (where_is({p, 1}) != Where::nowhere) return;
  {
    Lock lock;  // of an empty array, or where a loop ends; nobody can touch what is there
    if (ends_at(tables().device, p) || ends_at(tables().pinned, p)) return;
  }
  report_pointer(p, 1, "a kernel's argument");
}
void check_words(const void* object, std::size_t bytes) {
  for (std::size_t i = 0; i + sizeof(void*) <= bytes; i += sizeof(void*)) {
    void* word;
    std::memcpy(&word, static_cast<const char*>(object) + i, sizeof word);
    // Only where programs, heaps and stacks lie: a pair of small numbers looks like an address of sanitizers' tables.
    constexpr std::uintptr_t kFirst = 0x550000000000, kLast = 0x7fffffffffff;
    if (number(word) >= kFirst && number(word) <= kLast && mapped(word)) check_pointer(word);
  }
}

Extent allocation_of(const void* p) {
  Lock lock;
  for (const auto* all : {&tables().device, &tables().pinned})
    if (const auto* a = find(*all, p)) return {reinterpret_cast<const void*>(a->first), a->second.bytes};
  return {nullptr, 0};
}

std::string describe(const void* p) {  // the signal handler calls it, so it only tries the lock
  std::unique_lock lock(mutex(), std::try_to_lock);
  char text[160];
  std::snprintf(text, sizeof text, "%p: no live device memory (freed, out of bounds or wild)", p);
  for (const auto& [base, a] : tables().device)
    if (p >= a.map && p < a.map + a.map_bytes)
      std::snprintf(text, sizeof text, "%p: offset %td of a device allocation of %zu bytes", p,
                    static_cast<std::ptrdiff_t>(number(p) - base), a.bytes);
  return text;
}

}  // namespace cusim

using namespace cusim;

extern "C" {
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  CUSIM_ENTER();
  *total = config().device_capacity;
  *free = *total - std::min<std::size_t>(*total, stats().device_live);
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** address, std::size_t bytes) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  return remember(allocate(address, bytes));
}
cudaError_t cudaFree(void* address) {  // waits for the device, like the real one
  if (address == nullptr) return cudaSuccess;
  CUSIM_NOT_IN_CAPTURE();
  drain_all();
  const cudaError_t error = deallocate(address);
  return remember(error != cudaSuccess ? error : sticky());
}
cudaError_t cudaHostAlloc(void** address, std::size_t bytes, unsigned) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  *address = std::aligned_alloc(kPage, round_up(std::max<std::size_t>(bytes, 1), kPage));
  const cudaError_t error = pin(*address, bytes, true);
  if (error == cudaSuccess) std::memset(*address, kPoison, bytes);
  else std::free(std::exchange(*address, nullptr));
  return remember(error);
}
cudaError_t cudaFreeHost(void* address) { return address ? remember(unpin(address, true)) : cudaSuccess; }
cudaError_t cudaHostRegister(void* address, std::size_t bytes, unsigned) {
  CUSIM_NOT_IN_CAPTURE();
  CUSIM_ENTER();
  return remember(pin(address, bytes, false));
}
cudaError_t cudaHostUnregister(void* address) { return remember(unpin(address, false)); }
}
