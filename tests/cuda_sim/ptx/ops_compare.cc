// tests/cuda_sim/ptx/ops_compare.cc: setp, set, selp.
#include <cmath>

#include "warp.h"

namespace cusim::ptx {
namespace {

enum Comparison : std::uint8_t { eq, ne, lt, le, gt, ge, equ, neu, ltu, leu, gtu, geu, num, nan };
constexpr std::pair<std::string_view, Comparison> kComparisons[] = {
    {"eq", eq},   {"ne", ne},   {"lt", lt},   {"le", le},   {"gt", gt},   {"ge", ge},
    {"lo", lt},   {"ls", le},   {"hi", gt},   {"hs", ge},   {"equ", equ}, {"neu", neu},
    {"ltu", ltu}, {"leu", leu}, {"gtu", gtu}, {"geu", geu}, {"num", num}, {"nan", nan}};
enum Combination : std::uint8_t { none, with_and, with_or, with_xor };

template <class T> bool unordered(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::isnan(a) || std::isnan(b);
  else return false;
}
template <Comparison kWhich, class T> bool holds(T a, T b) {
  if constexpr (kWhich == eq) return a == b;
  else if constexpr (kWhich == ne) return a != b && !unordered(a, b);
  else if constexpr (kWhich == lt) return a < b;
  else if constexpr (kWhich == le) return a <= b;
  else if constexpr (kWhich == gt) return a > b;
  else if constexpr (kWhich == ge) return a >= b;
  else if constexpr (kWhich == num) return !unordered(a, b);
  else if constexpr (kWhich == nan) return unordered(a, b);
  else return unordered(a, b) || holds<static_cast<Comparison>(kWhich - equ), T>(a, b);
}

// setp: p[|q], a, b[, c]
template <Comparison kWhich, class T> void compare(Warp& w, const Instruction& i, unsigned lanes) {
  const T *const a = w.values<T>(i.operands[i.count - (i.option != none ? 3 : 2)]),
                 *const b = w.values<T>(i.operands[i.count - (i.option != none ? 2 : 1)]);
  unsigned result = 0;
  for (int lane = 0; lane < 32; ++lane) result |= static_cast<unsigned>(holds<kWhich, T>(a[lane], b[lane])) << lane;
  unsigned opposite = ~result;
  if (i.option != none) {
    const unsigned c = w.predicate_value(i.operands[i.count - 1]);
    const auto combined = [&](unsigned x) {
      return i.option == with_and ? x & c : i.option == with_or ? x | c : x ^ c;
    };
    result = combined(result);
    opposite = combined(opposite);
  }
  unsigned& p = w.predicate(i.operands[0]);
  p = (p & ~lanes) | (result & lanes);
  if (i.elements == 2) {
    unsigned& q = w.predicate(i.operands[1]);
    q = (q & ~lanes) | (opposite & lanes);
  }
}

template <class T> Handler of_type(Comparison which) {
  switch (which) {
    case eq: return compare<eq, T>;
    case ne: return compare<ne, T>;
    case lt: return compare<lt, T>;
    case le: return compare<le, T>;
    case gt: return compare<gt, T>;
    case ge: return compare<ge, T>;
    case equ: return compare<equ, T>;
    case neu: return compare<neu, T>;
    case ltu: return compare<ltu, T>;
    case leu: return compare<leu, T>;
    case gtu: return compare<gtu, T>;
    case geu: return compare<geu, T>;
    case num: return compare<num, T>;
    case nan: return compare<nan, T>;
  }
  return nullptr;
}
Handler handler(std::string_view type, Comparison which) {
  if (type == "u16" || type == "b16") return of_type<std::uint16_t>(which);
  if (type == "s16") return of_type<std::int16_t>(which);
  if (type == "u32" || type == "b32") return of_type<std::uint32_t>(which);
  if (type == "s32") return of_type<std::int32_t>(which);
  if (type == "u64" || type == "b64") return of_type<std::uint64_t>(which);
  if (type == "s64") return of_type<std::int64_t>(which);
  if (type == "f32") return of_type<float>(which);
  if (type == "f64") return of_type<double>(which);
  return nullptr;
}

bool decode_setp(Decoder& d) {
  const Parsed& p = d.parsed();
  if (p.parts.size() != 3 && p.parts.size() != 4) return false;
  Instruction& made = d.made();
  if (p.parts.size() == 4) {
    made.option = p.parts[2] == "and" ? with_and : p.parts[2] == "or" ? with_or : p.parts[2] == "xor" ? with_xor : none;
    if (made.option == none) return false;
  }
  for (const auto& [name, which] : kComparisons)
    if (name == p.parts[1]) made.run = handler(p.type(), which);
  if (made.run == nullptr || p.fields.size() != (made.option != none ? 4 : 3)) return false;
  const std::string& results = p.fields[0].front();
  const std::size_t bar = results.find('|');
  d.add(std::string_view(results).substr(0, bar), 0);
  if (bar != std::string::npos) {
    d.add(std::string_view(results).substr(bar + 1), 0);
    made.elements = 2;
  }
  d.add_field(1, type_bytes(p.type()));
  d.add_field(2, type_bytes(p.type()));
  if (made.option != none) d.add_field(3, 0);
  return true;
}

template <class T> void select(Warp& w, const Instruction& i, unsigned lanes) {
  T* const result = w.lanes<T>(i.operands[0]);
  const T *const a = w.values<T>(i.operands[1]), *const b = w.values<T>(i.operands[2]);
  const unsigned chosen = w.predicate_value(i.operands[3]);
  each_lane(lanes, [&](int lane) { result[lane] = chosen >> lane & 1 ? a[lane] : b[lane]; });
}

}  // namespace

bool decode_compare(Decoder& d) {
  const Parsed& p = d.parsed();
  if (p.base() == "setp") return decode_setp(d);
  if (p.base() != "selp" || p.parts.size() != 2 || p.fields.size() != 4) return false;
  const unsigned bytes = type_bytes(p.type());
  d.made().run = bytes == 2 ? select<std::uint16_t> : bytes == 4 ? select<std::uint32_t> : select<std::uint64_t>;
  for (std::size_t i = 0; i < 3; ++i) d.add_field(i, bytes);
  d.add_field(3, 0);
  return bytes >= 2;
}

}  // namespace cusim::ptx
