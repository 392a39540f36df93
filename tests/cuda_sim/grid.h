// tests/cuda_sim/grid.h: one grid under execution. Its blocks run one after another on the stream's worker; each device
// thread of a block is a fiber that runs until it meets a barrier or a warp-wide operation.
#pragma once

#include <cstring>

#include "fibers.h"

namespace cusim {

constexpr int kMaxThreads = 1024, kMaxWarps = 32, kMostCopies = 32;

enum class State : std::uint8_t { ready, at_barrier, in_warp_operation, exited };
struct DeviceThread : ThreadContext {
  Fiber fiber;
  State state = State::exited;
  Location at{"", 0};  // of its last synchronisation
  struct Copy {
    void* to;
    const void* from;  // null: zeros
  };
  Copy under_way[kMostCopies];  // of cp.async, until the thread waits for them
  int copies = 0;
};

using Complete = void (*)(void** payloads, unsigned mask);  // does a warp-wide operation for all lanes
/// Lanes of one mask on their way into one operation.
struct Group {
  unsigned mask, arrived;
  Complete complete;
  Location at;
  char* tag;
  void* payloads[32];
};
struct Warp {
  unsigned alive = 0;
  int groups_waiting = 0;
  unsigned generation = 0;
  Group groups[32];
  char tags[2][64];
};

/// Static shared variables lie between poisoned gaps; dynamic shared memory ends right before a page without access.
class SharedMemory {
 public:
  SharedMemory();
  /// `limit`: of static and dynamic memory together.
  void begin_block(std::size_t dynamic_bytes, std::size_t limit);
  /// What was written outside of every variable, or null.
  const char* overrun();
  /// Null where there is no room.
  void* slot(std::size_t site, std::size_t bytes);
  void* dynamic() const { return arena_ + kDynamicEnd - dynamic_taken(); }
  bool contains(const void* p) const { return p >= arena_ && p < arena_ + kDynamicEnd + kPage; }

 private:
  static constexpr std::size_t kStatic = 64 << 10, kGap = 32;
  static constexpr std::size_t kDynamicBegin = kStatic + kPage, kDynamicEnd = kDynamicBegin + (256 << 10);
  struct Span {
    std::size_t begin, end;
  };
  struct Slot {
    std::uint64_t block = 0;
    std::size_t offset = 0;
  };
  std::size_t dynamic_taken() const { return (dynamic_ + 31) & ~std::size_t{31}; }
  bool written(Span gap);

  char* arena_;  // static shared | page without access | dynamic shared | page without access
  std::size_t used_ = kStatic, static_ = 0, dynamic_ = 0, limit_ = 0;
  std::uint64_t block_ = 0;
  std::vector<Slot> slots_;  // by site
  std::vector<Span> gaps_;
};

/// Everything one grid needs; borrowed for a launch, then used again.
struct Grid {
  // The thread sanitizer gets other fibers for odd than for even blocks, so that what neighbouring blocks do stays
  // unordered for it.
  std::vector<DeviceThread> pool[2];
  DeviceThread* threads = nullptr;  // of this block
  std::unique_ptr<Warp[]> warps{new Warp[kMaxWarps]};
  SharedMemory shared;
  const KernelCall* call = nullptr;
  const void* kernel = nullptr;
  Fiber scheduler;
  DeviceThread* current = nullptr;
  int thread_count = 0, live = 0, waiting = 0, parity = 0;
  int votes[2][3] = {};
  unsigned barrier_generation = 0;
  Location barrier_at{"", 0};
  bool restart = true, aborted = false, strict_exit = true;
  Order order = Order::forward;
  // Threads by running order: position 32 * place of the warp + place of the lane.
  std::uint32_t ready[kMaxWarps] = {};
  std::uint16_t thread_at[kMaxThreads], position_of[kMaxThreads];
  std::uint64_t switches = 0, random_state = 1;
  char start_tag, end_tag, barrier_tags[2][2];
  alignas(16) char landing[32 << 10];  // the stack for reports of faults

  /// xorshift: a standard generator would be shared with, and instrumented for, the program under test.
  std::uint64_t random() {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    return random_state ^= random_state << 17;
  }
};
extern constinit thread_local Grid* current_grid;

// grid.cc
std::string where(const Location& at);
std::string who(const ThreadContext& thread);
void report(Grid& grid, const char* kind, const std::string& text, cudaError_t error);
/// Leaves the grid: what is on the device threads' stacks is abandoned, not destroyed.
[[noreturn]] void leave_grid();
/// Reports and leaves. `text` makes the report, so that no string is abandoned with the stack.
template <class Text>
[[noreturn]] void abandon(const char* kind, Text text, cudaError_t error = cudaErrorLaunchFailure) {
  report(*current_grid, kind, text(), error);
  leave_grid();
}
void jump(Grid& grid, DeviceThread* to);  ///< null: back to the worker

// kernel_name.cc
std::string kernel_name(const void* kernel);

// block.cc
void device_thread_main();
void start_block(Grid& grid);
/// Waits for the lanes in `mask`; the last one to arrive calls `complete` for all of them.
void rendezvous(unsigned mask, Complete complete, void* payload, Location at, bool orders_memory = false);

}  // namespace cusim
