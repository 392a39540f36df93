// kernels/levels/quantise_search.h: the search for the scales and minima of groups of weights, written once over the
// vector types of quantise_avx2.cc and quantise_avx512.cc, in an unnamed namespace like linear_avx512.h. It gives the
// bits of quantise_group() (kernels/quantised.h), which has the reasons.
//
// Lanes run along the rows of a tile, so that every row's sums keep their order. What is computed once in place of
// several times has the same value each time: the levels of a line, for its error and for the next line; the line
// between the ends, which is also the first to be refined; and a line that follows from itself.
#pragma once

#include "kernels/levels/quantise.h"
#include "kernels/unrolled.h"

namespace weft::kernels {
namespace {

constexpr std::int64_t kLine = QuantisedLayout::kLine;
constexpr int kSteps = 4, kCutCount = 5;
constexpr float kCutBelow[kCutCount] = {0.0f, 0.08f, 0.0f, 0.08f, 0.16f};
constexpr float kCutAbove[kCutCount] = {0.0f, 0.0f, 0.08f, 0.08f, 0.16f};

/// The lines scale * level + minimum through the numbers of S::kLanes rows of a group.
template <class S> class TileSearch {
  using F = typename S::F;  // floats of the rows
  using D = typename S::D;  // doubles
  using M = typename S::M;  // yes or no

 public:
  struct Line {
    F scale, minimum;
    F error;  // sum of squares, in fp32
  };
  Line line;  // what was found

  /// `numbers` [count][kLanes], 64-byte aligned. Returns the rows that cannot be quantised.
  M begin(const float* numbers, int count, float top) {
    x_ = numbers, count_ = count, top_ = S::all(top);
    least_ = most_ = S::load(x_);
    F zero = S::all(0.0f);  // stays so unless a number is not finite
    for (int i = 0; i < count; ++i) {
      const F x = S::load(x_ + i * S::kLanes);
      zero = S::fma(x, S::all(0.0f), zero);
      least_ = S::min(x, least_), most_ = S::max(x, most_);
    }
    line.scale = S::half(S::div(S::sub(most_, least_), top_)), line.minimum = S::half(least_);
    return S::either(S::not_finite(zero), S::either(S::not_finite(line.scale), S::not_finite(line.minimum)));
  }

  /// Finds the scales and minima with the least errors.
  void search() {
    const M steep = S::less(S::all(0.0f), line.scale);
    split(steep);
    for (int cut = 0; cut < kCutCount; ++cut) {
      const F from = S::sub(least_, S::mul(S::all(kCutBelow[cut]), least_));
      const F to = S::sub(most_, S::mul(S::all(kCutAbove[cut]), most_));
      Line refined{S::half(S::div(S::sub(to, from), top_)), S::half(from), {}};
      const F between_ends = whole_ ? refine<true>(refined) : refine<false>(refined);
      if (cut == 0) line.error = between_ends;  // the cut is none, so the first line is the one that begin() found
      adopt(refined, line, steep);
    }
  }

  /// Writes the levels in the lines of a tile (QuantisedLayout), to which `to` points at the first row's place.
  template <bool Four> void write(std::byte* to) const {
    constexpr int kLineColumns = Four ? 8 : 4;
    const F inverse = inverse_of(line.scale);
    for (int first = 0; first < count_; first += kLineColumns, to += kLine) {
      auto levels = S::no_levels();
      WEFT_UNROLLED (int i = 0; i < kLineColumns; ++i)
        if (first + i < count_)
          levels =
              S::add_level(levels, level(S::load(x_ + (first + i) * S::kLanes), line, inverse), i % 4 * 8 + i / 4 * 4);
      S::store_levels(to, levels);
    }
  }

 private:
  struct Sums {
    F levels, squares;  // exact: at most 128 * 15 * 15
    D products;
    F error;
  };

  static F inverse_of(F scale) {
    return S::choose(S::less(S::all(0.0f), scale), S::div(S::all(1.0f), scale), S::all(0.0f));
  }

  /// The nearest level, 0 if the inverse is. The quotient is that of a division, to the bit: a scale has 11 bits, so no
  /// quotient of a float by it is nearer to the middle of two floats than 2^-12 of their distance, and the correction
  /// is off by 2^-22 of it.
  F level(F x, const Line& on, F inverse) const {
    const F off = S::sub(x, on.minimum), near = S::mul(off, inverse);
    const F quotient = S::fma(S::fnma(near, on.scale, off), inverse, near);
    const F shift = S::all(12582912.0f);  // 1.5 * 2^23, beyond which floats are whole
    return S::sub(S::add(S::min(S::max(quotient, S::all(0.0f)), top_), shift), shift);
  }

  /// Cuts numbers into multiples of 2^-12 and of 2^-25 of the power of two above the largest. If nothing is left over
  /// in any row that has a `steep` line, sums of levels times parts are whole numbers below 2^23 and exact in fp32, and
  /// the sum of products in fp64 has no rounding in any order.
  void split(M steep) {
    const F power = S::power_below(S::max(S::size(least_), S::size(most_)));
    const F shift = S::mul(power, S::all(1.5f * 4096)), fine_shift = S::mul(power, S::all(1.5f / 2));
    sum_ = S::all_wide(0);
    M left = S::less(power, power);  // none
    for (int i = 0; i < count_; ++i) {
      const F x = S::load(x_ + i * S::kLanes), high = S::sub(S::add(x, shift), shift), low = S::sub(x, high);
      left = S::either(left, S::unless(steep, S::same(S::sub(S::add(low, fine_shift), fine_shift), low)));
      S::store(high_ + i * S::kLanes, high), S::store(low_ + i * S::kLanes, low);
      sum_ = S::add(sum_, S::widen(x));
    }
    whole_ = !S::any(left);
  }

  /// Calls one(i, chain) for i = 0, 1, .., with chains 0, 1, 2, 3, 0, ..: the order of quantise_group()'s sums.
  template <class One> void each(const One& one) const {
    int i = 0;
    for (; i + 4 <= count_; i += 4) {
      WEFT_UNROLLED (int j = 0; j < 4; ++j) one(i + j, j);
    }
    WEFT_UNROLLED (int j = 0; j < 3; ++j)
      if (i + j < count_) one(i + j, j);
  }

  /// The error of a line, and what its levels say of the next one (All). The error is off by at most 34 roundings.
  template <bool All, bool Whole> Sums sums(const Line& on) const {
    Sums sums{S::all(0.0f), S::all(0.0f), S::all_wide(0), S::all(0.0f)};
    F error[4] = {S::all(0.0f), S::all(0.0f), S::all(0.0f), S::all(0.0f)}, high = S::all(0.0f), low = high;
    const F inverse = inverse_of(on.scale);
    each([&](int i, int chain) {
      const F x = S::load(x_ + i * S::kLanes), l = level(x, on, inverse);
      const F off = S::sub(S::fma(l, on.scale, on.minimum), x);  // scale * l is exact
      error[chain] = S::fma(off, off, error[chain]);
      if constexpr (!All) return;
      sums.levels = S::add(sums.levels, l), sums.squares = S::fma(l, l, sums.squares);
      if constexpr (Whole) {
        high = S::fma(l, S::load(high_ + i * S::kLanes), high), low = S::fma(l, S::load(low_ + i * S::kLanes), low);
      } else {
        sums.products = S::fma(S::widen(l), S::widen(x), sums.products);
      }
    });
    if constexpr (Whole) sums.products = S::add(S::widen(high), S::widen(low));
    sums.error = S::add(S::add(error[0], error[1]), S::add(error[2], error[3]));
    return sums;
  }

  /// The error as quantise_group() computes it. Squares are exact in fp64.
  D exact_error(const Line& on) const {
    D error[4] = {S::all_wide(0), S::all_wide(0), S::all_wide(0), S::all_wide(0)};
    const F inverse = inverse_of(on.scale);
    each([&](int i, int chain) {
      const F x = S::load(x_ + i * S::kLanes), l = level(x, on, inverse);
      const D off = S::widen(S::sub(S::fma(l, on.scale, on.minimum), x));
      error[chain] = S::fma(off, off, error[chain]);
    });
    return S::add(S::add(error[0], error[1]), S::add(error[2], error[3]));
  }

  /// Returns those of the `rows` that have a smaller error with line a than with line b. Asks exact_error() where fp32
  /// cannot tell.
  M better(const Line& a, const Line& b, M rows) const {
    constexpr float kOff = 0x1p-17f;  // more than twice 34 roundings
    const F small = S::all(1e-30f);   // more than what underflows
    const M less = S::less(a.error, S::sub(S::mul(b.error, S::all(1 - kOff)), small));
    const M more = S::less(S::add(S::mul(b.error, S::all(1 + kOff)), small), a.error);
    const M open = S::unless(S::unless(rows, S::either(less, more)), same(a, b));
    if (!S::any(open)) return S::both(rows, less);
    return S::both(rows, S::either(less, S::both(open, S::less(exact_error(a), exact_error(b)))));
  }
  static M same(const Line& a, const Line& b) {
    return S::both(S::same(a.scale, b.scale), S::same(a.minimum, b.minimum));
  }
  /// Puts line a in the place of line b in those of the `rows` in which it is better, and returns these.
  M adopt(const Line& a, Line& b, M rows) const {
    rows = better(a, b, rows);
    b = {S::choose(rows, a.scale, b.scale), S::choose(rows, a.minimum, b.minimum), S::choose(rows, a.error, b.error)};
    return rows;
  }

  /// Makes a line the best of those that follow from it, each through the levels of the one before, as long as errors
  /// fall. Returns the error of the first.
  template <bool Whole> F refine(Line& best) const {
    const D n = S::all_wide(count_);
    Sums found = sums<true, Whole>(best);
    const F first = found.error, infinity = S::all(__builtin_inff());
    M going = S::less(first, infinity);  // not if the scale is infinite
    best.error = S::choose(going, first, infinity);
    for (int step = 0; step < kSteps; ++step) {
      const D levels = S::widen(found.levels);
      const D spread = S::sub(S::mul(n, S::widen(found.squares)), S::mul(levels, levels));
      Line next;
      next.scale = S::half(S::narrow(S::div(S::sub(S::mul(n, found.products), S::mul(levels, sum_)), spread)));
      next.minimum = S::half(S::narrow(S::div(S::sub(sum_, S::mul(S::widen(next.scale), levels)), n)));
      going = S::both(going, S::both(S::less(S::all_wide(0), spread), S::less(S::all(0.0f), next.scale)));
      going = S::unless(going, S::either(S::not_finite(next.scale), S::not_finite(next.minimum)));
      going = S::unless(going, same(next, best));
      if (!S::any(going)) break;
      found = step + 1 < kSteps ? sums<true, Whole>(next) : sums<false, Whole>(next);
      next.error = found.error;
      going = adopt(next, best, going);
    }
    return first;
  }

  const float* x_ = nullptr;
  int count_ = 0;
  F top_, least_, most_;
  D sum_;               // of the numbers
  bool whole_ = false;  // each number is the sum of its parts, so that sums of products are exact in any order
  alignas(64) float high_[kMostGroup * S::kLanes], low_[kMostGroup * S::kLanes];
};

}  // namespace
}  // namespace weft::kernels
