// tests/cuda_sim/ptx/ops_move.cc: mov, and the branches, which only say where to go.
#include "warp.h"

namespace cusim::ptx {
namespace {

template <class T> void move(Warp& w, const Instruction& i, unsigned lanes) {
  T* const to = w.lanes<T>(i.operands[0]);
  const T* const from = w.values<T>(i.operands[1]);
  if (lanes == ~0u) std::memmove(to, from, 32 * sizeof(T));
  else each_lane(lanes, [&](int lane) { to[lane] = from[lane]; });
}
void move_predicate(Warp& w, const Instruction& i, unsigned lanes) {
  unsigned& to = w.predicate(i.operands[0]);
  to = (to & ~lanes) | (w.predicate_value(i.operands[1]) & lanes);
}
/// The first operand holds the others, lowest first.
void pack(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) {
    std::uint64_t bits = 0;
    int shift = 0;
    for (int part = 1; part < i.count; ++part) {
      bits |= w.read(i.operands[part], lane) << shift;
      shift += 8 * i.operands[part].bytes;
    }
    w.write(i.operands[0], lane, bits);
  });
}
/// The last operand goes into the others, lowest first.
void unpack(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) {
    std::uint64_t bits = w.read(i.operands[i.count - 1], lane);
    for (int part = 0; part + 1 < i.count; ++part) {
      w.write(i.operands[part], lane, bits);
      bits >>= 8 * i.operands[part].bytes;
    }
  });
}

bool decode_mov(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  const unsigned bytes = type_bytes(p.type());
  if (p.parts.size() != 2 || p.fields.size() != 2) return false;
  const std::size_t to = p.fields[0].size(), from = p.fields[1].size();
  const unsigned part = bytes / static_cast<unsigned>(std::max(to, from));
  d.add_field(0, to > 1 ? part : bytes);
  d.add_field(1, from > 1 ? part : bytes);
  if (to > 1) made.run = unpack;
  else if (from > 1) made.run = pack;
  else if (bytes == 0) made.run = move_predicate;
  else made.run = bytes == 2 ? move<std::uint16_t> : bytes == 4 ? move<std::uint32_t> : move<std::uint64_t>;
  return true;
}

}  // namespace

bool decode_move(Decoder& d) {
  const Parsed& p = d.parsed();
  if (p.base() == "mov") return decode_mov(d);
  Instruction& made = d.made();
  if (p.opcode == "bra" || p.opcode == "bra.uni") {
    made.kind = Kind::branch;
    d.branch_to(p.fields.at(0).at(0));
    return true;
  }
  if (p.opcode == "ret" || p.opcode == "exit") {
    made.kind = Kind::leave;
    return true;
  }
  return false;
}

}  // namespace cusim::ptx
