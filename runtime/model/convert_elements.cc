// runtime/model/convert_elements.cc: numbers of one float type as another's.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/error.h"
#include "runtime/checkpoint/float_types.h"
#include "runtime/model/weights.h"

namespace weft::runtime {
namespace {

/// The smallest number that rounds to infinity in a type.
float overflow_of(DType type) {
  return type == DType::f16 ? 65520.0f : type == DType::bf16 ? 0x1.FFp127f : std::numeric_limits<float>::infinity();
}

[[noreturn]] void refuse_overflow(const ElementPlace& place, std::size_t index, float number, DType to) {
  const std::int64_t at = place.first + static_cast<std::int64_t>(index);
  std::array<char, 32> digits{};
  std::to_chars(digits.data(), digits.data() + digits.size(), number);
  throw DataError("tensor '" + std::string(place.tensor) + "', row " + std::to_string(at / place.cols) + ", column " +
                  std::to_string(at % place.cols) + ": " + digits.data() + " is too large for " + name_of(to) +
                  "; give --dtype " + (to == DType::f16 ? "bfloat16" : "float32"));
}

}  // namespace

void convert_elements(DType from, const std::byte* in, DType to, std::byte* out, std::size_t count,
                      const ElementPlace& place) {
  constexpr std::size_t kAtOnce = 4096;  // numbers after which it is asked whether all have fitted
  const float limit = overflow_of(to);
  const auto overflows = [limit](float number) {
    return std::fabs(number) >= limit && std::fabs(number) <= std::numeric_limits<float>::max();
  };
  with_type(from, [&]<class From>(From) {
    with_type(to, [&]<class To>(To) {
      const auto* source = reinterpret_cast<const From*>(in);
      auto* target = reinterpret_cast<To*>(out);
      for (std::size_t first = 0; first < count; first += kAtOnce) {
        const std::size_t end = std::min(count, first + kAtOnce);
        float lost = 0;
        for (std::size_t i = first; i < end; ++i) {
          const auto number = static_cast<float>(source[i]);
          target[i] = To(number);
          lost = overflows(number) ? 1.0f : lost;
        }
        if (lost == 0) continue;
        for (std::size_t i = first;; ++i)
          if (const auto number = static_cast<float>(source[i]); overflows(number))
            refuse_overflow(place, i, number, to);
      }
    });
  });
}

}  // namespace weft::runtime
