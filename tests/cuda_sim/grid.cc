// tests/cuda_sim/grid.cc: grids as a sequence of blocks; shared memory; what happens on a fault.
#include "grid.h"
#include "cusim_tensor.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <atomic>
#include <cstdio>
#include <map>

constinit thread_local uint3 threadIdx{}, blockIdx{};
constinit thread_local dim3 blockDim{}, gridDim{};

namespace cusim {

constinit thread_local ThreadContext* self = nullptr;
constinit thread_local std::uint64_t wide_atomics = 0;
constinit thread_local Grid* current_grid = nullptr;

namespace {

thread_local bool in_kernel = false;
thread_local void* fault_address = nullptr;

std::vector<Grid*>& idle_grids() {  // under the lock
  static auto& all = *new std::vector<Grid*>;
  return all;
}

std::map<const void*, std::uint64_t>& ran() {  // under the lock: how often each kernel
  static auto& all = *new std::map<const void*, std::uint64_t>;
  return all;
}

Grid* borrow_grid() {
  Grid* grid = nullptr;
  {
    Lock lock;
    if (!idle_grids().empty()) {
      grid = idle_grids().back();
      idle_grids().pop_back();
    }
  }
  if (grid == nullptr) {
    grid = new Grid;
    for (auto& set : grid->pool) set.reserve(kMaxThreads);
  }
  adopt_thread(grid->scheduler);
  return grid;
}

void prepare_threads(Grid& grid, const dim3& block) {
  for (int set = 0; set <= (thread_sanitizer() ? 1 : 0); ++set) {
    auto& pool = grid.pool[set];
    for (int i = 0; i < grid.thread_count; ++i) {
      if (i == static_cast<int>(pool.size())) {
        pool.emplace_back().linear = i;
        prepare(pool.back().fiber, device_thread_main, i);
      }
      const auto n = static_cast<unsigned>(i), yz = n / block.x;
      pool[static_cast<std::size_t>(i)].index = {n % block.x, yz % block.y, yz / block.y};
    }
  }
}

void run_block(Grid& grid, std::size_t dynamic_bytes) {
  grid.shared.begin_block(dynamic_bytes, shared_limit(grid.kernel));
  grid.parity ^= thread_sanitizer() ? 1 : 0;
  start_block(grid);
  if (const char* what = grid.shared.overrun(); what != nullptr && !grid.aborted)
    report(grid, "shared memory overrun", std::string(what) + " was written out of bounds", cudaErrorIllegalAddress);
}

}  // namespace

// ------------------------------------------------------------------------------------------------- shared memory

SharedMemory::SharedMemory() {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  arena_ = static_cast<char*>(mmap(nullptr, kDynamicEnd + kPage, PROT_NONE, flags, -1, 0));
  mprotect(arena_, kStatic, PROT_READ | PROT_WRITE);
  mprotect(arena_ + kDynamicBegin, kDynamicEnd - kDynamicBegin, PROT_READ | PROT_WRITE);
}

void SharedMemory::begin_block(std::size_t dynamic_bytes, std::size_t limit) {
  dynamic_ = dynamic_bytes, limit_ = limit;
  set_valid(arena_, kStatic, true);
  set_valid(arena_ + kDynamicBegin, kDynamicEnd - kDynamicBegin, true);
  if (thread_sanitizer()) {  // fresh pages make it forget the last block's accesses
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    mmap(arena_, kStatic, PROT_READ | PROT_WRITE, flags, -1, 0);
    mmap(arena_ + kDynamicBegin, kDynamicEnd - kDynamicBegin, PROT_READ | PROT_WRITE, flags, -1, 0);
    used_ = kStatic;
  }
  const std::size_t base = kDynamicEnd - dynamic_taken();
  std::memset(arena_, kPoison, used_);
  std::memset(arena_ + base - 2 * kGap, kPoison, dynamic_taken() + 2 * kGap);
  set_valid(arena_ + base - 2 * kGap, 2 * kGap, false);
  set_valid(arena_ + base + dynamic_, dynamic_taken() - dynamic_, false);
  gaps_.clear();
  used_ = static_ = 0;
  ++block_;
}

bool SharedMemory::written(Span gap) {
  set_valid(arena_ + gap.begin, gap.end - gap.begin, true);
  return std::any_of(arena_ + gap.begin, arena_ + gap.end,
                     [](char c) { return static_cast<unsigned char>(c) != kPoison; });
}

const char* SharedMemory::overrun() {
  const std::size_t base = kDynamicEnd - dynamic_taken();
  if (std::any_of(gaps_.begin(), gaps_.end(), [&](Span gap) { return written(gap); }))
    return "a static shared variable";
  const bool dynamic = written({base - 2 * kGap, base}) || written({base + dynamic_, kDynamicEnd});
  return dynamic ? "dynamic shared memory" : nullptr;
}

void* SharedMemory::slot(std::size_t site, std::size_t bytes) {
  if (slots_.size() <= site) slots_.resize(site + 1);
  Slot& slot = slots_[site];
  if (slot.block == block_) return arena_ + slot.offset;
  // The first thread of the block to get here makes it.
  const std::size_t begin = used_ + kGap, end = begin + bytes, next = ((end + 31) & ~std::size_t{31}) + kGap;
  static_ += (bytes + 31) & ~std::size_t{31};
  if (next > kStatic || static_ > config().shared_default || static_ + dynamic_ > limit_) return nullptr;
  for (const Span gap : {Span{used_, begin}, Span{end, next}}) {
    gaps_.push_back(gap);
    set_valid(arena_ + gap.begin, gap.end - gap.begin, false);
  }
  slot = {block_, begin};
  used_ = next;
  return arena_ + begin;
}

int new_shared_site() {
  static std::atomic<int> sites{0};
  return sites++;
}
void* shared_slot(int site, std::size_t bytes, const char* name) {
  if (void* slot = current_grid->shared.slot(static_cast<std::size_t>(site), bytes)) return slot;
  abandon(
      "shared memory size", [&] { return std::string("shared memory exceeds the limit at ") + name; },
      cudaErrorInvalidConfiguration);
}
void* shared_dynamic() { return current_grid->shared.dynamic(); }

// -------------------------------------------------------------------------------------------------------- reports

std::string where(const Location& at) {
  const char* slash = std::strrchr(at.file, '/');
  return std::string(slash ? slash + 1 : at.file) + ":" + std::to_string(at.line);
}
std::string who(const ThreadContext& thread) {
  char text[120];
  std::snprintf(text, sizeof text, "block (%u,%u,%u) thread (%u,%u,%u)", blockIdx.x, blockIdx.y, blockIdx.z,
                thread.index.x, thread.index.y, thread.index.z);
  return text;
}

void report(Grid& grid, const char* kind, const std::string& text, cudaError_t error) {
  finding(kind, text + " [" + kernel_name(grid.kernel) + "]");
  set_sticky(error);
  grid.aborted = true;
}
void leave_grid() {
  jump(*current_grid, nullptr);
  __builtin_unreachable();  // nobody jumps back: run_grid gives all threads fresh stacks
}

void jump(Grid& grid, DeviceThread* to) {
  Fiber& from = grid.current ? grid.current->fiber : grid.scheduler;
  grid.current = to;
  self = to;
  if (to != nullptr) threadIdx = to->index;
  in_kernel = to != nullptr;
  ++grid.switches;
  switch_fiber(from, to ? to->fiber : grid.scheduler);
}

void run_grid(const cudaLaunchConfig_t& c, const void* kernel, const KernelCall& call) {
  Grid& grid = *(current_grid = borrow_grid());
  grid.call = &call;
  grid.kernel = kernel;
  grid.aborted = false;
  grid.switches = 0;
  grid.thread_count = static_cast<int>(c.blockDim.x * c.blockDim.y * c.blockDim.z);
  grid.order = config().order;
  grid.strict_exit = config().strict_exit;
  grid.random_state = config().seed * 0x9E3779B97F4A7C15u | 1;
  prepare_threads(grid, c.blockDim);
  blockDim = c.blockDim;
  gridDim = c.gridDim;
  const std::uint64_t blocks = std::uint64_t{gridDim.x} * gridDim.y * gridDim.z;
  for (std::uint64_t b = 0; b < blocks && !grid.aborted; ++b) {
    const std::uint64_t block = grid.order == Order::reverse ? blocks - 1 - b : b, yz = block / gridDim.x;
    blockIdx = {static_cast<unsigned>(block % gridDim.x), static_cast<unsigned>(yz % gridDim.y),
                static_cast<unsigned>(yz / gridDim.y)};
    run_block(grid, c.dynamicSmemBytes);
  }
  acquire(&grid.end_tag);
  if (grid.aborted)
    for (auto& set : grid.pool)
      for (DeviceThread& thread : set) prepare(thread.fiber, device_thread_main, thread.linear);
  Lock lock;
  Stats& s = counters();
  s.kernels++;
  ran()[kernel]++;
  s.wide_atomics += std::exchange(wide_atomics, 0);
  s.bank_conflicts += std::exchange(bank_conflicts, 0);
  s.shared_bytes += blocks * c.dynamicSmemBytes;
  s.blocks += blocks;
  s.threads += blocks * static_cast<std::uint64_t>(grid.thread_count);
  s.switches += grid.switches;
  idle_grids().push_back(&grid);
}

std::uint64_t kernels_named(const std::string& part) {
  std::map<const void*, std::uint64_t> all;
  {
    Lock lock;
    all = ran();
  }
  std::uint64_t sum = 0;
  for (const auto& [kernel, count] : all)
    if (kernel_name(kernel).find(part) != std::string::npos) sum += count;
  return sum;
}

// --------------------------------------------------------------------------------------------------------- faults

// A device thread that faults leaves its stack, which may be full, for the landing, and from there for the worker.
[[maybe_unused]] [[noreturn]] static void land() {
  const auto text = [] {
    const Grid& grid = *current_grid;
    const DeviceThread& thread = *grid.current;
    const bool shared = grid.shared.contains(fault_address);
    std::string all = who(thread) + " touched ";
    all += shared ? "the page behind its shared memory" : describe(fault_address);
    if (thread.at.line != 0) all += "; it last synchronised at " + where(thread.at);
    return all;
  };
  abandon("illegal address", text, cudaErrorIllegalAddress);
}

bool handle_kernel_fault([[maybe_unused]] void* address, [[maybe_unused]] void* signal_context) {
#if defined(__x86_64__)
  if (!in_kernel) return false;
  in_kernel = false;  // a fault in the report is beyond repair
  fault_address = address;
  auto& registers = static_cast<ucontext_t*>(signal_context)->uc_mcontext.gregs;
  registers[REG_RSP] = reinterpret_cast<greg_t>(current_grid->landing + sizeof current_grid->landing - 8);
  registers[REG_RIP] = reinterpret_cast<greg_t>(&land);
  return true;
#else
  return false;
#endif
}

}  // namespace cusim
