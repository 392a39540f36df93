// runtime/base/duration.h: seconds as people write them.
#pragma once

#include <string>

namespace weft::runtime {

/// "1:05" or "2:03:10", or with days "3 d 02:10".
std::string duration_text(double seconds);

}  // namespace weft::runtime
