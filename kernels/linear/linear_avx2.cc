// kernels/linear/linear_avx2.cc: 16 floats as two registers. Compiled with -mavx2 -mfma -mf16c -ffp-contract=off.
#include "kernels/linear/linear_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>

#include "kernels/linear/float8_tile.h"
#include "kernels/linear/linear_math.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr int kHalf = kPartialSums / 2;

__m256 load_half(const float* p) { return _mm256_loadu_ps(p); }
__m256 load_half(const f16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
__m256 load_half(const bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

/// The first `count` <= 16 numbers, zeros after them; as bytes, because f16's constructors are in a shared header.
template <class T> struct Padded {
  alignas(32) char bytes[kPartialSums * sizeof(T)];
  Padded(const T* from, std::int64_t count) {
    __builtin_memset(bytes, 0, sizeof bytes);
    __builtin_memcpy(bytes, from, static_cast<std::size_t>(count) * sizeof(T));
  }
  const T* data() const { return reinterpret_cast<const T*>(bytes); }
};

struct Avx2 {
  struct V {
    __m256 low, high;
  };
  static V all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static V load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + kHalf)}; }
  template <class T> static V load_first(const T* p, std::int64_t n) {
    if (n == kPartialSums) return {load_half(p), load_half(p + kHalf)};
    const Padded<T> padded(p, n);
    return {load_half(padded.data()), load_half(padded.data() + kHalf)};
  }
  static void store(float* p, V v) {
    _mm256_storeu_ps(p, v.low);
    _mm256_storeu_ps(p + kHalf, v.high);
  }
  static void store_first(float* p, V v, std::int64_t n) {
    alignas(32) float lanes[kPartialSums];
    _mm256_store_ps(lanes, v.low);
    _mm256_store_ps(lanes + kHalf, v.high);
    __builtin_memcpy(p, lanes, static_cast<std::size_t>(n) * sizeof(float));
  }

  static V add(V a, V b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
  static V sub(V a, V b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
  static V mul(V a, V b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
  static V div(V a, V b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
  static V fma(V a, V b, V c) {
    return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
  }
  static V max(V a, V b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
  static V min(V a, V b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
  static V abs(V a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
  }
  static V copy_sign(V size, V sign) {
    const V plain = abs(size);
    const __m256 bit = _mm256_set1_ps(-0.0f);
    return {_mm256_or_ps(plain.low, _mm256_and_ps(bit, sign.low)),
            _mm256_or_ps(plain.high, _mm256_and_ps(bit, sign.high))};
  }
  static V round(V a) {
    constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(a.low, nearest), _mm256_round_ps(a.high, nearest)};
  }
  static V times_power_of_two(V a, V n) { return {scale(a.low, n.low), scale(a.high, n.high)}; }
  /// `below` where x < limit, else `other`.
  static V choose_below(V x, float limit, V below, V other) {
    const __m256 most = _mm256_set1_ps(limit);
    return {_mm256_blendv_ps(other.low, below.low, _mm256_cmp_ps(x.low, most, _CMP_LT_OQ)),
            _mm256_blendv_ps(other.high, below.high, _mm256_cmp_ps(x.high, most, _CMP_LT_OQ))};
  }

  /// The fixed tree, for sixteen outputs.
  static V reduce(const float* sums) {
    return {_mm256_set_m128(reduce_four(sums + 4 * kPartialSums), reduce_four(sums)),
            _mm256_set_m128(reduce_four(sums + 12 * kPartialSums), reduce_four(sums + 8 * kPartialSums))};
  }

 private:
  /// Scales by two factors, so that only the last product rounds.
  static __m256 scale(__m256 a, __m256 n) {
    const __m256i whole = _mm256_cvtps_epi32(n), part = _mm256_srai_epi32(whole, 1), bias = _mm256_set1_epi32(127);
    const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(part, bias), 23);
    const __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(whole, part), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(a, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
  }
  static __m128 reduce_four(const float* sums) {
    __m128 v[4];
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const __m256 eight =
          _mm256_add_ps(_mm256_load_ps(sums + i * kPartialSums), _mm256_load_ps(sums + i * kPartialSums + kHalf));
      v[i] = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    }
    const __m128 a = _mm_add_ps(_mm_shuffle_ps(v[0], v[1], 0x44), _mm_shuffle_ps(v[0], v[1], 0xEE));
    const __m128 b = _mm_add_ps(_mm_shuffle_ps(v[2], v[3], 0x44), _mm_shuffle_ps(v[2], v[3], 0xEE));
    return _mm_add_ps(_mm_shuffle_ps(a, b, 0x88), _mm_shuffle_ps(a, b, 0xDD));
  }
};

template <class T> constexpr std::int64_t kLine = 64 / static_cast<std::int64_t>(sizeof(T));

template <int Rows, int Columns>
[[gnu::always_inline]] inline void load_sums(__m256 (&sum)[Rows][Columns], const float* from, std::int64_t stride,
                                             bool first) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j)
      sum[i][j] = first ? _mm256_setzero_ps() : _mm256_load_ps(from + i * stride + j * kPartialSums);
  }
}
template <int Rows, int Columns>
[[gnu::always_inline]] inline void store_sums(const __m256 (&sum)[Rows][Columns], float* to, std::int64_t stride) {
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    WEFT_UNROLLED (int j = 0; j < Columns; ++j) _mm256_store_ps(to + i * stride + j * kPartialSums, sum[i][j]);
  }
}
/// `weight(j)` is the half vector of column j. Rows or columns, whichever are fewer, stay in registers beside the sums,
/// and the others come one by one: with 4 rows and 3 columns that takes all 16 registers, and a sum in memory would
/// wait for itself in each step.
template <int Rows, int Columns, class Weight>
[[gnu::always_inline]] inline void multiply(__m256 (&sum)[Rows][Columns], const float* x, const Weight& weight) {
  constexpr bool kKeepsRows = Rows < Columns;
  constexpr int kKept = kKeepsRows ? Rows : Columns, kOthers = kKeepsRows ? Columns : Rows;
  const auto load = [&](bool row, int i) __attribute__((always_inline)) {
    __m256 v = row ? _mm256_load_ps(x + i * kPartialSums) : weight(i);
    asm("" : "+x"(v));  // one load per vector, as in linear_avx512.h
    return v;
  };
  __m256 kept[kKept];
  WEFT_UNROLLED (int i = 0; i < kKept; ++i) kept[i] = load(kKeepsRows, i);
  WEFT_UNROLLED (int j = 0; j < kOthers; ++j) {
    const __m256 other = load(!kKeepsRows, j);
    WEFT_UNROLLED (int i = 0; i < kKept; ++i) {
      __m256& to = kKeepsRows ? sum[i][j] : sum[j][i];
      to = _mm256_fmadd_ps(kept[i], other, to);
    }
  }
}

// Sixteen registers hold at most 12 half vectors of sums, so a tile is done half by half: first the sums 0 to 7 over
// all of k, then 8 to 15. By then its weights are in the first cache.
template <int Rows, int Columns, class T> void direct_tile(const DirectTile& t) {
  const T* const prefetch = static_cast<const T*>(t.prefetch);
  const std::int64_t stride = t.weight_stride, whole = t.k / kPartialSums * kPartialSums;
  for (int half = 0; half < kPartialSums; half += kHalf) {
    const T* const weight = static_cast<const T*>(t.weight) + half;
    const float* x = t.x + half;
    __m256 sum[Rows][Columns];
    load_sums(sum, t.sums + half, t.sums_stride, t.first);
    for (std::int64_t at = 0; at < whole; at += kPartialSums, x += Rows * kPartialSums) {
      if (half == 0 && at % kLine<T> == 0) {
        WEFT_UNROLLED (int j = 0; j < Columns; ++j)
          _mm_prefetch(reinterpret_cast<const char*>(prefetch + j * stride + at), _MM_HINT_T1);
      }
      multiply(
          sum, x, [&](int j) __attribute__((always_inline)) { return load_half(weight + j * stride + at); });
    }
    if (whole < t.k)
      multiply(sum, x, [&](int j) {
        return load_half(Padded<T>(static_cast<const T*>(t.weight) + j * stride + whole, t.k - whole).data() + half);
      });
    store_sums(sum, t.sums + half, t.sums_stride);
  }
}

constexpr int kPanelRows = 6, kPanelVectors = 2;

template <int Rows>
[[gnu::always_inline]] inline void panel_step(__m256 (&sum)[Rows][kPanelVectors], const float* x, const float* panel) {
  const __m256 w0 = _mm256_load_ps(panel), w1 = _mm256_load_ps(panel + kHalf);
  WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
    const __m256 a = _mm256_set1_ps(x[i]);
    sum[i][0] = _mm256_fmadd_ps(a, w0, sum[i][0]);
    sum[i][1] = _mm256_fmadd_ps(a, w1, sum[i][1]);
  }
}

template <int Rows> void panel_tile(const PanelTile& t) {
  constexpr std::int64_t stride = kPanelVectors * kHalf, tile = Rows * stride;
  const float *x = t.x, *const first_panel = t.panel;
  const char *weights = static_cast<const char*>(t.prefetch), *const weights_end = weights + t.prefetch_lines * 64;
  const std::int64_t steps = t.steps, end = t.tiles * tile;  // in registers: stores could change what `t` refers to
  const bool first = t.first;
  for (std::int64_t at = 0; at < end; at += tile) {
    __m256 sum[Rows][kPanelVectors];
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      WEFT_UNROLLED (int j = 0; j < kPanelVectors; ++j)
        sum[i][j] = first ? _mm256_setzero_ps() : _mm256_load_ps(t.sums + at + i * stride + j * kHalf);
    }
    const float* panel = first_panel;
    const char* next = reinterpret_cast<const char*>(t.sums + at + tile);
    // As in linear_avx512.h: in pairs of steps, what is asked for ahead costs few instructions. Fours are slower here,
    // for a register is missing.
    std::int64_t s = 0;
    for (; s + 2 <= steps; s += 2, x += 2 * Rows, panel += 2 * stride) {
      _mm_prefetch(reinterpret_cast<const char*>(x + 16 * Rows), _MM_HINT_T0);
      _mm_prefetch(next, _MM_HINT_T0);
      next += 64;
      if (weights < weights_end) {
        _mm_prefetch(weights, _MM_HINT_T1);
        _mm_prefetch(weights + 64, _MM_HINT_T1);
        weights += 128;
      }
      WEFT_UNROLLED (int part = 0; part < 2; ++part) panel_step<Rows>(sum, x + part * Rows, panel + part * stride);
    }
    for (; s < steps; ++s, x += Rows, panel += stride) panel_step<Rows>(sum, x, panel);
    for (int list = 0; list < t.joins; ++list) {
      WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
        WEFT_UNROLLED (int j = 0; j < kPanelVectors; ++j)
          sum[i][j] = _mm256_add_ps(_mm256_load_ps(t.join[list] + at + i * stride + j * kHalf), sum[i][j]);
      }
    }
    float* const to = t.to + at;
    WEFT_UNROLLED (int i = 0; i < Rows; ++i) {
      WEFT_UNROLLED (int j = 0; j < kPanelVectors; ++j) _mm256_store_ps(to + i * stride + j * kHalf, sum[i][j]);
    }
  }
}

template <bool Four, bool kTable = false> void unpack(const Unpack& u) {
  constexpr std::int64_t line = 64, columns = Four ? 8 : 4;
  const std::byte* from = u.from;
  const __m256i mask = _mm256_set1_epi32(Four && !kTable ? 15 : 255), low_halves = _mm256_set1_epi8(15);
  __m256i table = mask;
  if constexpr (kTable) table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(u.table)));
  for (std::int64_t first = 0; first < u.steps * kPartialSums; first += u.group) {
    const f16* const scales = reinterpret_cast<const f16*>(from);
    from += line;
    for (std::int64_t k = first; k < first + u.group; k += columns, from += line) {
      if (k >= u.steps * kPartialSums) return;  // padding of the last group
      for (int half = 0; half < 2; ++half) {
        const __m256 scale = load_half(scales + half * kHalf),
                     minimum = load_half(scales + kPartialSums + half * kHalf);
        const __m256i levels = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from) + half);
        __m256i quads[2] = {levels, levels};  // of four columns each
        if constexpr (kTable) {
          quads[0] = _mm256_shuffle_epi8(table, _mm256_and_si256(levels, low_halves));
          quads[1] = _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(levels, 4), low_halves));
        }
        float* const to = u.to + k / kPartialSums * u.step + k % kPartialSums * u.lane_step + half * kHalf;
        WEFT_UNROLLED (int i = 0; i < columns; ++i) {
          const int shift = i % 4 * 8 + (kTable ? 0 : i / 4 * 4);
          const __m256 level = _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(quads[i / 4], shift), mask));
          _mm256_storeu_ps(to + i * u.lane_step, _mm256_fmadd_ps(level, scale, minimum));
        }
      }
    }
  }
}

struct Float8 {
  using V = __m256;
  static constexpr int kWidth = kHalf;
  static V all(float x) { return _mm256_set1_ps(x); }
  static V load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, V v) { _mm256_storeu_ps(p, v); }
  static V mul(V a, V b) { return _mm256_mul_ps(a, b); }
  static V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  [[gnu::always_inline]] static void expand(const std::byte* line, int half, V (&columns)[4]) {
    const __m256i all = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(line) + half),
                  kept = _mm256_set1_epi32(static_cast<int>(0x87F00000u)), base = _mm256_set1_epi32(0x38000000);
    WEFT_UNROLLED (int j = 0; j < 4; ++j)
      columns[j] = _mm256_castsi256_ps(
          _mm256_or_si256(_mm256_and_si256(_mm256_srai_epi32(_mm256_slli_epi32(all, 24 - 8 * j), 4), kept), base));
    const __m256i exponents = _mm256_and_si256(all, _mm256_set1_epi8(0x78));
    if (_mm256_movemask_epi8(_mm256_cmpeq_epi8(exponents, _mm256_setzero_si256())) != 0) [[unlikely]] {
      WEFT_UNROLLED (int j = 0; j < 4; ++j) small(columns[j]);
    }
  }
  /// Corrects numbers with exponent 0: 2^-15 (1 + m/8) becomes 2^-14 m/8.
  [[gnu::always_inline]] static void small(V& numbers) {
    const __m256 sign = _mm256_and_ps(numbers, _mm256_set1_ps(-0.0f));
    const __m256i exponents = _mm256_and_si256(_mm256_castps_si256(numbers), _mm256_set1_epi32(0x07800000));
    const __m256 corrected = _mm256_fmsub_ps(numbers, _mm256_set1_ps(2), _mm256_or_ps(sign, _mm256_set1_ps(0x1p-14f)));
    numbers = _mm256_blendv_ps(numbers, _mm256_or_ps(corrected, sign),
                               _mm256_castsi256_ps(_mm256_cmpeq_epi32(exponents, _mm256_setzero_si256())));
  }
};

/// Turns [i][j] into [j][i].
[[gnu::always_inline]] inline void transpose_8x8(__m256 (&v)[8]) {
  __m256 t[8];
  WEFT_UNROLLED (int i = 0; i < 8; i += 4) {  // 4x4 blocks inside each 128 bits
    const __m256 a = _mm256_unpacklo_ps(v[i], v[i + 1]), b = _mm256_unpackhi_ps(v[i], v[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm256_unpackhi_ps(v[i + 2], v[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44), t[i + 1] = _mm256_shuffle_ps(a, c, 0xEE);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44), t[i + 3] = _mm256_shuffle_ps(b, d, 0xEE);
  }
  WEFT_UNROLLED (int i = 0; i < 4; ++i) {
    v[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
    v[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
  }
}

/// The first `count` <= 8 numbers. By parts, for a masked store takes a Zen processor far longer than these.
[[gnu::always_inline]] inline void store_first(float* to, __m256 v, std::int64_t count) {
  if (count == kHalf) return _mm256_storeu_ps(to, v);
  __m128 rest = _mm256_castps256_ps128(v);
  if (count & 4) {
    _mm_storeu_ps(to, rest);
    rest = _mm256_extractf128_ps(v, 1);
    to += 4;
  }
  if (count & 2) {
    _mm_storel_pi(reinterpret_cast<__m64*>(to), rest);
    rest = _mm_movehl_ps(rest, rest);
    to += 2;
  }
  if (count & 1) _mm_store_ss(to, rest);
}

template <class T> void transpose(const Transpose& t) {
  const T* const from = static_cast<const T*>(t.from);
  float* to = t.to;
  for (std::int64_t at = 0; at < t.k; at += kPartialSums, to += t.step) {
    const std::int64_t count = t.k - at < kPartialSums ? t.k - at : kPartialSums;
    for (std::int64_t row = 0; row < t.width; row += kHalf) {
      __m256 low[8], high[8];
      for (std::int64_t i = 0; i < 8; ++i) {
        const Avx2::V v = row + i < t.rows ? Avx2::load_first(from + (row + i) * t.stride + at, count) : Avx2::all(0);
        low[i] = v.low, high[i] = v.high;
      }
      transpose_8x8(low);
      transpose_8x8(high);
      const std::int64_t width = t.width - row < kHalf ? t.width - row : kHalf;
      WEFT_UNROLLED (int l = 0; l < kHalf; ++l) {
        store_first(to + l * t.lane_step + row, low[l], width);
        store_first(to + (l + kHalf) * t.lane_step + row, high[l], width);
      }
    }
  }
}

void spread(const float* from, std::int64_t k, float* to, std::int64_t step) {
  for (std::int64_t at = 0; at < k; at += kPartialSums, to += step) {
    const Avx2::V v = Avx2::load_first(from + at, k - at < kPartialSums ? k - at : kPartialSums);
    _mm256_store_ps(to, v.low);
    _mm256_store_ps(to + kHalf, v.high);
  }
}

int read(const void* from, std::int64_t bytes, std::int64_t prefetch) {
  const char* const p = static_cast<const char*>(from);
  __m256i any[4] = {};
  for (std::int64_t at = 0; at < bytes; at += 256) {
    WEFT_UNROLLED (int i = 0; i < 4; ++i) {
      const __m256i* const line = reinterpret_cast<const __m256i*>(p + at + i * 64);
      if (prefetch > 0) _mm_prefetch(p + at + prefetch + i * 64, _MM_HINT_T1);
      any[i] = _mm256_or_si256(any[i], _mm256_or_si256(_mm256_loadu_si256(line), _mm256_loadu_si256(line + 1)));
    }
  }
  const __m256i all = _mm256_or_si256(_mm256_or_si256(any[0], any[1]), _mm256_or_si256(any[2], any[3]));
  return _mm256_testz_si256(all, all);
}

constexpr int columns_for(int rows) {  // at most 12 sums; divisors of a task's 24 columns
  return rows == 1 ? 8 : rows == 2 ? 4 : rows <= 4 ? 3 : 2;
}
template <int... Rows> constexpr void fill_panels(LinearKernels& kernels) {
  void (*const panel[])(const PanelTile&) = {panel_tile<Rows>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) kernels.panel[i] = panel[i];
}
template <class T, int... Rows> constexpr void fill(LinearKernels& kernels, DType type) {
  const DirectKernel direct[] = {direct_tile<Rows, columns_for(Rows), T>...}, single[] = {direct_tile<Rows, 1, T>...};
  for (int i = 0; i < static_cast<int>(sizeof...(Rows)); ++i) {
    kernels.direct[static_cast<int>(type)][i] = direct[i];
    kernels.single[static_cast<int>(type)][i] = single[i];
    kernels.direct_columns[i] = columns_for(i + 1);
  }
  kernels.transpose[static_cast<int>(type)] = transpose<T>;
}
constexpr LinearKernels make_kernels() {
  LinearKernels kernels = {};
  kernels.name = "AVX2";
  kernels.direct_rows = 6;
  kernels.panel_rows = kPanelRows;
  kernels.panel_columns = kPanelVectors * kHalf;
  fill_panels<1, 2, 3, 4, 5, 6>(kernels);
  kernels.spread = spread;
  kernels.unpack4 = unpack<true>;
  kernels.unpack8 = unpack<false>;
  kernels.unpack_table = unpack<true, true>;
  kernels.unpack_f8 = unpack_float8<Float8>;
  kernels.float8_few = kernels.float8_rows = 1;
  kernels.float8[0] = float8_tile<Float8, 1, 8>;
  kernels.finish_direct = linear_finish<Avx2, SumsForm::direct>;
  kernels.finish_panel = linear_finish<Avx2, SumsForm::panel>;
  kernels.finish_sums = linear_finish<Avx2, SumsForm::whole>;
  kernels.read = read;
  fill<float, 1, 2, 3, 4, 5, 6>(kernels, DType::f32);
  fill<f16, 1, 2, 3, 4, 5, 6>(kernels, DType::f16);
  fill<bf16, 1, 2, 3, 4, 5, 6>(kernels, DType::bf16);
  return kernels;
}
constexpr LinearKernels kKernels = make_kernels();

}  // namespace

const LinearKernels* linear_kernels_avx2() { return &kKernels; }

}  // namespace weft::kernels
#else
namespace weft::kernels {

const LinearKernels* linear_kernels_avx2() { return nullptr; }

}  // namespace weft::kernels
#endif
