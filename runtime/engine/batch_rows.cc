// runtime/engine/batch_rows.cc: the rows of a batch, and those of hidden states with what lies beside them.
#include "runtime/engine/batch_rows.h"

#include "runtime/engine/layer_data.h"

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
  alike.clear();
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

HiddenRows HiddenRows::slice(std::int64_t first, std::int64_t count) const {
  const auto part = [&](const View& all) { return all ? all.slice(first, count) : all; };
  HiddenRows rows(part(hidden));
  rows.layer_inputs = part(layer_inputs), rows.lent_k = part(lent_k), rows.lent_v = part(lent_v);
  return rows;
}

HiddenRows hidden_rows(const policy::ModelSpec& model, const policy::Types& types, std::byte* buffer, std::int64_t rows,
                       int layer) {
  const policy::HiddenLayout layout = policy::hidden_layout(model, types, rows);
  const auto view = [&](const policy::HiddenLayout::Part& part) {
    const policy::ValueShape& shape = part.shape;
    return part.used ? View(buffer + part.offset, shape.dtype, shape.rows, shape.cols) : View();
  };
  HiddenRows all(view(layout.hidden));
  all.layer_inputs = view(layout.layer_inputs);
  if (layer < 0) return all;
  if (all.layer_inputs)
    all.layer_inputs = all.layer_inputs.columns(std::int64_t{layer} * model.layer_input, model.layer_input);
  const std::size_t kind = model.is_global(layer) ? 1 : 0;
  all.lent_k = view(layout.lent_k[kind]), all.lent_v = view(layout.lent_v[kind]);
  return all;
}

}  // namespace weft::runtime
