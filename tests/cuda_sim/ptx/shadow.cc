// tests/cuda_sim/ptx/shadow.cc
#include "shadow.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "program.h"

namespace cusim::ptx {
namespace {

constexpr std::uint32_t kSeveral = 99;  // in place of a warp's number: threads of several warps

}  // namespace

void WarpClock::reset() {
  own_.fill(1);
  for (auto& of : known_) of.fill(0);
}

void WarpClock::synchronise(unsigned lanes) {
  std::array<std::uint32_t, 32> joined{};
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::size_t other = 0; other < 32; ++other) joined[other] = std::max(joined[other], known_[lane][other]);
    joined[lane] = own_[lane]++;
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) known_[std::countr_zero(rest)] = joined;
}

void SharedSpace::begin_grid(const Kernel& kernel, std::size_t dynamic_bytes) {
  kernel_ = &kernel;
  variables_.assign(1, {});
  for (const SharedVariable& v : kernel.shared) variables_.push_back({v.name, v.offset, v.offset + v.bytes});
  const std::size_t end = kernel.dynamic_offset + dynamic_bytes;
  if (dynamic_bytes > 0) variables_.push_back({"dynamic shared memory", kernel.dynamic_offset, end});
  memory_.resize(end / sizeof(Line) + 1);
  variable_at_.assign(memory_.size() * sizeof(Line), 0);
  for (std::size_t v = 1; v < variables_.size(); ++v)
    std::fill(variable_at_.begin() + static_cast<std::ptrdiff_t>(variables_[v].begin),
              variable_at_.begin() + static_cast<std::ptrdiff_t>(variables_[v].end), static_cast<std::uint16_t>(v));
  grains_.assign(variable_at_.size() / kGrain, {});
  epoch_ = 0;
}

void SharedSpace::begin_block() {
  std::memset(static_cast<void*>(memory_.data()), 0xFF, memory_.size() * sizeof(Line));
  first_epoch_ = ++epoch_;
}

std::string SharedSpace::name_of(std::uint64_t offset) const {
  const std::size_t v = offset < variable_at_.size() ? variable_at_[offset] : 0;
  if (v == 0) return "offset " + std::to_string(offset) + " of shared memory";
  return "byte " + std::to_string(offset - variables_[v].begin) + " of " + variables_[v].name;
}

std::string SharedSpace::bounds(std::uint64_t offset, unsigned bytes) const {
  const std::size_t v = offset < variable_at_.size() ? variable_at_[offset] : 0;
  if (v != 0 && offset + bytes <= variables_[v].end) return {};
  return name_of(offset) + ", +" + std::to_string(bytes) + ", is outside of every variable";
}

bool SharedSpace::conflicts(const Accesses& past, const Accessor& who) const {
  if (past.epoch != epoch_) return false;
  if (past.warp != static_cast<std::uint32_t>(who.warp)) return true;
  for (unsigned rest = past.lanes & ~(1u << who.lane); rest != 0; rest &= rest - 1)
    if (!who.clock->knows(who.lane, std::countr_zero(rest), past.time)) return true;
  return false;
}

SharedSpace::Accesses SharedSpace::fresh(const Accessor& who) const {
  return {epoch_, who.clock->now(who.lane), 1u << who.lane, static_cast<std::uint32_t>(who.warp), who.statement};
}

void SharedSpace::record(Accesses& past, const Accessor& who) const {
  if (past.epoch != epoch_) {
    past = fresh(who);
  } else if (past.warp != static_cast<std::uint32_t>(who.warp)) {
    past.warp = kSeveral;
  } else {
    // Those that this lane knows of come before it, so whoever is ordered behind it is ordered behind them.
    for (unsigned rest = past.lanes; rest != 0; rest &= rest - 1)
      if (const int lane = std::countr_zero(rest); who.clock->knows(who.lane, lane, past.time))
        past.lanes &= ~(1u << lane);
    past.lanes |= 1u << who.lane;
    past.time = std::max(past.time, who.clock->now(who.lane));
    past.statement = who.statement;
  }
}

std::string SharedSpace::race(const Accesses& past, const char* did, const char* does, std::uint32_t offset) {
  raced_ = true;
  const Statement& statement = kernel_->statements[past.statement];
  std::string whom = "threads of several warps";
  if (past.warp != kSeveral)
    whom = "thread " + std::to_string(past.warp * 32 + static_cast<unsigned>(std::countr_zero(past.lanes)));
  return std::string(does) + " " + name_of(offset) + ", which " + whom + " " + did + " at " + statement.file + ":" +
         std::to_string(statement.line) + ", without a barrier between";
}

std::string SharedSpace::read(std::uint32_t offset, unsigned bytes, const Accessor& who) {
  raced_ = false;
  for (std::uint32_t at = offset / kGrain; at <= (offset + bytes - 1) / kGrain; ++at) {
    Grain& g = grains_[at];
    if (!initialised(g)) return "reads " + name_of(std::max(offset, at * kGrain)) + ", which nobody has written";
    if (conflicts(g.written, who)) return race(g.written, "wrote", "reads", at * kGrain);
    if (conflicts(g.updated, who)) return race(g.updated, "updated", "reads", at * kGrain);
    record(g.read, who);
  }
  return {};
}

std::string SharedSpace::write(std::uint32_t offset, unsigned bytes, const Accessor& who) {
  raced_ = false;
  for (std::uint32_t at = offset / kGrain; at <= (offset + bytes - 1) / kGrain; ++at) {
    Grain& g = grains_[at];
    if (conflicts(g.written, who)) return race(g.written, "wrote", "writes", at * kGrain);
    if (conflicts(g.updated, who)) return race(g.updated, "updated", "writes", at * kGrain);
    if (conflicts(g.read, who)) return race(g.read, "read", "writes", at * kGrain);
    g.written = fresh(who);
    g.read.epoch = g.updated.epoch = 0;
  }
  return {};
}

std::string SharedSpace::update(std::uint32_t offset, unsigned bytes, const Accessor& who) {
  raced_ = false;
  for (std::uint32_t at = offset / kGrain; at <= (offset + bytes - 1) / kGrain; ++at) {
    Grain& g = grains_[at];
    if (!initialised(g)) return "updates " + name_of(std::max(offset, at * kGrain)) + ", which nobody has written";
    if (conflicts(g.written, who)) return race(g.written, "wrote", "updates", at * kGrain);
    if (conflicts(g.read, who)) return race(g.read, "read", "updates", at * kGrain);
    record(g.updated, who);
  }
  return {};
}

void SharedSpace::forget(std::uint32_t offset, unsigned bytes) {
  std::memset(at(offset), 0xFF, bytes);
  for (std::uint32_t at = offset / kGrain; at <= (offset + bytes - 1) / kGrain; ++at)
    grains_[at].written.epoch = grains_[at].updated.epoch = 0;
}

}  // namespace cusim::ptx
