#include "runtime/base/duration.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft::runtime {

std::string duration_text(double seconds) {
  char text[48];
  const long s = std::lround(std::clamp(seconds, 0.0, 1e9));
  if (s < 3600) std::snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
  else if (s < 86400) std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  else std::snprintf(text, sizeof text, "%ld d %02ld:%02ld", s / 86400, s / 3600 % 24, s / 60 % 60);
  return text;
}

}  // namespace weft::runtime
