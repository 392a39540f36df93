// tests/cuda_sim/ptx/machine.cc: who runs next. A warp runs until all its lanes wait; of lanes that are at different
// instructions those that are furthest behind go first, so that they meet the others again.
#include "machine.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace cusim::ptx {
namespace {

void put(Warp& w, int at, unsigned lanes, bool waits = false) {
  for (Split& other : w.splits) {
    if (other.at != at) continue;
    other.lanes |= lanes;
    other.waits = false;
    return;
  }
  w.splits.push_back({at, lanes, waits});
}

/// Which of the lanes at a collective can do it now, because all that it needs are here.
class Gathering {
 public:
  Gathering(Warp& w, const Instruction& i, unsigned lanes) : w_(w), i_(i), lanes_(lanes) {}

  unsigned run() {
    if (!i_.names_lanes) return run_if_complete(~0u, lanes_);
    const auto* const masks = w_.values<unsigned>(i_.operands[i_.count - 1]);
    unsigned done = 0;
    for (unsigned rest = lanes_; rest != 0;) {
      const unsigned mask = masks[std::countr_zero(rest)];
      unsigned agreeing = 0;
      each_lane(rest, [&](int lane) { agreeing |= static_cast<unsigned>(masks[lane] == mask) << lane; });
      rest &= ~agreeing;
      if (const unsigned strangers = agreeing & ~mask)
        fail(w_, i_, std::countr_zero(strangers), "warp mask", cudaErrorLaunchFailure,
             "is not in its own mask " + hex(mask));
      done |= run_if_complete(mask, agreeing);
    }
    return done;
  }

 private:
  unsigned run_if_complete(unsigned mask, unsigned here) {
    if ((mask & ~w_.alive) != 0 && w_.block->strict_exit)
      fail(w_, i_, std::countr_zero(here), "warp mask", cudaErrorLaunchFailure,
           "mask " + hex(mask) + " names lanes that have exited or never existed");
    if (here != (mask & w_.alive)) return 0;
    i_.run(w_, i_, here);
    if (i_.orders_memory) w_.clock.synchronise(here);
    return here;
  }
  static std::string hex(unsigned mask) {
    char text[16];
    std::snprintf(text, sizeof text, "0x%08x", mask);
    return text;
  }

  Warp& w_;
  const Instruction& i_;
  unsigned lanes_;
};

/// Lanes that advance together until they part, wait, leave or meet others.
class Run {
 public:
  Run(Block& block, Warp& w, Split split) : block_(block), w_(w), at_(split.at), lanes_(split.lanes) { look_ahead(); }

  void go() {
    const Instruction* const code = block_.kernel->code.data();
    while (lanes_ != 0) {
      const Instruction& i = code[at_];
      unsigned active = lanes_;
      if (i.guarded) active &= i.negated ? ~w_.predicate_value(i.guard) : w_.predicate_value(i.guard);
      ++block_.counts.instructions;
      switch (i.kind) {
        case Kind::plain:
          if (active != 0) i.run(w_, i, active);
          ++at_;
          break;
        case Kind::branch: branch(i, active); break;
        case Kind::leave: leave(active); break;
        case Kind::block_barrier: meet_block(i, active); break;
        case Kind::collective: meet_warp(i, active); break;
      }
      if (at_ == met_ && lanes_ != 0) return park(at_);
    }
  }

 private:
  void look_ahead() {  // the place where others are, if it comes next
    met_ = INT_MAX;
    for (const Split& other : w_.splits)
      if (other.at >= at_) met_ = std::min(met_, other.at);
  }
  void park(int at, bool waits = false) { put(w_, at, std::exchange(lanes_, 0), waits); }
  void branch(const Instruction& i, unsigned taken) {
    if (taken != 0 && taken != lanes_) {
      put(w_, i.target, taken);
      lanes_ &= ~taken;
      return park(at_ + 1);
    }
    at_ = taken != 0 ? i.target : at_ + 1;
    if (!w_.splits.empty()) look_ahead();
  }
  void leave(unsigned active) {
    w_.alive &= ~active;
    lanes_ &= ~active;
    ++at_;
    for (Split& other : w_.splits) other.waits = false;  // they may wait for those that are gone
  }
  void meet_block(const Instruction& i, unsigned active) {
    if (active != lanes_) {  // the others go on
      put(w_, at_ + 1, lanes_ & ~active);
      lanes_ = active;
    }
    if (lanes_ == 0) return;
    if (lanes_ != w_.alive) return park(at_, true);
    if (w_.alive != w_.born && block_.strict_exit)
      fail(w_, i, std::countr_zero(lanes_), "barrier divergence", cudaErrorLaunchFailure,
           "waits for threads of its warp that have exited");
    w_.at_barrier = true;
    park(at_ + 1, true);
  }
  void meet_warp(const Instruction& i, unsigned active) {
    if (active != lanes_) {
      put(w_, at_ + 1, lanes_ & ~active);
      lanes_ = active;
      if (active == 0) return;
    }
    const unsigned done = Gathering(w_, i, active).run();
    if (done != active) {
      if (done != 0) put(w_, at_ + 1, done);
      lanes_ &= ~done;
      return park(at_, true);
    }
    ++at_;
    look_ahead();
  }

  Block& block_;
  Warp& w_;
  int at_, met_ = INT_MAX;
  unsigned lanes_;
};

/// False if the warp could not do anything.
bool run_warp(Block& block, Warp& w) {
  bool ran = false;
  for (;;) {
    auto behind = w.splits.end();
    for (auto s = w.splits.begin(); s != w.splits.end(); ++s)
      if (!s->waits && (behind == w.splits.end() || s->at < behind->at)) behind = s;
    if (behind == w.splits.end()) return ran;
    const Split split = *behind;
    w.splits.erase(behind);
    Run(block, w, split).go();
    ran = true;
  }
}

void fill_specials(const Block& block, Warp& w) {
  for (const SpecialRegister& special : block.kernel->specials)
    for (int lane = 0; lane < 32; ++lane) {
      const auto thread = static_cast<unsigned>(w.first_thread + lane), rest = thread / block.size.x;
      const unsigned me = 1u << lane;
      const unsigned values[] = {thread % block.size.x,
                                 rest % block.size.y,
                                 rest / block.size.y,
                                 block.size.x,
                                 block.size.y,
                                 block.size.z,
                                 block.index.x,
                                 block.index.y,
                                 block.index.z,
                                 block.grid.x,
                                 block.grid.y,
                                 block.grid.z,
                                 static_cast<unsigned>(lane),
                                 static_cast<unsigned>(w.number),
                                 me,
                                 me - 1,
                                 me | (me - 1),
                                 ~(me | (me - 1)),
                                 ~(me - 1)};
      reinterpret_cast<unsigned*>(w.registers + special.offset)[lane] = values[static_cast<std::size_t>(special.which)];
    }
}

void begin_block(Block& block) {
  block.shared.begin_block();
  for (Warp& w : block.warps) {
    const int here = std::min(32, block.threads - w.first_thread);
    w.born = w.alive = here == 32 ? ~0u : (1u << here) - 1;
    w.at_barrier = false;
    w.splits.assign(1, {0, w.born, false});
    w.copies.clear();
    w.copy_group.fill(0);
    std::fill(w.local.begin(), w.local.end(), std::byte{0xFF});
    w.clock.reset();
    fill_specials(block, w);
  }
}

[[noreturn]] void report_stall(const Block& block) {
  std::string text;
  bool in_warp = false;
  for (const Warp& w : block.warps) {
    if (w.at_barrier || w.alive == 0) {
      text +=
          "warp " + std::to_string(w.number) + (w.alive == 0 ? " has exited; " : " waits at a barrier of the block; ");
      continue;
    }
    for (const Split& s : w.splits) {
      const Instruction& i = block.kernel->code[static_cast<std::size_t>(s.at)];
      const Statement& at = block.kernel->statements[i.statement];
      in_warp |= i.kind == Kind::collective;
      text += std::to_string(std::popcount(s.lanes)) + " lanes of warp " + std::to_string(w.number) + " wait at " +
              at.file + ":" + std::to_string(at.line) + " `" + at.text.substr(0, 60) + "`; ";
    }
  }
  throw Fault(in_warp ? "warp divergence" : "barrier divergence", cudaErrorLaunchFailure, text);
}

/// Warps in this order; each runs as far as it can before the next does.
void run_block(Block& block, const std::vector<int>& order) {
  begin_block(block);
  for (;;) {
    bool ran = false;
    for (const int n : order) {
      Warp& w = block.warps[static_cast<std::size_t>(n)];
      if (w.alive != 0 && !w.at_barrier) ran |= run_warp(block, w);
    }
    const auto all = [&](auto holds) { return std::all_of(block.warps.begin(), block.warps.end(), holds); };
    if (all([](const Warp& w) { return w.alive == 0; })) return;
    const bool exited = !all([](const Warp& w) { return w.alive != 0; });
    if (all([](const Warp& w) { return w.alive == 0 || w.at_barrier; }) && !(exited && block.strict_exit)) {
      block.shared.barrier();
      for (Warp& w : block.warps) {
        w.at_barrier = false;
        for (Split& s : w.splits) s.waits = false;
      }
    } else if (!ran) {
      report_stall(block);
    }
  }
}

}  // namespace

void fail(const Warp& w, const Instruction& i, int lane, const char* kind, int error, const std::string& text) {
  const Block& block = *w.block;
  const auto thread = static_cast<unsigned>(w.first_thread + lane), rest = thread / block.size.x;
  const Statement& statement = block.kernel->statements[i.statement];
  const auto triple = [](unsigned x, unsigned y, unsigned z) {
    return "(" + std::to_string(x) + "," + std::to_string(y) + "," + std::to_string(z) + ")";
  };
  throw Fault(kind, error,
              "block " + triple(block.index.x, block.index.y, block.index.z) + " thread " +
                  triple(thread % block.size.x, rest % block.size.y, rest / block.size.y) + ": " + text + ", at " +
                  statement.file + ":" + std::to_string(statement.line) + " `" + statement.text.substr(0, 100) + "`");
}

void run_grid(Block& block, std::size_t dynamic_bytes, Order order, std::uint64_t seed) {
  block.shared.begin_grid(*block.kernel, dynamic_bytes);
  std::vector<int> warps(block.warps.size());
  std::iota(warps.begin(), warps.end(), 0);
  if (order == Order::reverse) std::reverse(warps.begin(), warps.end());
  std::uint64_t state = seed * 0x9E3779B97F4A7C15u | 1;
  const auto random = [&] {
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
  };
  const std::uint64_t blocks = std::uint64_t{block.grid.x} * block.grid.y * block.grid.z;
  for (std::uint64_t b = 0; b < blocks; ++b) {
    const std::uint64_t n = order == Order::reverse ? blocks - 1 - b : b, rest = n / block.grid.x;
    block.index = {static_cast<unsigned>(n % block.grid.x), static_cast<unsigned>(rest % block.grid.y),
                   static_cast<unsigned>(rest / block.grid.y)};
    if (order == Order::random)
      for (std::size_t left = warps.size(); left > 1; --left) std::swap(warps[left - 1], warps[random() % left]);
    run_block(block, warps);
  }
}

}  // namespace cusim::ptx
