// tests/cuda_sim/ptx/ops_integer.cc: integers, bits and predicates.
#include <algorithm>
#include <limits>

#include "warp.h"

namespace cusim::ptx {
namespace {

using u16 = std::uint16_t;
using s16 = std::int16_t;
using u32 = std::uint32_t;
using s32 = std::int32_t;
using u64 = std::uint64_t;
using s64 = std::int64_t;
__extension__ using s128 = __int128;
__extension__ using u128 = unsigned __int128;

template <class T> T add(T a, T b) { return static_cast<T>(a + b); }
template <class T> T sub(T a, T b) { return static_cast<T>(a - b); }
template <class T> T mul(T a, T b) { return static_cast<T>(a * b); }
template <class T> T mad(T a, T b, T c) { return static_cast<T>(a * b + c); }
template <class T> T neg(T a) { return static_cast<T>(T{0} - a); }
template <class T> T absolute(T a) { return a < 0 ? neg(a) : a; }
template <class T> T smaller(T a, T b) { return std::min(a, b); }
template <class T> T larger(T a, T b) { return std::max(a, b); }
template <class Wide, class T> Wide mul_wide(T a, T b) { return static_cast<Wide>(a) * static_cast<Wide>(b); }
template <class Wide, class T> Wide mad_wide(T a, T b, Wide c) {
  return static_cast<Wide>(a) * static_cast<Wide>(b) + c;
}
template <class Wide, class T> T mul_high(T a, T b) {
  return static_cast<T>((static_cast<Wide>(a) * static_cast<Wide>(b)) >> (8 * sizeof(T)));
}
template <class Wide, class T> T mad_high(T a, T b, T c) { return static_cast<T>(mul_high<Wide, T>(a, b) + c); }
// By zero: all bits, which is what the device gives. Unsigned arithmetic wraps where signed must not.
template <class T> T divide(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if constexpr (std::numeric_limits<T>::is_signed)
    if (b == -1) return static_cast<T>(0 - static_cast<u64>(a));
  return static_cast<T>(a / b);
}
template <class T> T remainder(T a, T b) {
  if (b == 0) return a;
  if constexpr (std::numeric_limits<T>::is_signed)
    if (b == -1) return 0;
  return static_cast<T>(a % b);
}
template <class T> T conjunction(T a, T b) { return static_cast<T>(a & b); }
template <class T> T disjunction(T a, T b) { return static_cast<T>(a | b); }
template <class T> T difference(T a, T b) { return static_cast<T>(a ^ b); }
template <class T> T complement(T a) { return static_cast<T>(~a); }
template <class T> T logical_not(T a) { return a == 0; }
template <class T> T shift_left(T a, u32 n) { return n >= 8 * sizeof(T) ? T{0} : static_cast<T>(a << n); }
template <class T> T shift_right(T a, u32 n) {
  return static_cast<T>(a >> std::min<u32>(n, 8 * sizeof(T) - 1)) & (n >= 8 * sizeof(T) && a >= 0 ? T{0} : ~T{0});
}
u32 funnel_left(u32 low, u32 high, u32 n) { return static_cast<u32>((u64{high} << 32 | low) << (n & 31) >> 32); }
u32 funnel_right(u32 low, u32 high, u32 n) { return static_cast<u32>((u64{high} << 32 | low) >> (n & 31)); }
u32 funnel_left_clamp(u32 low, u32 high, u32 n) {
  return static_cast<u32>((u64{high} << 32 | low) << std::min(n, 32u) >> 32);
}
u32 funnel_right_clamp(u32 low, u32 high, u32 n) {
  return static_cast<u32>((u64{high} << 32 | low) >> std::min(n, 32u));
}

template <class T> u32 count_ones(T a) { return static_cast<u32>(std::popcount(a)); }
template <class T> u32 leading_zeros(T a) { return static_cast<u32>(std::countl_zero(a)); }
u32 reverse_bits(u32 a) {
  u32 result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (a >> bit & 1) << (31 - bit);
  return result;
}
u64 reverse_bits_64(u64 a) {
  return u64{reverse_bits(static_cast<u32>(a))} << 32 | reverse_bits(static_cast<u32>(a >> 32));
}
template <class T> u32 highest_bit(T a) { return a == 0 ? ~0u : static_cast<u32>(std::bit_width(a) - 1); }
template <class T> u32 highest_bit_shift(T a) { return a == 0 ? ~0u : static_cast<u32>(std::countl_zero(a)); }
template <class T> T extract(T a, u32 from, u32 bits) {
  from &= 255, bits &= 255;
  using U = std::make_unsigned_t<T>;
  constexpr u32 kBits = 8 * sizeof(T);
  if (bits == 0) return 0;
  const U sign = std::numeric_limits<T>::is_signed ? static_cast<U>(a) >> std::min(from + bits - 1, kBits - 1) & 1 : 0;
  U result = from >= kBits ? U{0} : static_cast<U>(static_cast<U>(a) >> from);
  const u32 there = from >= kBits ? 0 : std::min(bits, kBits - from);
  if (there < kBits) {
    const U mask = static_cast<U>((U{1} << there) - 1);
    result = static_cast<U>((result & mask) | (sign != 0 ? static_cast<U>(~mask) : U{0}));
  }
  return static_cast<T>(result);
}
template <class T> T insert(T a, T b, u32 from, u32 bits) {
  from &= 255, bits &= 255;
  constexpr u32 kBits = 8 * sizeof(T);
  if (bits == 0 || from >= kBits) return b;
  const T low = bits >= kBits ? ~T{0} : static_cast<T>((T{1} << bits) - 1);
  const T mask = static_cast<T>(low << from);
  return static_cast<T>((b & ~mask) | (static_cast<T>(a << from) & mask));
}
u32 permute(u32 a, u32 b, u32 selector) {
  const u64 bytes = u64{b} << 32 | a;
  u32 result = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 code = selector >> (4 * i) & 15;
    u32 byte = static_cast<u32>(bytes >> (8 * (code & 7))) & 255;
    if (code & 8) byte = byte & 128 ? 255 : 0;
    result |= byte << (8 * i);
  }
  return result;
}
u32 look_up(u32 a, u32 b, u32 c, u32 table) {
  u32 result = 0;
  for (u32 i = 0; i < 8; ++i)
    if (table >> i & 1) result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return result;
}
template <class A, class B> s32 dot4(u32 a, u32 b, s32 c) {
  u32 sum = static_cast<u32>(c);
  for (int i = 0; i < 4; ++i)
    sum += static_cast<u32>(s32{static_cast<A>(a >> (8 * i))} * s32{static_cast<B>(b >> (8 * i))});
  return static_cast<s32>(sum);
}

template <unsigned (*kFunction)(unsigned, unsigned)> void of_predicates(Warp& w, const Instruction& i, unsigned lanes) {
  const unsigned b = i.count > 2 ? w.predicate_value(i.operands[2]) : 0;
  const unsigned value = kFunction(w.predicate_value(i.operands[1]), b);
  unsigned& result = w.predicate(i.operands[0]);
  result = (result & ~lanes) | (value & lanes);
}
unsigned not_of(unsigned a, unsigned) { return ~a; }

template <class T> void add_sized(Table& t, const char* suffix) {
  static std::vector<std::string>& names = *new std::vector<std::string>;
  names.reserve(64);
  const auto put = [&](const char* name, Row row) {
    names.push_back(std::string(name) + "." + suffix);
    t.emplace(names.back(), std::move(row));
  };
  put("add", each<add<T>>());
  put("sub", each<sub<T>>());
  put("mul.lo", each<mul<T>>());
  put("mad.lo", each<mad<T>>());
  put("div", each<divide<T>>());
  put("rem", each<remainder<T>>());
  put("min", each<smaller<T>>());
  put("max", each<larger<T>>());
  put("shr", each<shift_right<T>>());
  if constexpr (std::numeric_limits<T>::is_signed) {
    put("neg", each<neg<T>>());
    put("abs", each<absolute<T>>());
  }
}
template <class T> void add_bits(Table& t, const char* suffix) {
  static std::vector<std::string>& names = *new std::vector<std::string>;
  names.reserve(64);
  const auto put = [&](const char* name, Row row) {
    names.push_back(std::string(name) + "." + suffix);
    t.emplace(names.back(), std::move(row));
  };
  put("and", each<conjunction<T>>());
  put("or", each<disjunction<T>>());
  put("xor", each<difference<T>>());
  put("not", each<complement<T>>());
  put("cnot", each<logical_not<T>>());
  put("shl", each<shift_left<T>>());
  put("shr", each<shift_right<T>>());
}

Table make_table() {
  Table t = {
      {"mul.wide.u16", each<mul_wide<u32, u16>>()},
      {"mul.wide.s16", each<mul_wide<s32, s16>>()},
      {"mul.wide.u32", each<mul_wide<u64, u32>>()},
      {"mul.wide.s32", each<mul_wide<s64, s32>>()},
      {"mad.wide.u16", each<mad_wide<u32, u16>>()},
      {"mad.wide.s16", each<mad_wide<s32, s16>>()},
      {"mad.wide.u32", each<mad_wide<u64, u32>>()},
      {"mad.wide.s32", each<mad_wide<s64, s32>>()},
      {"mul.hi.u32", each<mul_high<u64, u32>>()},
      {"mul.hi.s32", each<mul_high<s64, s32>>()},
      {"mul.hi.u64", each<mul_high<u128, u64>>()},
      {"mul.hi.s64", each<mul_high<s128, s64>>()},
      {"mad.hi.u32", each<mad_high<u64, u32>>()},
      {"mad.hi.s32", each<mad_high<s64, s32>>()},
      {"shf.l.wrap.b32", each<funnel_left>()},
      {"shf.r.wrap.b32", each<funnel_right>()},
      {"shf.l.clamp.b32", each<funnel_left_clamp>()},
      {"shf.r.clamp.b32", each<funnel_right_clamp>()},
      {"popc.b32", each<count_ones<u32>>()},
      {"popc.b64", each<count_ones<u64>>()},
      {"clz.b32", each<leading_zeros<u32>>()},
      {"clz.b64", each<leading_zeros<u64>>()},
      {"brev.b32", each<reverse_bits>()},
      {"brev.b64", each<reverse_bits_64>()},
      {"bfind.u32", each<highest_bit<u32>>()},
      {"bfind.u64", each<highest_bit<u64>>()},
      {"bfind.shiftamt.u32", each<highest_bit_shift<u32>>()},
      {"bfind.shiftamt.u64", each<highest_bit_shift<u64>>()},
      {"bfe.u32", each<extract<u32>>()},
      {"bfe.s32", each<extract<s32>>()},
      {"bfe.u64", each<extract<u64>>()},
      {"bfe.s64", each<extract<s64>>()},
      {"bfi.b32", each<insert<u32>>()},
      {"bfi.b64", each<insert<u64>>()},
      {"prmt.b32", each<permute>()},
      {"lop3.b32", each<look_up>()},
      {"dp4a.s32.s32", each<dot4<std::int8_t, std::int8_t>>()},
      {"dp4a.u32.s32", each<dot4<std::uint8_t, std::int8_t>>()},
      {"dp4a.s32.u32", each<dot4<std::int8_t, std::uint8_t>>()},
      {"dp4a.u32.u32", each<dot4<std::uint8_t, std::uint8_t>>()},
      {"and.pred", {of_predicates<conjunction<unsigned>>, {0, 0, 0}}},
      {"or.pred", {of_predicates<disjunction<unsigned>>, {0, 0, 0}}},
      {"xor.pred", {of_predicates<difference<unsigned>>, {0, 0, 0}}},
      {"not.pred", {of_predicates<not_of>, {0, 0}}},
  };
  add_sized<u16>(t, "u16");
  add_sized<s16>(t, "s16");
  add_sized<u32>(t, "u32");
  add_sized<s32>(t, "s32");
  add_sized<u64>(t, "u64");
  add_sized<s64>(t, "s64");
  add_bits<u16>(t, "b16");
  add_bits<u32>(t, "b32");
  add_bits<u64>(t, "b64");
  return t;
}

}  // namespace

bool decode_integer(Decoder& decoder) {
  static const Table& table = *new Table(make_table());
  return decode_by(table, decoder);
}

}  // namespace cusim::ptx
