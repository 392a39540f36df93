// tests/cuda_sim/ptx/ops_copy.cc: cp.async. What it copies is there when its lane has waited for it, and not before.
#include "machine.h"

namespace cusim::ptx {
namespace {

// to, from, bytes[, bytes that are read; the others become 0]
void begin_copy(Warp& w, const Instruction& i, unsigned lanes) {
  std::array<std::uint64_t, 32> from{}, to{};
  const auto bytes = static_cast<unsigned>(w.read(i.operands[2], 0));
  each_lane(lanes, [&](int lane) {
    to[lane] = w.read(i.operands[0], lane) + i.target_offset;
    from[lane] = w.read(i.operands[1], lane) + static_cast<std::uint64_t>(i.offset);
    const auto taken = i.count > 3 ? static_cast<unsigned>(w.read(i.operands[3], lane)) : bytes;
    AsyncCopy copy{
        lane, static_cast<std::uint32_t>(to[lane]), static_cast<std::uint8_t>(bytes), {}, w.copy_group[lane]};
    reach(w, i, lane, Space::shared, to[lane], bytes, Access::write);
    if (taken > bytes)
      fail(w, i, lane, "illegal address", cudaErrorIllegalAddress, "more bytes are read than are copied");
    if (from[lane] % bytes != 0 && taken > 0)
      fail(w, i, lane, "misaligned address", cudaErrorMisalignedAddress, "the source of a copy is not aligned");
    if (taken > 0) {
      if (const char* wrong = w.block->global.check(from[lane], taken); wrong != nullptr)
        fail(w, i, lane, "illegal address", cudaErrorIllegalAddress,
             describe(reinterpret_cast<void*>(from[lane])) + wrong);
      std::memcpy(copy.data.data(), reinterpret_cast<const void*>(from[lane]), taken);
    }
    w.block->shared.forget(copy.to, bytes);
    w.copies.push_back(copy);
  });
  if (w.block->counting && lanes != 0) {
    w.block->count_global(from, lanes, bytes);
    w.block->count_shared(to, lanes, bytes);
  }
}

void commit(Warp& w, const Instruction&, unsigned lanes) {
  each_lane(lanes, [&](int lane) { ++w.copy_group[lane]; });
}

/// All but the last groups of a lane, as many as the operand says; without one, all.
void wait(Warp& w, const Instruction& i, unsigned lanes) {
  const bool all = i.count == 0;
  const auto last = all ? 0 : static_cast<std::uint32_t>(w.read(i.operands[0], 0));
  std::erase_if(w.copies, [&](const AsyncCopy& copy) {
    if ((lanes >> copy.lane & 1) == 0 || (!all && copy.group + last >= w.copy_group[copy.lane])) return false;
    std::memcpy(reach(w, i, copy.lane, Space::shared, copy.to, copy.bytes, Access::write), copy.data.data(),
                copy.bytes);
    return true;
  });
}

}  // namespace

bool decode_copy(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  if (p.base() != "cp" || p.parts.size() < 3 || p.parts[1] != "async") return false;
  if (p.parts[2] == "commit_group") {
    made.run = commit;
    return true;
  }
  if (p.parts[2] == "wait_group" || p.parts[2] == "wait_all") {
    made.run = wait;
    if (p.parts[2] == "wait_group") d.add_field(0, 4);
    return true;
  }
  if ((p.parts[2] != "ca" && p.parts[2] != "cg") || p.parts.size() < 5 || p.parts[3].substr(0, 6) != "shared" ||
      p.parts[4] != "global" || p.fields.size() < 3 || p.fields.size() > 4)
    return false;
  made.run = begin_copy;
  d.add_address(0);
  made.target_offset = std::exchange(made.offset, 0);
  d.add_address(1);
  d.add_field(2, 4);
  if (p.fields.size() == 4) d.add_field(3, 4);
  return true;
}

}  // namespace cusim::ptx
