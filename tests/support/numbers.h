// tests/support/numbers.h: random numbers from a seed, and the comparison of results with a tolerance.
#pragma once

#include <catch2/catch.hpp>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft::test {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20, kGiB = std::uint64_t{1} << 30;
constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> normal(std::int64_t n, std::uint64_t seed, float deviation = 1) {
  std::mt19937_64 engine(seed);
  std::normal_distribution<float> distribution(0, deviation);
  std::vector<float> numbers(static_cast<std::size_t>(n));
  for (float& x : numbers) x = distribution(engine);
  return numbers;
}

/// `numbers` as they come back from memory of type `dtype`.
inline std::vector<float> rounded(std::vector<float> numbers, DType dtype) {
  for (float& x : numbers) {
    if (dtype == DType::f16) x = static_cast<float>(f16(x));
    if (dtype == DType::bf16) x = static_cast<float>(bf16(x));
  }
  return numbers;
}

/// Whether two lists are the same to the bit, NaN and the sign of 0 included.
inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// The bytes that pairs of hexadecimal digits stand for.
inline std::vector<std::byte> bytes_from(const std::string& hex) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// Words at the beginning of a cache line, as kernels want quantised weights.
struct Aligned {
  explicit Aligned(const std::vector<std::int32_t>& words) : bytes(words.size() * 4 + 64) {
    std::byte* const at = bytes.data() + (64 - reinterpret_cast<std::uintptr_t>(bytes.data()) % 64) % 64;
    std::memcpy(at, words.data(), words.size() * 4);
    data = at;
  }
  std::vector<std::byte> bytes;
  const std::byte* data;
};

/// The larger of two errors. Unlike std::max it takes NaN for the largest, on either side.
inline double larger_error(double a, double b) { return a >= b || std::isnan(a) ? a : b; }

/// The largest error allowed against fp64, as a share of the largest number expected. Sums are fp32 in every type, and
/// a result of type `dtype` is rounded once.
constexpr double tolerance(DType dtype) {
  switch (dtype) {
    case DType::f16: return 1e-3;
    case DType::bf16: return 8e-3;
    default: return 1e-5;
  }
}

/// Matches numbers within `tolerance` times the largest finite number expected. NaN matches only NaN, an infinity only
/// itself. A mismatch names the worst place.
class Near : public Catch::MatcherBase<std::vector<float>> {
 public:
  Near(std::vector<double> expected, double tolerance) : expected_(std::move(expected)), tolerance_(tolerance) {}

  bool match(const std::vector<float>& got) const override {
    if (got.size() != expected_.size()) return complain("the size is " + std::to_string(got.size()));
    double largest = 0, worst = 0;
    std::size_t at = 0;
    for (const double e : expected_)
      if (std::isfinite(e)) largest = std::max(largest, std::abs(e));
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double e = expected_[i], g = static_cast<double>(got[i]);
      if (std::isnan(e) || std::isinf(e) || !std::isfinite(g)) {
        if (std::isnan(e) ? !std::isnan(g) : e != g) return complain(place(i, g));
        continue;
      }
      if (std::abs(g - e) > worst) worst = std::abs(g - e), at = i;
    }
    return worst <= tolerance_ * largest || complain(place(at, static_cast<double>(got[at])));
  }
  std::string describe() const override { return "is near what is expected, but " + why_; }

 private:
  std::string place(std::size_t i, double got) const {
    std::ostringstream out;
    out.precision(9);
    out << "[" << i << "] is " << got << ", expected " << expected_[i] << " (tolerance " << tolerance_
        << " of the largest)";
    return out.str();
  }
  bool complain(const std::string& why) const {
    why_ = why;
    return false;
  }

  std::vector<double> expected_;
  double tolerance_;
  mutable std::string why_ = "it is";
};

template <class T> Near near(const std::vector<T>& expected, double tolerance) {
  return {std::vector<double>(expected.begin(), expected.end()), tolerance};
}

/// Numbers of `dtype` that start `misaligned` elements after a 64-byte boundary.
class StoredNumbers {
 public:
  StoredNumbers(const std::vector<float>& numbers, DType dtype, std::size_t misaligned = 0)
      : bytes_((numbers.size() + misaligned) * size_of(dtype) + 64), dtype_(dtype) {
    const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
    data_ = bytes_.data() + (64 - address % 64) % 64 + misaligned * size_of(dtype);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      void* const to = data_ + i * size_of(dtype);
      if (dtype == DType::f16) *static_cast<f16*>(to) = f16(numbers[i]);
      else if (dtype == DType::bf16) *static_cast<bf16*>(to) = bf16(numbers[i]);
      else *static_cast<float*>(to) = numbers[i];
    }
  }
  ConstView view(std::int64_t rows, std::int64_t cols) const { return {data_, dtype_, rows, cols}; }
  double at(std::size_t i) const {
    const void* const from = data_ + i * size_of(dtype_);
    if (dtype_ == DType::f16) return static_cast<float>(*static_cast<const f16*>(from));
    if (dtype_ == DType::bf16) return static_cast<float>(*static_cast<const bf16*>(from));
    return *static_cast<const float*>(from);
  }

 private:
  std::vector<std::byte> bytes_;
  DType dtype_;
  std::byte* data_;
};

}  // namespace weft::test
