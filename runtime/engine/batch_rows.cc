// runtime/engine/batch_rows.cc
#include "runtime/engine/batch_rows.h"

namespace weft::runtime {

void BatchRows::clear() {
  begun = 0;
  sequence.clear();
  offsets.assign(1, 0);
  shared.clear();
  tokens.clear();
  position.clear();
  keep.clear();
  context.clear();
  moved.clear();
}

void BatchRows::add(std::int32_t place, const kernels::Keep& keeps, std::int32_t length) {
  sequence.push_back(place);
  keep.push_back(keeps);
  context.push_back(length);
}

}  // namespace weft::runtime
