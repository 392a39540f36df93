// tests/cuda_sim/ptx/ops_warp.cc: what lanes do together: shuffles, votes, barriers. The scheduler brings them
// together.
#include <algorithm>

#include "machine.h"

namespace cusim::ptx {
namespace {

enum Mode : std::uint8_t { up, down, butterfly, index };

// shfl.sync: d[|p], a, b, c, lanes. `elements` is 2 with p.
void shuffle(Warp& w, const Instruction& i, unsigned lanes) {
  const Operand* const in = i.operands + i.elements;
  std::array<std::uint32_t, 32> values;
  std::memcpy(values.data(), w.values<std::uint32_t>(in[0]), sizeof values);
  each_lane(lanes, [&](int lane) {
    const std::uint32_t b = w.values<std::uint32_t>(in[1])[lane] & 31, c = w.values<std::uint32_t>(in[2])[lane];
    const int segment = static_cast<int>(c >> 8 & 31), clamp = static_cast<int>(c & 31), step = static_cast<int>(b);
    const int last = (lane & segment) | (clamp & ~segment);
    int from = lane;
    switch (i.option) {
      case up: from = lane - step; break;
      case down: from = lane + step; break;
      case butterfly: from = lane ^ step; break;
      default: from = (lane & segment) | (step & ~segment);
    }
    const bool inside = i.option == up ? from >= last : from <= last;
    if (!inside) from = lane;
    // Of a lane that takes no part the value is undefined: bits that make a NaN.
    w.lanes<std::uint32_t>(i.operands[0])[lane] = lanes >> from & 1 ? values[static_cast<std::size_t>(from)] : ~0u;
    if (i.elements == 2) w.write(i.operands[1], lane, inside);
  });
}

enum Vote : std::uint8_t { ballot, any, all, uniform };
void vote(Warp& w, const Instruction& i, unsigned lanes) {
  const unsigned yes = w.predicate_value(i.operands[1]) & lanes;
  if (i.option == ballot) {
    each_lane(lanes, [&](int lane) { w.lanes<std::uint32_t>(i.operands[0])[lane] = yes; });
    return;
  }
  const bool result = i.option == any ? yes != 0 : i.option == all ? yes == lanes : yes == lanes || yes == 0;
  unsigned& p = w.predicate(i.operands[0]);
  p = result ? p | lanes : p & ~lanes;
}

template <class T> void match_any(Warp& w, const Instruction& i, unsigned lanes) {
  const T* const values = w.values<T>(i.operands[1]);
  std::array<unsigned, 32> results{};
  each_lane(lanes, [&](int lane) {
    each_lane(lanes,
              [&](int other) { results[lane] |= static_cast<unsigned>(values[lane] == values[other]) << other; });
  });
  each_lane(lanes, [&](int lane) { w.lanes<std::uint32_t>(i.operands[0])[lane] = results[lane]; });
}

enum Reduction : std::uint8_t { add, smallest, largest, conjunction, disjunction, difference };
template <class T> void reduce(Warp& w, const Instruction& i, unsigned lanes) {
  const T* const values = w.values<T>(i.operands[1]);
  T result = values[std::countr_zero(lanes)];
  each_lane(lanes & (lanes - 1), [&](int lane) {
    switch (i.option) {
      case add:
        result = static_cast<T>(static_cast<std::uint32_t>(result) + static_cast<std::uint32_t>(values[lane]));
        break;
      case smallest: result = std::min(result, values[lane]); break;
      case largest: result = std::max(result, values[lane]); break;
      case conjunction: result &= values[lane]; break;
      case disjunction: result |= values[lane]; break;
      default: result ^= values[lane];
    }
  });
  each_lane(lanes, [&](int lane) { w.lanes<T>(i.operands[0])[lane] = result; });
}

void active(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) { w.lanes<std::uint32_t>(i.operands[0])[lane] = lanes; });
}
void meet(Warp&, const Instruction&, unsigned) {}

template <std::size_t kCount>
bool choose(const std::pair<std::string_view, std::uint8_t> (&names)[kCount], std::string_view name,
            Instruction& made) {
  for (const auto& [text, which] : names)
    if (text == name) {
      made.option = which;
      return true;
    }
  return false;
}

bool decode_shuffle(Decoder& d) {
  const Parsed& p = d.parsed();
  constexpr std::pair<std::string_view, std::uint8_t> kModes[] = {
      {"up", up}, {"down", down}, {"bfly", butterfly}, {"idx", index}};
  if (p.parts.size() != 4 || p.parts[1] != "sync" || p.type() != "b32" || p.fields.size() != 5) return false;
  if (!choose(kModes, p.parts[2], d.made())) return false;
  d.made().run = shuffle;
  const std::string& results = p.fields[0].front();
  const std::size_t bar = results.find('|');
  d.add(std::string_view(results).substr(0, bar), 4);
  if (bar != std::string::npos) {
    d.add(std::string_view(results).substr(bar + 1), 0);
    d.made().elements = 2;
  }
  for (std::size_t field = 1; field < 5; ++field) d.add_field(field, 4);
  return true;
}

bool decode_vote(Decoder& d) {
  const Parsed& p = d.parsed();
  constexpr std::pair<std::string_view, std::uint8_t> kModes[] = {
      {"ballot", ballot}, {"any", any}, {"all", all}, {"uni", uniform}};
  if (p.parts.size() != 4 || p.parts[1] != "sync" || p.fields.size() != 3) return false;
  if (!choose(kModes, p.parts[2], d.made())) return false;
  d.made().run = vote;
  d.add_field(0, d.made().option == ballot ? 4 : 0);
  d.add_field(1, 0);
  d.add_field(2, 4);
  return true;
}

bool decode_reduce(Decoder& d) {
  const Parsed& p = d.parsed();
  constexpr std::pair<std::string_view, std::uint8_t> kModes[] = {{"add", add},        {"min", smallest},
                                                                  {"max", largest},    {"and", conjunction},
                                                                  {"or", disjunction}, {"xor", difference}};
  if (p.parts.size() != 4 || p.parts[1] != "sync" || p.fields.size() != 3) return false;
  if (!choose(kModes, p.parts[2], d.made())) return false;
  d.made().run = p.type() == "s32" ? reduce<std::int32_t> : reduce<std::uint32_t>;
  for (std::size_t field = 0; field < 3; ++field) d.add_field(field, 4);
  return type_bytes(p.type()) == 4;
}

bool decode_match(Decoder& d) {
  const Parsed& p = d.parsed();
  const bool wide = p.opcode == "match.any.sync.b64";
  if ((p.opcode != "match.any.sync.b32" && !wide) || p.fields.size() != 3) return false;
  d.made().run = wide ? match_any<std::uint64_t> : match_any<std::uint32_t>;
  d.add_field(0, 4);
  d.add_field(1, wide ? 8 : 4);
  d.add_field(2, 4);
  return true;
}

bool decode_warp_barrier(Decoder& d) {
  if (d.parsed().opcode != "bar.warp.sync" || d.parsed().fields.size() != 1) return false;
  d.made().run = meet;
  d.made().orders_memory = true;
  d.add_field(0, 4);
  return true;
}

}  // namespace

bool decode_warp(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  if (p.opcode == "activemask.b32") {
    made.run = active;
    d.add_field(0, 4);
    return true;
  }
  if (p.opcode == "bar.sync" || p.opcode == "barrier.sync" || p.opcode == "barrier.sync.aligned") {
    if (p.fields.size() != 1 || p.fields[0].front() != "0") d.refuse("only barrier 0, of all threads, is known");
    made.kind = Kind::block_barrier;
    return true;
  }
  made.kind = Kind::collective;
  made.names_lanes = true;
  if (p.base() == "shfl") return decode_shuffle(d);
  if (p.base() == "vote") return decode_vote(d);
  if (p.base() == "redux") return decode_reduce(d);
  if (p.base() == "match") return decode_match(d);
  if (decode_warp_barrier(d)) return true;
  made.kind = Kind::plain;
  made.names_lanes = false;
  return false;
}

}  // namespace cusim::ptx
