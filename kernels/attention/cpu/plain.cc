// kernels/attention/cpu/plain.cc: 16 floats as an array, for any processor; the compiler vectorises what it can.
#include <bit>

#include "kernels/attention/cpu/columns.h"
#include "kernels/attention/cpu/decode.h"
#include "kernels/attention/cpu/kernels.h"
#include "kernels/attention/cpu/keys.h"
#include "kernels/attention/cpu/math.h"

namespace weft::kernels {
namespace {

struct Plain {
  struct V {
    float at[kLanes];
  };
  static constexpr int kTileRows = 6, kTileVectors = 1;
  static constexpr int kHeads = 1, kShortKeys = 2,
                       kValueVectors = 1;  // one loop for all, as each takes long to compile
  static constexpr bool kUnrollsKeys = false;

  template <class F> static V each(const F& f) {
    V v;
    for (int i = 0; i < kLanes; ++i) v.at[i] = f(i);
    return v;
  }
  static V zero() { return all(0.0f); }
  static V all(float x) {
    return each([=](int) { return x; });
  }

  template <class T> static V load(const T* p) {
    return each([=](int i) { return static_cast<float>(p[i]); });
  }
  template <class T> static V load_first(const T* p, int n) {
    return each([=](int i) { return i < n ? static_cast<float>(p[i]) : 0.0f; });
  }
  template <class T> static void store(T* p, const V& v) { store_first(p, v, kLanes); }
  template <class T> static void store_first(T* p, const V& v, int n) {
    for (int i = 0; i < n; ++i) p[i] = T(v.at[i]);
  }

  struct I {
    std::uint32_t at[kLanes];  // an integer, or two words, the first in the low bits
  };
  using Quarter = I;
  template <class F> static I each_integer(const F& f) {
    I x;
    for (int i = 0; i < kLanes; ++i) x.at[i] = f(i);
    return x;
  }
  static std::uint32_t both(std::uint32_t low, std::uint32_t high) { return low | high << 16; }
  static std::int32_t word(std::uint32_t x) { return static_cast<std::int16_t>(x & 0xFFFF); }
  template <DType kType> static I words(const std::uint8_t* p) {
    return each_integer([=](int i) {
      if (kType == DType::i4) return both(p[2 * i], p[2 * i + 1]);
      const std::uint8_t* const four = p + 4 * i;
      return both(four[0] | std::uint32_t{four[1]} << 8, four[2] | std::uint32_t{four[3]} << 8);
    });
  }
  template <DType kType> static I words_first(const std::uint8_t* p, int bytes) {
    std::uint8_t all[64] = {};
    for (int i = 0; i < bytes; ++i) all[i] = p[i];
    return words<kType>(all);
  }
  template <DType kType> static I low(const I& x) {
    return each_integer([&](int i) { return x.at[i] & (kType == DType::i8 ? 0xFF00FFu : 0xF000Fu); });
  }
  template <DType kType> static I high(const I& x) {
    return each_integer([&](int i) { return kType == DType::i8 ? x.at[i] >> 8 & 0xFF00FFu : x.at[i] >> 4 & 0xF000Fu; });
  }
  static I plane(const std::uint8_t* p, int bits) {
    const int words = 4 * bits;
    return each_integer([=](int i) {
      std::uint32_t lane = 0;
      for (int w = 2 * i; w < 2 * i + 2; ++w) {
        const std::uint8_t* const word = p + 2 * (w % words);
        lane |= both(word[0] | std::uint32_t{word[1]} << 8, 0) >> bits * (w / words) << (w % 2 * 16);
      }
      return lane;
    });
  }
  static I two_bits(const std::uint8_t* p) { return plane(p, 2); }
  static I one_bit(const std::uint8_t* p) { return plane(p, 1); }
  static I masked(const I& x, int mask) {
    return each_integer([&](int i) { return x.at[i] & static_cast<std::uint32_t>(mask); });
  }
  static I joined(int mask, const I& a, const I& b) {
    const auto ones = static_cast<std::uint32_t>(mask);
    return each_integer([&](int i) { return (ones & a.at[i]) | (~ones & b.at[i]); });
  }
  template <int kBits> static I shifted(const I& x) {
    return each_integer([&](int i) { return x.at[i] >> kBits; });  // across the words, which masked() undoes
  }
  template <int kBits> static I raised(const I& x) {
    return each_integer([&](int i) { return both(x.at[i] << kBits & 0xFFFF, x.at[i] >> 16 << kBits & 0xFFFF); });
  }
  static void store_levels(std::uint8_t* p, const I& x) {
    for (int i = 0; i < 4 * kLanes; ++i) p[i] = static_cast<std::uint8_t>(x.at[i / 4] >> 8 * (i % 4) & 0xFF);
  }
  /// In each four lanes, the words of a and b one after the other: those of the first two lanes, or of the last two.
  static I low_words(const I& a, const I& b, int from = 0) {
    return each_integer([&](int i) {
      const int lane = i / 4 * 4 + from + i % 4 / 2, shift = i % 2 * 16;
      return both(a.at[lane] >> shift & 0xFFFF, b.at[lane] >> shift & 0xFFFF);
    });
  }
  static I high_words(const I& a, const I& b) { return low_words(a, b, 2); }
  static std::uint32_t four(std::uint32_t a, std::uint32_t b, std::uint32_t c, std::uint32_t d) {
    return a | b << 8 | c << 16 | d << 24;
  }
  static std::int32_t byte_of(std::uint32_t x, int i) { return static_cast<std::int32_t>(x >> 8 * i & 0xFF); }
  template <int kBytes> static I quads(const std::uint8_t* p, const std::int32_t* at) {
    return each_integer([=](int j) {
      const auto byte = [&](int r) { return std::uint32_t{p[at[r] + j % kBytes]} >> (j < kBytes ? 0 : 1); };
      return four(byte(0), byte(1), byte(2), byte(3));
    });
  }
  template <int kGroups> static I quads_in_order(const std::uint8_t* p, int g) {
    const std::int32_t at[4] = {0, 16 * kGroups, 32 * kGroups, 48 * kGroups};
    return quads<16>(p + 16 * g, at);
  }
  static I multiply_bytes(const I& b, const I& c, const I& a) {
    return each_integer([&](int i) {
      std::int32_t sum = static_cast<std::int32_t>(a.at[i]);
      for (int n = 0; n < 4; ++n) sum += byte_of(b.at[i], n) * static_cast<std::int8_t>(byte_of(c.at[i], n));
      return static_cast<std::uint32_t>(sum);
    });
  }
  static I load_bytes(const void* from) {
    const auto* const p = static_cast<const std::uint8_t*>(from);
    return each_integer([=](int i) { return four(p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]); });
  }
  static I all_quads(const std::uint8_t* p) {
    return each_integer([=](int) { return four(p[0], p[1], p[2], p[3]); });
  }
  static void store_bytes(std::uint8_t* p, const V& v) {
    for (int i = 0; i < kLanes; ++i)
      p[i] = static_cast<std::uint8_t>(v.at[i] > 0.0f && v.at[i] < 256.0f ? v.at[i] : 0.0f);
  }
  static void store_planes(std::uint8_t* low, std::uint8_t* high, const std::int16_t* words) {
    for (int i = 0; i < kLanes; ++i) {
      low[i] = static_cast<std::uint8_t>(words[i] & 0xFF);
      high[i] = static_cast<std::uint8_t>(words[i] >> 8 & 0xFF);
    }
  }
  static I times_256(const I& a) {
    return each_integer([&](int i) { return a.at[i] << 8; });
  }
  static I no_words() {
    return each_integer([](int) { return 0u; });
  }
  static I load_words(const std::int16_t* p) {
    return each_integer(
        [=](int i) { return both(static_cast<std::uint16_t>(p[2 * i]), static_cast<std::uint16_t>(p[2 * i + 1])); });
  }
  static I all_pairs(const std::int16_t* p) {
    return each_integer([=](int) { return both(static_cast<std::uint16_t>(p[0]), static_cast<std::uint16_t>(p[1])); });
  }
  static I multiply_pairs(const I& a, const I& b) {
    return each_integer([&](int i) {
      return static_cast<std::uint32_t>(word(a.at[i]) * word(b.at[i]) + word(a.at[i] >> 16) * word(b.at[i] >> 16));
    });
  }
  static I multiply_add(const I& a, const I& b, const I& c) { return add(c, multiply_pairs(a, b)); }
  static I add(const I& a, const I& b) {
    return each_integer([&](int i) { return a.at[i] + b.at[i]; });
  }
  static V to_floats(const I& a) {
    return each([&](int i) { return static_cast<float>(static_cast<std::int32_t>(a.at[i])); });
  }
  static void store_rounded(std::int16_t* p, const V& v) {
    const V nearest = round(v);
    for (int i = 0; i < kLanes; ++i)
      p[i] =
          static_cast<std::int16_t>(nearest.at[i] > -32767.0f && nearest.at[i] < 32768.0f ? nearest.at[i] : -32767.0f);
  }
  static Quarter quarter(const I (&row)[4]) {
    I sums = no_words();
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < kLanes; ++i) sums.at[r] += row[r].at[i];
    return sums;
  }
  static I join(const Quarter (&q)[4]) {
    return each_integer([&](int i) { return q[i / 4].at[i % 4]; });
  }
  struct Halves {
    Quarter first, second;
  };
  static Halves quarter_halves(const I (&row)[4]) {
    Halves sums{no_words(), no_words()};
    for (int r = 0; r < 4; ++r)
      for (int i = 0; i < kLanes; ++i) (i < kLanes / 2 ? sums.first : sums.second).at[r] += row[r].at[i];
    return sums;
  }
  static void join_halves(const Halves (&q)[4], I& first, I& second) {
    first = each_integer([&](int i) { return q[i / 4].first.at[i % 4]; });
    second = each_integer([&](int i) { return q[i / 4].second.at[i % 4]; });
  }
  static I join_rows(const Halves& a, const Halves& b) {
    return each_integer([&](int i) { return (i < 8 ? (i < 4 ? a : b).first : (i < 12 ? a : b).second).at[i % 4]; });
  }
  static I two_halves(const std::uint8_t* p, const std::uint8_t* q) {
    return each_integer([=](int i) {
      const std::uint8_t* const from = (i < 8 ? p : q) + i % 8 * 4;
      return four(from[0], from[1], from[2], from[3]);
    });
  }
  static I twice(const std::uint8_t* p) { return two_halves(p, p); }
  static void scales(const std::uint8_t* p, const std::int32_t* at, int count, V& scale, V& minimum) {
    scale = minimum = zero();
    for (int i = 0; i < count; ++i) {
      f16 both[2];
      __builtin_memcpy(both, p + at[i], sizeof both);
      scale.at[i] = static_cast<float>(both[0]), minimum.at[i] = static_cast<float>(both[1]);
    }
  }
  template <int kGroups> static void scales_in_order(const std::uint8_t* p, V& scale, V& minimum) {
    std::int32_t at[kLanes];
    for (int i = 0; i < kLanes; ++i) at[i] = 4 * kGroups * i;
    scales(p, at, kLanes, scale, minimum);
  }
  template <int kDistance> static V swapped(const V& v) {
    return each([&](int i) { return v.at[i ^ kDistance]; });
  }

  static V add(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] + b.at[i]; });
  }
  static V sub(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] - b.at[i]; });
  }
  static V mul(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] * b.at[i]; });
  }
  static V div(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] / b.at[i]; });
  }
  static V fma(const V& a, const V& b, const V& c) {
    return each([&](int i) { return a.at[i] * b.at[i] + c.at[i]; });
  }
  static V max(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] > b.at[i] ? a.at[i] : b.at[i]; });
  }
  static V min(const V& a, const V& b) {
    return each([&](int i) { return a.at[i] < b.at[i] ? a.at[i] : b.at[i]; });
  }
  static V round(const V& a) {
    constexpr float shift = 0x1.8p23f;  // leaves no bit for a fraction, so the addition rounds
    return each([&](int i) { return (a.at[i] + shift) - shift; });
  }
  static V times_power_of_two(const V& a, const V& n) {
    return each([&](int i) {
      const float whole = n.at[i] == n.at[i] ? n.at[i] : 0.0f;
      return a.at[i] * std::bit_cast<float>((static_cast<std::int32_t>(whole) + 127) << 23);
    });
  }
  static V zero_below(const V& x, float limit, const V& v) {
    return each([&](int i) { return x.at[i] < limit ? 0.0f : v.at[i]; });
  }
  static V first(const V& v, int n, float other) {
    return each([&](int i) { return i < n ? v.at[i] : other; });
  }
  static V between(const V& v, const std::int32_t* number, std::int32_t low, std::int32_t high, float other) {
    return each([&](int i) { return number[i] >= low && number[i] <= high ? v.at[i] : other; });
  }
  static bool any_negative(const std::int32_t* number) {
    std::int32_t signs = 0;
    for (int i = 0; i < kLanes; ++i) signs |= number[i];
    return signs < 0;
  }
  static unsigned lanes_from(const V& v, float least) {
    unsigned lanes = 0;
    for (int i = 0; i < kLanes; ++i) lanes |= v.at[i] >= least ? 1u << i : 0u;
    return lanes;
  }
  static void store_lanes(std::int32_t* p, int first, unsigned lanes) {
    for (; lanes != 0; lanes &= lanes - 1) *p++ = first + __builtin_ctz(lanes);
  }
  static bool any_equal(const V& v, float x) {
    bool found = false;
    for (int i = 0; i < kLanes; ++i) found |= v.at[i] == x;
    return found;
  }

  static float sum(const V& v) {
    float quarter[4];
    for (int i = 0; i < 4; ++i) {
      const float* p = v.at + 4 * i;
      quarter[i] = (p[0] + p[2]) + (p[1] + p[3]);
    }
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
  }
  static float largest(const V& v) {
    float most = v.at[0];
    for (int i = 1; i < kLanes; ++i) most = v.at[i] > most ? v.at[i] : most;
    return most;
  }
  static float smallest(const V& v) {
    return -largest(each([&](int i) { return -v.at[i]; }));
  }
  static V sums(const V rows[kLanes]) {
    return each([=](int i) { return sum(rows[i]); });
  }
  static void transpose(V rows[kLanes]) {
    for (int i = 0; i < kLanes; ++i)
      for (int j = 0; j < i; ++j) {
        const float kept = rows[i].at[j];
        rows[i].at[j] = rows[j].at[i];
        rows[j].at[i] = kept;
      }
  }
};

constexpr VectorKernels kKernels = {"plain C++",         prefill_tile<Plain>,  column_tile<Plain>,  decode_tile<Plain>,
                                    convert<Plain>,      sum_exp<Plain>,       quantise_row<Plain>, hadamard<Plain>,
                                    add_unit_row<Plain>, key_score_row<Plain>, weigh<Plain>};

}  // namespace

const VectorKernels* vector_kernels_plain() { return &kKernels; }

}  // namespace weft::kernels
