#include "kernels/quantised.h"

#include <algorithm>
#include <cmath>

namespace weft::kernels {

bool quantise_group(const float* numbers, std::int64_t count, DType dtype, std::uint8_t* levels, GroupScale& scale) {
  float least = numbers[0], most = numbers[0];
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) {
    finite &= std::isfinite(numbers[i]);
    least = std::min(least, numbers[i]), most = std::max(most, numbers[i]);
  }
  if (!finite) return false;
  const auto top = static_cast<float>(levels_of(dtype));
  scale = {f16((most - least) / top), f16(least)};  // an overflow is an infinity, which f16 keeps
  const auto step = static_cast<float>(scale.scale), low = static_cast<float>(scale.minimum);
  if (!std::isfinite(step) || !std::isfinite(low)) return false;
  for (std::int64_t i = 0; i < count; ++i) {
    const float level = step > 0 ? std::nearbyint((numbers[i] - low) / step) : 0.0f;
    levels[i] = static_cast<std::uint8_t>(std::clamp(level, 0.0f, top));
  }
  return true;
}

}  // namespace weft::kernels
