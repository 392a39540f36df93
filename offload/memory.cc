// offload/memory.cc
#include "offload/memory.h"

#include <algorithm>
#include <string>

#include "kernels/error.h"

namespace weft::offload {

std::size_t Arena::take(std::size_t bytes, std::size_t alignment) {
  const std::size_t offset = (used_ + alignment - 1) & ~(alignment - 1);
  if (offset > capacity_ || bytes > capacity_ - offset)
    throw CapacityError(std::string(name_of(tier_)) + " memory is too small: " + std::to_string(bytes) +
                        " bytes wanted, " + std::to_string(capacity_ - std::min(offset, capacity_)) + " of " +
                        std::to_string(capacity_) + " free; raise its budget, or place less on this tier");
  used_ = offset + bytes;
  peak_ = std::max(peak_, used_);
  return offset;
}

}  // namespace weft::offload
