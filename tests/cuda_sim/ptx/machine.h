// tests/cuda_sim/ptx/machine.h: the block under execution.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <vector>

#include "internal.h"
#include "program.h"
#include "ptx.h"
#include "shadow.h"
#include "warp.h"

namespace cusim::ptx {

/// Device and pinned memory as it was when somebody last looked, and variables of modules.
class GlobalMemory {
 public:
  /// Null, or what is wrong with the address.
  const char* check(std::uint64_t address, unsigned bytes) {
    if (address >= begin_ && address + bytes <= end_) return nullptr;
    return look_up(address, bytes);
  }
  void add(const GlobalVariable& variable);

 private:
  const char* look_up(std::uint64_t address, unsigned bytes);

  std::uint64_t begin_ = 1, end_ = 0;  // of the allocation touched last
  std::vector<std::pair<std::uint64_t, std::uint64_t>> variables_;
};

struct Block {
  const Kernel* kernel = nullptr;
  dim3 grid, size;
  uint3 index{};
  std::vector<Warp> warps;
  int threads = 0;
  SharedSpace shared;
  GlobalMemory global;
  std::vector<std::byte> parameters;
  PtxCounts counts;
  bool counting = false, strict_exit = true;

  // ops_memory.cc: what a request of a warp costs.
  void count_global(const std::array<std::uint64_t, 32>& addresses, unsigned lanes, unsigned bytes);
  void count_shared(const std::array<std::uint64_t, 32>& addresses, unsigned lanes, unsigned bytes);
};

/// Where a lane's access goes. Fails where the kernel may not touch it; `write` says what is about to happen.
enum class Access : std::uint8_t { read, write, update };
std::byte* reach(Warp& warp, const Instruction& i, int lane, Space space, std::uint64_t address, unsigned bytes,
                 Access access);
/// The lane's address, by the operand and the offset.
inline std::uint64_t address_of(const Warp& warp, const Instruction& i, const Operand& base, int lane) {
  return warp.read(base, lane) + static_cast<std::uint64_t>(i.offset);
}
/// Of the parts of an opcode; false where none says it.
bool take_space(std::string_view part, Space& space);

/// Runs all blocks, one after another. Throws Fault.
void run_grid(Block& block, std::size_t dynamic_bytes, Order order, std::uint64_t seed);

}  // namespace cusim::ptx
