// runtime/engine/batch_rows.cc
#include "runtime/engine/batch_rows.h"

namespace weft::runtime {

void BatchRows::clear() {
  begun = 0;
  sequence.clear();
  offsets.assign(1, 0);
  prefixes.clear();
  shared.clear();
  tokens.clear();
  position.clear();
  for (auto& of_layer : keeps)
    for (auto& of_run : of_layer) of_run.clear();
  context.clear();
  moved.clear();
}

void BatchRows::add(std::int32_t place, const LayerKeeps& each, std::int32_t length) {
  sequence.push_back(place);
  keeps.resize(each.size());
  for (std::size_t layer = 0; layer < each.size(); ++layer) {
    keeps[layer].resize(each[layer].size());
    for (std::size_t run = 0; run < each[layer].size(); ++run) keeps[layer][run].push_back(each[layer][run]);
  }
  context.push_back(length);
}

}  // namespace weft::runtime
