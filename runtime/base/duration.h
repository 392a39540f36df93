// runtime/base/duration.h: durations as text.
#pragma once

#include <string>

namespace weft::runtime {

/// Formats a duration as "1:05", as "2:03:10", or with days as "3 d 02:10".
std::string duration_text(double seconds);

}  // namespace weft::runtime
