// tests/cuda_sim/block.cc: the threads of one block: who runs next, barriers, warp-wide operations.
#include <cstdio>
#include <map>
#include <numeric>

#include "grid.h"

namespace cusim {
namespace {

void set_state(Grid& grid, DeviceThread& thread, State state) {
  const int position = grid.position_of[thread.linear];
  const std::uint32_t bit = 1u << (position % 32);
  thread.state = state;
  if (state == State::ready) grid.ready[position / 32] |= bit;
  else grid.ready[position / 32] &= ~bit;
}

// Greedy by warp: after a barrier the first warp runs until it blocks, then the next. Warps drift apart as far as the
// barriers allow, where running them in step would hide a missing one.
DeviceThread* next_ready(Grid& grid) {
  const int warps = (grid.thread_count + 31) / 32;
  const int position = grid.current ? grid.position_of[grid.current->linear] : 0;
  int warp = position / 32;
  const auto first_of = [&](std::uint32_t bits) {
    return &grid.threads[grid.thread_at[warp * 32 + std::countr_zero(bits)]];
  };
  if (grid.order == Order::random && grid.random() % 4 == 0) {
    warp = static_cast<int>(grid.random() % static_cast<std::uint64_t>(warps));
  } else if (grid.restart) {
    warp = 0;
  } else if (const std::uint32_t later = grid.ready[warp] & ~1u << (position % 32)) {
    return first_of(later);
  }
  grid.restart = false;
  for (int tried = 0; tried < warps; ++tried, warp = (warp + 1) % warps)
    if (grid.ready[warp] != 0) return first_of(grid.ready[warp]);
  return nullptr;
}

void finish_group(Grid& grid, Warp& warp, int index, unsigned mask) {
  Group& group = warp.groups[index];
  group.complete(group.payloads, mask);
  const auto first = (&warp - grid.warps.get()) * 32;
  for (unsigned rest = mask; rest != 0; rest &= rest - 1)
    set_state(grid, grid.threads[first + std::countr_zero(rest)], State::ready);
  if (index != --warp.groups_waiting) group = warp.groups[warp.groups_waiting];
}

void open_barrier(Grid& grid) {
  grid.waiting = 0;
  grid.restart = true;
  ++grid.barrier_generation;
  for (int i = 0; i < grid.thread_count; ++i)
    if (grid.threads[i].state == State::at_barrier) set_state(grid, grid.threads[i], State::ready);
}

/// Who waits where, for when nobody can run and somebody still lives.
std::string describe_stall(const Grid& grid) {
  struct Waiters {
    int count = 0;
    std::string first;
  };
  std::map<std::string, Waiters> waiters;
  for (int i = 0; i < grid.thread_count; ++i) {
    const DeviceThread& thread = grid.threads[i];
    std::string what = "have exited";
    if (thread.state == State::in_warp_operation) what = "wait at the warp operation " + where(thread.at);
    if (thread.state == State::at_barrier) what = "wait at the block barrier " + where(thread.at);
    Waiters& w = waiters[what];
    if (w.count++ == 0) w.first = who(thread);
  }
  std::string text;
  for (const auto& [what, w] : waiters)
    text += (text.empty() ? "" : ", ") + std::to_string(w.count) + " threads " + what + " (first: " + w.first + ")";
  return text;
}
[[noreturn]] void report_stall(const Grid& grid) {
  const bool in_warp = std::any_of(grid.threads, grid.threads + grid.thread_count,
                                   [](const DeviceThread& thread) { return thread.state == State::in_warp_operation; });
  abandon(in_warp ? "warp divergence" : "barrier divergence", [&] { return describe_stall(grid); });
}

/// Since Volta, threads that have exited no longer take part.
bool release_for_exited(Grid& grid) {
  if (grid.waiting == grid.live) {
    open_barrier(grid);
    return true;
  }
  for (int w = 0; w * 32 < grid.thread_count; ++w) {
    Warp& warp = grid.warps[static_cast<std::size_t>(w)];
    for (int i = 0; i < warp.groups_waiting; ++i) {
      const unsigned wanted = warp.groups[i].mask & warp.alive;
      if (warp.groups[i].arrived != wanted) continue;
      finish_group(grid, warp, i, wanted);
      return true;
    }
  }
  return false;
}

/// Lets others run until the current thread is ready and has its turn.
void wait_for_turn(Grid& grid) {
  for (;;) {
    DeviceThread* const next = next_ready(grid);
    if (next != nullptr && next == grid.current) return;
    if (next != nullptr || grid.live == 0) return jump(grid, next);
    if (grid.strict_exit || !release_for_exited(grid)) report_stall(grid);
  }
}

std::string hex(unsigned mask) {
  char text[16];
  std::snprintf(text, sizeof text, "0x%08x", mask);
  return text;
}

void check_mask(const Grid& grid, const Warp& warp, unsigned mask, Location at) {
  const DeviceThread& thread = *grid.current;
  if ((mask >> (thread.linear & 31) & 1) == 0)
    abandon("warp mask", [&] { return who(thread) + " is not in its own mask " + hex(mask) + " at " + where(at); });
  if ((mask & ~warp.alive) != 0 && grid.strict_exit)
    abandon("warp mask", [&] {
      return "mask " + hex(mask) + " names lanes that have exited or never existed; " + who(thread) + " at " +
             where(at);
    });
}

/// Groups of other masks may be waiting in the same warp.
int group_of(Grid& grid, Warp& warp, unsigned mask, Complete complete, Location at) {
  int index = 0;
  while (index < warp.groups_waiting && warp.groups[index].mask != mask) ++index;
  Group& group = warp.groups[index];
  if (index == warp.groups_waiting) {
    warp.groups_waiting++;
    group.mask = mask;
    group.arrived = 0;
    group.complete = complete;
    group.at = at;
    group.tag = &warp.tags[grid.parity][warp.generation++ % 64];
  }
  if (group.complete != complete || group.at.line != at.line)
    abandon("warp divergence", [&] {
      return who(*grid.current) + " is at " + where(at) + " while others with mask " + hex(mask) + " wait at " +
             where(group.at);
    });
  return index;
}

}  // namespace

void rendezvous(unsigned mask, Complete complete, void* payload, Location at, bool orders_memory) {
  Grid& grid = *current_grid;
  DeviceThread& thread = *grid.current;
  const unsigned lane = static_cast<unsigned>(thread.linear) & 31;
  Warp& warp = grid.warps[static_cast<std::size_t>(thread.linear / 32)];
  thread.at = at;
  check_mask(grid, warp, mask, at);
  const int index = group_of(grid, warp, mask, complete, at);
  Group& group = warp.groups[index];
  char* const tag = group.tag;
  if (orders_memory) release(tag);
  group.arrived |= 1u << lane;
  group.payloads[lane] = payload;
  set_state(grid, thread, State::in_warp_operation);
  if (group.arrived == (grid.strict_exit ? mask : mask & warp.alive)) finish_group(grid, warp, index, group.arrived);
  wait_for_turn(grid);
  if (orders_memory) acquire(tag);
}

void device_thread_main() {
  arrive_on_fresh_stack();
  Grid& grid = *current_grid;  // for good: this stack is the grid's own
  for (;;) {
    DeviceThread& thread = *grid.current;
    acquire(&grid.start_tag);
    grid.call->run();
    release(&grid.end_tag);
    set_state(grid, thread, State::exited);
    --grid.live;
    grid.warps[static_cast<std::size_t>(thread.linear / 32)].alive &= ~(1u << (thread.linear & 31));
    wait_for_turn(grid);
  }
}

void start_block(Grid& grid) {
  const int n = grid.thread_count, warps = (n + 31) / 32;
  grid.threads = grid.pool[grid.parity].data();
  grid.waiting = 0;
  grid.live = n;
  grid.restart = true;
  int warp_at[kMaxWarps], lane_at[32];
  std::iota(warp_at, warp_at + warps, 0);
  std::iota(lane_at, lane_at + 32, 0);
  const auto shuffle = [&](int* a, int count) {
    for (; count > 1; --count) std::swap(a[count - 1], a[grid.random() % static_cast<std::uint64_t>(count)]);
  };
  if (grid.order == Order::reverse) {
    std::reverse(warp_at, warp_at + warps);
    std::reverse(lane_at, lane_at + 32);
  } else if (grid.order == Order::random) {
    shuffle(warp_at, warps);
    shuffle(lane_at, 32);
  }
  std::fill(std::begin(grid.ready), std::end(grid.ready), 0);
  for (int position = 0; position < warps * 32; ++position) {
    const int i = warp_at[position / 32] * 32 + lane_at[position % 32];
    if (i >= n) continue;
    grid.thread_at[position] = static_cast<std::uint16_t>(i);
    grid.position_of[i] = static_cast<std::uint16_t>(position);
    grid.threads[i].at = Location("", 0);
    grid.threads[i].copies = 0;
    set_state(grid, grid.threads[i], State::ready);
  }
  for (int w = 0; w < warps; ++w) {
    Warp& warp = grid.warps[static_cast<std::size_t>(w)];
    warp.groups_waiting = 0;
    warp.alive = n - w * 32 >= 32 ? ~0u : (1u << (n - w * 32)) - 1;
  }
  release(&grid.start_tag);
  jump(grid, next_ready(grid));
}

// ------------------------------------------------------------------------------------------- what device code calls

void block_barrier(Location at) {
  Grid& grid = *current_grid;
  DeviceThread& thread = *grid.current;
  thread.at = at;
  if (grid.waiting > 0 && (grid.barrier_at.line != at.line ||
                           (grid.barrier_at.file != at.file && std::strcmp(grid.barrier_at.file, at.file) != 0)))
    abandon("barrier divergence", [&] {
      return who(thread) + " is at the barrier " + where(at) + " while others wait at " + where(grid.barrier_at);
    });
  grid.barrier_at = at;
  char* const tag = &grid.barrier_tags[grid.parity][grid.barrier_generation & 1];
  release(tag);
  set_state(grid, thread, State::at_barrier);
  if (++grid.waiting == grid.live && (grid.live == grid.thread_count || !grid.strict_exit)) open_barrier(grid);
  wait_for_turn(grid);
  acquire(tag);
}

int block_vote(bool predicate, Vote vote, Location at) {
  Grid& grid = *current_grid;
  int* const votes = grid.votes[grid.barrier_generation & 1];
  if (grid.waiting == 0) {
    votes[0] = 0;
    votes[1] = 1;
    votes[2] = 0;
  }
  votes[static_cast<int>(Vote::count)] += predicate;
  votes[static_cast<int>(Vote::all)] &= static_cast<int>(predicate);
  votes[static_cast<int>(Vote::any)] |= static_cast<int>(predicate);
  block_barrier(at);
  return votes[static_cast<int>(vote)];
}

std::uint64_t warp_shuffle(unsigned mask, std::uint64_t value, int source, Location at) {
  struct Payload {
    std::uint64_t value, result;
    int source;
  } payload{value, value, source};
  const auto exchange = [](void** payloads, unsigned lanes) {
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
      Payload& mine = *static_cast<Payload*>(payloads[std::countr_zero(rest)]);
      if (mine.source < 0) continue;
      const bool takes_part = lanes >> mine.source & 1;  // else its value is undefined: poison
      mine.result = takes_part ? static_cast<Payload*>(payloads[mine.source])->value : ~std::uint64_t{0};
    }
  };
  rendezvous(mask, exchange, &payload, at);
  return payload.result;
}

unsigned warp_ballot(unsigned mask, bool predicate, Location at) {
  unsigned value = predicate;
  const auto count = [](void** payloads, unsigned lanes) {
    unsigned result = 0;
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1)
      result |= *static_cast<unsigned*>(payloads[std::countr_zero(rest)]) << std::countr_zero(rest);
    for (unsigned rest = lanes; rest != 0; rest &= rest - 1)
      *static_cast<unsigned*>(payloads[std::countr_zero(rest)]) = result;
  };
  rendezvous(mask, count, &value, at);
  return value;
}

void warp_barrier(unsigned mask, Location at) {
  rendezvous(
      mask, [](void**, unsigned) {}, nullptr, at, true);
}

void thread_fence() {
  static char tag;
  release(&tag);
  acquire(&tag);
}

}  // namespace cusim
