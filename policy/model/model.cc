#include "policy/model/model.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <iterator>
#include <utility>

#include "policy/model/architecture.h"

namespace weft::policy {
namespace {

/// A name of a table with its marks replaced.
std::string numbered(std::string name, int layer, int expert) {
  for (const auto& [mark, number] : {std::pair{'#', layer}, std::pair{'@', expert}})
    if (const auto at = name.find(mark); at != std::string::npos) name.replace(at, 1, std::to_string(number));
  return name;
}

/// `first`, `count`: the experts of a unit of experts.
Unit make_unit(const ModelSpec& model, Unit::Kind kind, int layer, int first = 0, int count = 1) {
  Unit unit{.kind = kind, .layer = layer, .first_expert = first, .experts = count, .tensors = {}};
  const bool last = kind == Unit::Kind::experts && first + count == model.experts.count;
  for (int expert = 0; expert < count + (last ? 1 : 0); ++expert)
    for (const TensorRow& row : find_architecture(model.architecture)->tensors) {
      if (row.unit != kind || row.ends_experts != (expert == count) || !applies(row.when, model, layer)) continue;
      const int of_layer = first + expert;
      TensorSpec tensor{row.role, row.form, numbered(row.name, layer, of_layer), size_of(row.rows, model, layer),
                        size_of(row.cols, model, layer)};
      tensor.of_rows = row.of_rows == Dim::one ? tensor.rows : size_of(row.of_rows, model, layer);
      tensor.first_row = row.first_row == Dim::one ? 0 : size_of(row.first_row, model, layer);
      tensor.expert = expert, tensor.of_layer = of_layer;
      if (row.stack.name)
        tensor.stack = {numbered(row.stack.name, layer, of_layer), row.stack.part, row.stack.parts, row.stack.alternate,
                        row.stack.transposed};
      unit.tensors.push_back(std::move(tensor));
    }
  return unit;
}

/// How many experts a unit has: as many as are no larger than a layer's attention, so that windows fit both, and so
/// many that a layer has at most kMostGroups such units, which a schedule can still hold.
int experts_of_unit(const ModelSpec& model, int layer) {
  constexpr int kMostGroups = 16;
  const std::int64_t attention = make_unit(model, Unit::Kind::attention, layer).elements(),
                     expert = make_unit(model, Unit::Kind::experts, layer).elements();
  const auto fitting = static_cast<int>(std::clamp<std::int64_t>(attention / expert, 1, model.experts.count));
  return std::max(fitting, (model.experts.count + kMostGroups - 1) / kMostGroups);
}

/// The units of a layer.
std::vector<Unit> layer_units(const ModelSpec& model, int layer) {
  std::vector<Unit> units{make_unit(model, Unit::Kind::attention, layer)};
  Unit mlp = make_unit(model, Unit::Kind::mlp, layer);
  if (model.parallel_residual) {
    std::move(mlp.tensors.begin(), mlp.tensors.end(), std::back_inserter(units.front().tensors));
    return units;
  }
  units.push_back(std::move(mlp));
  if (!model.is_sparse(layer)) return units;
  const int size = experts_of_unit(model, layer);
  for (int first = 0; first < model.experts.count; first += size)
    units.push_back(make_unit(model, Unit::Kind::experts, layer, first, std::min(size, model.experts.count - first)));
  return units;
}

/// Cuts a unit of one table into pieces of at most `limit` elements, each of whole rows.
void add_pieces(std::vector<Unit>& units, const Unit& whole, std::int64_t limit) {
  assert(limit > 0);
  const TensorSpec& table = whole.tensors.front();
  const std::int64_t pieces = std::max<std::int64_t>(1, (table.elements() + limit - 1) / limit);
  for (std::int64_t p = 0; p < pieces; ++p) {
    Unit piece = whole;
    TensorSpec& part = piece.tensors.front();
    part.first_row = table.rows * p / pieces;
    part.rows = table.rows * (p + 1) / pieces - part.first_row;
    units.push_back(std::move(piece));
  }
}

}  // namespace

std::int64_t Unit::elements() const {
  std::int64_t sum = 0;
  for (const TensorSpec& tensor : tensors) sum += tensor.elements();
  return sum;
}

std::span<const char* const> name_prefixes(const ModelSpec& model) {
  return find_architecture(model.architecture)->prefixes;
}

std::vector<Unit> model_units(const ModelSpec& model) {
  std::vector<Unit> units;
  std::int64_t limit = make_unit(model, Unit::Kind::mlp, 0).elements();
  if (model.experts.count > 0)
    for (const Unit& unit : layer_units(model, model.layers - 1)) limit = std::max(limit, unit.elements());
  Unit embedding = make_unit(model, Unit::Kind::embedding, -1);
  embedding.gathered = true;
  embedding.streamed = model.tied_head;
  add_pieces(units, embedding, limit);
  if (Unit positions = make_unit(model, Unit::Kind::positions, -1); !positions.tensors.empty()) {
    positions.gathered = true;
    positions.streamed = false;
    add_pieces(units, positions, limit);
  }
  if (Unit inputs = make_unit(model, Unit::Kind::layer_inputs, -1); !inputs.tensors.empty()) {
    inputs.gathered = true;
    inputs.streamed = false;
    add_pieces(units, inputs, limit);
  }
  if (Unit input = make_unit(model, Unit::Kind::input, -1); !input.tensors.empty()) units.push_back(std::move(input));
  for (int layer = 0; layer < model.layers; ++layer)
    for (Unit& unit : layer_units(model, layer)) units.push_back(std::move(unit));
  if (Unit output = make_unit(model, Unit::Kind::output, -1); !output.tensors.empty())
    units.push_back(std::move(output));
  if (!model.tied_head) {
    Unit head = make_unit(model, Unit::Kind::head, -1);
    head.keeps_levels = model.quantisation.head.has_value();
    add_pieces(units, head, limit);
  }
  return units;
}

int ModelSpec::kv_source(int layer) const {
  const auto of = [&](int l) { return window_layers[static_cast<std::size_t>(l)]; };
  for (int source = layers - sharing_layers - 1; source >= 0; --source)
    if (of(source) == of(layer)) return source;
  return -1;
}

bool ModelSpec::lends_kv(int layer) const {
  for (int sharing = layers - sharing_layers; sharing < layers; ++sharing)
    if (kv_source(sharing) == layer) return true;
  return false;
}

std::vector<int> kv_heads_of_layers(const ModelSpec& model) {
  std::vector<int> heads;
  for (int layer = 0; layer < model.layers; ++layer) heads.push_back(model.kv_heads_of(layer));
  return heads;
}

const char* name_of(Sublayer::Kind kind) {
  constexpr std::array names{"embed", "attention", "mlp", "experts", "output", "head"};
  return names[static_cast<std::size_t>(kind)];
}

double rows_share(const ModelSpec& model, Sublayer::Kind kind) {
  return kind == Sublayer::Kind::experts ? double(model.experts.chosen) / model.experts.count : 1;
}

double touched_share(const ModelSpec& model, double rows) {
  return 1 - std::pow(1 - rows_share(model, Sublayer::Kind::experts), rows);
}

std::vector<Sublayer> model_sublayers(const ModelSpec& model, const std::vector<Unit>& units) {
  using Kind = Sublayer::Kind;
  std::vector<Sublayer> order{{Kind::embed}};
  order.reserve(units.size() + 2);
  const Unit::Kind head = model.tied_head ? Unit::Kind::embedding : Unit::Kind::head;
  std::vector<Sublayer> heads;
  Sublayer output{Kind::output};
  for (int u = 0; u < static_cast<int>(units.size()); ++u) {
    const Unit& unit = units[static_cast<std::size_t>(u)];
    if (unit.kind == head) heads.push_back({Kind::head, -1, u});
    if (unit.kind == Unit::Kind::input) order.front().unit = u;
    if (unit.kind == Unit::Kind::output) output.unit = u;
    if (unit.kind == Unit::Kind::mlp) order.push_back({Kind::mlp, unit.layer, u});
    if (unit.kind == Unit::Kind::attention) order.push_back({Kind::attention, unit.layer, u});
    if (unit.kind == Unit::Kind::experts)
      order.push_back({Kind::experts, unit.layer, u, unit.first_expert, unit.experts});
  }
  order.push_back(output);
  order.insert(order.end(), heads.begin(), heads.end());
  return order;
}

std::string context_text(const ModelSpec& model) {
  if (model.longer_positions == 0) return std::to_string(model.positions);
  return std::to_string(model.positions) + " (of " + std::to_string(model.longer_positions) +
         "; longer sequences are computed in another way, which is not supported)";
}

std::int64_t parameters(const ModelSpec& model) {
  std::int64_t sum = 0;
  for (const Unit& unit : model_units(model))
    if (unit.kind != Unit::Kind::head || !model.head_of_embedding) sum += unit.elements();
  return sum;
}

}  // namespace weft::policy
