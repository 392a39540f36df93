// tests/cuda_sim/ptx/warp.h: a warp under execution, and operations that do the same in every lane.
#pragma once

#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "decoder.h"
#include "program.h"
#include "shadow.h"

namespace cusim::ptx {

struct Block;

/// Lanes that are at the same instruction.
struct Split {
  int at;
  unsigned lanes;
  bool waits;  ///< for other lanes, at a collective or a barrier
};

/// A copy of cp.async on its way.
struct AsyncCopy {
  int lane;
  std::uint32_t to;
  std::uint8_t bytes;
  std::array<std::byte, 16> data;
  std::uint32_t group;
};

struct Warp {
  std::byte* registers = nullptr;
  const std::byte* constants = nullptr;
  Block* block = nullptr;
  int first_thread = 0, number = 0;
  unsigned born = 0, alive = 0;  ///< lanes
  bool at_barrier = false;
  std::vector<Split> splits;
  std::vector<AsyncCopy> copies;
  std::array<std::uint32_t, 32> copy_group{};
  std::vector<std::byte> local;
  WarpClock clock;

  template <class T> T* lanes(const Operand& o) { return reinterpret_cast<T*>(registers + o.offset); }
  template <class T> const T* values(const Operand& o) const {
    return reinterpret_cast<const T*>((o.constant ? constants : registers) + o.offset);
  }
  unsigned& predicate(const Operand& o) { return *lanes<unsigned>(o); }
  unsigned predicate_value(const Operand& o) const { return *values<unsigned>(o); }

  /// The bits of one lane, whatever the width.
  std::uint64_t read(const Operand& o, int lane) const {
    switch (o.bytes) {
      case 2: return values<std::uint16_t>(o)[lane];
      case 4: return values<std::uint32_t>(o)[lane];
      case 8: return values<std::uint64_t>(o)[lane];
      default: return predicate_value(o) >> lane & 1;
    }
  }
  void write(const Operand& o, int lane, std::uint64_t bits) {
    if (o.constant) return;  // "_" takes what nobody wants
    switch (o.bytes) {
      case 2: lanes<std::uint16_t>(o)[lane] = static_cast<std::uint16_t>(bits); break;
      case 4: lanes<std::uint32_t>(o)[lane] = static_cast<std::uint32_t>(bits); break;
      case 8: lanes<std::uint64_t>(o)[lane] = bits; break;
      default: predicate(o) = (predicate(o) & ~(1u << lane)) | (bits != 0 ? 1u << lane : 0);
    }
  }
};

template <class F> void each_lane(unsigned lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

/// What a kernel did wrong; ends the grid.
struct Fault : std::runtime_error {
  Fault(const char* kind_, int error_, const std::string& text) : runtime_error(text), kind(kind_), error(error_) {}
  const char* kind;
  int error;
};
/// Names the thread, the instruction and its place in the source.
[[noreturn]] void fail(const Warp& warp, const Instruction& instruction, int lane, const char* kind, int error,
                       const std::string& text);

/// result = F(operands) in each lane.
template <auto kFunction> struct Each;
template <class D, class... A, D (*kFunction)(A...)> struct Each<kFunction> {
  static void run(Warp& warp, const Instruction& i, unsigned lanes) {
    run(warp, i, lanes, std::index_sequence_for<A...>());
  }
  static Row row() { return {run, {sizeof(D), sizeof(A)...}}; }

 private:
  template <std::size_t... k>
  static void run(Warp& warp, const Instruction& i, unsigned lanes, std::index_sequence<k...>) {
    D* const result = warp.lanes<D>(i.operands[0]);
    const auto all = [&](const A*... from) {
      if (lanes == ~0u) {
#pragma GCC ivdep
        for (int lane = 0; lane < 32; ++lane) result[lane] = kFunction(from[lane]...);
      } else {
        each_lane(lanes, [&](int lane) { result[lane] = kFunction(from[lane]...); });
      }
    };
    all(warp.values<A>(i.operands[1 + k])...);
  }
};
template <auto kFunction> Row each() { return Each<kFunction>::row(); }

}  // namespace cusim::ptx
