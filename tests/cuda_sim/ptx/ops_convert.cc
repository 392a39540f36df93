// tests/cuda_sim/ptx/ops_convert.cc: cvt, cvta.
#include <cmath>
#include <limits>

#include "cuda_bf16.h"
#include "warp.h"

namespace cusim::ptx {
namespace {

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};
template <class T>
constexpr bool kFloat = std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>;

enum Option : std::uint8_t { rounds = 3, nearest = 0, zero = 1, down = 2, up = 3, saturates = 4, flushes = 8 };

template <class T> T from_bits(std::uint64_t bits) {
  if constexpr (sizeof(T) == 8) return std::bit_cast<T>(bits);
  else if constexpr (sizeof(T) == 4) return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  else if constexpr (sizeof(T) == 2) return std::bit_cast<T>(static_cast<std::uint16_t>(bits));
  else return std::bit_cast<T>(static_cast<std::uint8_t>(bits));
}
template <class T> std::uint64_t to_bits(T value) {  // signed numbers with their sign
  if constexpr (std::is_integral_v<T>) return static_cast<std::uint64_t>(value);
  else if constexpr (sizeof(T) == 8) return std::bit_cast<std::uint64_t>(value);
  else if constexpr (sizeof(T) == 4) return std::bit_cast<std::uint32_t>(value);
  else return value.bits;
}

double round_to_whole(double x, unsigned how) {
  switch (how) {
    case zero: return std::trunc(x);
    case down: return std::floor(x);
    case up: return std::ceil(x);
    default: return std::nearbyint(x);
  }
}
template <class To> To to_integer(double x, unsigned how) {
  using Limits = std::numeric_limits<To>;
  if (std::isnan(x)) return sizeof(To) == 8 ? Limits::min() : To{0};
  x = round_to_whole(x, how);
  if (x <= static_cast<double>(Limits::min())) return Limits::min();
  if (x >= static_cast<double>(Limits::max())) return Limits::max();
  return static_cast<To>(x);
}
float widened(Half h) { return from_half_bits(h.bits); }
float widened(Bfloat b) { return from_bfloat_bits(b.bits); }
float widened(float f) { return f; }
double widened(double d) { return d; }

template <class To, class Wide> To to_float(Wide x) {
  if constexpr (std::is_same_v<To, Half>) return {half_bits(static_cast<float>(x))};
  else if constexpr (std::is_same_v<To, Bfloat>) return {bfloat_bits(static_cast<float>(x))};
  else return static_cast<To>(x);
}

template <class To, class From> To converted(From from, unsigned option) {
  if constexpr (kFloat<From> && !kFloat<To>) {
    return to_integer<To>(widened(from), option & rounds);
  } else if constexpr (kFloat<From>) {
    auto x = widened(from);
    if ((option & flushes) && std::fpclassify(x) == FP_SUBNORMAL) x = std::copysign(x * 0, x);
    if (option & saturates) x = x > 1 ? 1 : x > 0 ? x : 0;  // NaN: 0
    return to_float<To>(x);
  } else if constexpr (kFloat<To>) {
    return to_float<To>(std::conditional_t<std::is_same_v<To, double>, double, float>(from));
  } else {
    if (!(option & saturates)) return static_cast<To>(from);
    using Limits = std::numeric_limits<To>;
    if (std::cmp_less(from, Limits::min())) return Limits::min();
    return std::cmp_greater(from, Limits::max()) ? Limits::max() : static_cast<To>(from);
  }
}

template <class To, class From> void convert(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) {
    const From from = from_bits<From>(w.read(i.operands[1], lane));
    w.write(i.operands[0], lane, to_bits(converted<To>(from, i.option)));
  });
}
/// Float to a whole number of the same type.
template <class T> void round_float(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) {
    const double whole = round_to_whole(widened(w.values<T>(i.operands[1])[lane]), i.option & rounds);
    w.lanes<T>(i.operands[0])[lane] = static_cast<T>(whole);
  });
}
template <std::uint16_t (*kBits)(float)> void convert_two(Warp& w, const Instruction& i, unsigned lanes) {
  each_lane(lanes, [&](int lane) {
    const std::uint32_t high = kBits(w.values<float>(i.operands[1])[lane]);
    w.lanes<std::uint32_t>(i.operands[0])[lane] = high << 16 | kBits(w.values<float>(i.operands[2])[lane]);
  });
}

template <class F> Handler with_type(std::string_view type, F&& f) {
  if (type == "u8") return f.template operator()<std::uint8_t>();
  if (type == "s8") return f.template operator()<std::int8_t>();
  if (type == "u16") return f.template operator()<std::uint16_t>();
  if (type == "s16") return f.template operator()<std::int16_t>();
  if (type == "u32") return f.template operator()<std::uint32_t>();
  if (type == "s32") return f.template operator()<std::int32_t>();
  if (type == "u64") return f.template operator()<std::uint64_t>();
  if (type == "s64") return f.template operator()<std::int64_t>();
  if (type == "f16") return f.template operator()<Half>();
  if (type == "bf16") return f.template operator()<Bfloat>();
  if (type == "f32") return f.template operator()<float>();
  if (type == "f64") return f.template operator()<double>();
  return nullptr;
}
Handler handler(std::string_view to, std::string_view from) {
  return with_type(
      to, [&]<class To>() { return with_type(from, []<class From>() -> Handler { return convert<To, From>; }); });
}

bool is_float(std::string_view type) { return type.find('f') != std::string_view::npos; }

bool decode_cvt(Decoder& d) {
  const Parsed& p = d.parsed();
  Instruction& made = d.made();
  const std::size_t types = p.parts.size() - 2;
  const std::string_view to = p.parts[types], from = p.parts[types + 1];
  bool whole = false;
  for (std::size_t i = 1; i < types; ++i) {
    const std::string_view part = p.parts[i];
    constexpr std::pair<std::string_view, int> kRounds[] = {
        {"rni", nearest}, {"rzi", zero}, {"rmi", down}, {"rpi", up}};
    const auto* const found =
        std::find_if(std::begin(kRounds), std::end(kRounds), [&](auto& r) { return r.first == part; });
    if (found != std::end(kRounds)) {
      made.option = static_cast<std::uint8_t>(made.option | found->second);
      whole = true;
    } else if (part == "sat") {
      made.option |= saturates;
    } else if (part == "ftz") {
      made.option |= flushes;
    } else if (part != "rn") {
      return false;  // other directions
    }
  }
  if (to == "f16x2" || to == "bf16x2") {
    if (from != "f32" || made.option != 0 || p.fields.size() != 3) return false;
    made.run = to == "f16x2" ? convert_two<half_bits> : convert_two<bfloat_bits>;
    d.add_field(0, 4);
    d.add_field(1, 4);
    d.add_field(2, 4);
    return true;
  }
  if (p.fields.size() != 2) return false;
  if (whole && is_float(to)) made.run = to != from ? nullptr : to == "f32" ? round_float<float> : round_float<double>;
  else made.run = handler(to, from);
  d.add_field(0, Decoder::kAnyWidth);
  d.add_field(1, Decoder::kAnyWidth);
  return made.run != nullptr;
}

std::uint64_t same(std::uint64_t a) { return a; }
template <std::uint64_t kWindow> std::uint64_t into(std::uint64_t a) { return a - kWindow; }
template <std::uint64_t kWindow> std::uint64_t out_of(std::uint64_t a) { return a + kWindow; }

}  // namespace

bool decode_convert(Decoder& d) {
  if (d.parsed().base() == "cvt") return d.parsed().parts.size() >= 3 && decode_cvt(d);
  static const Table& table = *new Table{
      {"cvta.to.global.u64", each<same>()},
      {"cvta.global.u64", each<same>()},
      {"cvta.to.shared.u64", each<into<kSharedWindow>>()},
      {"cvta.shared.u64", each<out_of<kSharedWindow>>()},
      {"cvta.to.local.u64", each<into<kLocalWindow>>()},
      {"cvta.local.u64", each<out_of<kLocalWindow>>()},
  };
  return decode_by(table, d);
}

}  // namespace cusim::ptx
