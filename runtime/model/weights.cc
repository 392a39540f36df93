#include "runtime/model/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

using policy::Form;

constexpr std::uint64_t kPart = 64;     // alignment of packed tensors
constexpr std::size_t kUnpacked = 256;  // alignment of unpacked tensors
constexpr std::uint64_t kWord = 16;     // bytes of a word in which a GPU reads memory best

double deviation(const policy::TensorSpec& spec) {
  return spec.form == Form::matrix ? 1 / std::sqrt(double(spec.cols)) : 0.02;
}

/// The matrices that MXFP4 leaves plain where there are experts (gpt-oss), if no file says which.
std::vector<std::string> all_but_experts(const std::vector<policy::Unit>& units) {
  std::vector<std::string> names;
  for (const policy::Unit& unit : units)
    for (const policy::TensorSpec& tensor : unit.tensors)
      if (unit.kind != policy::Unit::Kind::experts && policy::quantises(unit, tensor)) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::size_t take_unpacked(offload::Arena& space, std::int64_t elements) {
  return space.take(offload::round_up(bytes_of(DType::f16, elements), kUnpacked), kUnpacked);
}

Weights::Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, const Checkpoint& checkpoint,
                 DType type, const std::optional<policy::WeightFormat>& format)
    : checkpoint_(&checkpoint), quantised_(model.quantisation), type_(type) {
  checkpoint.demand(tensor_needs(model, units, checkpoint));
  for (const policy::Unit& unit : units) {
    Layout layout{.tensors = {}, .in_files = true};
    for (const policy::TensorSpec& spec : unit.tensors) {
      Placed& tensor = layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type});
      take(model, tensor);
      if (tensor.source) tensor.dtype = weight_dtype(*tensor.source);
      const bool narrow = tensor.dtype == type || type == DType::f32;
      const bool whole = !is_quantised(tensor.dtype) && tensor.file_offset % size_of(tensor.dtype) == 0;
      if (quantise_if(unit, tensor, format) || tensor.matrix || !narrow || !whole) layout.in_files = false;
    }
    if (layout.in_files) {
      lay_out_in_files(layout);
    } else {
      for (Placed& tensor : layout.tensors)
        if (!is_quantised(tensor.dtype)) tensor.dtype = type;
      lay_out_packed(layout);
    }
    layouts_.push_back(std::move(layout));
  }
}

Weights::Weights(const policy::ModelSpec& model, const std::vector<policy::Unit>& units, std::uint64_t seed, DType type,
                 const std::optional<policy::WeightFormat>& format)
    : quantised_(model.quantisation), seed_(seed), type_(type) {
  if (quantised_.packing == policy::Quantisation::Packing::mxfp4 && model.experts.count > 0)
    quantised_.plain = all_but_experts(units);
  lay_out(units, format);
  std::map<std::tuple<float, float, DType>, std::shared_ptr<const Deviates>> tables;
  std::map<std::pair<float, DType>, std::shared_ptr<const RandomLevels>> levels;
  for (Layout& layout : layouts_)
    for (Placed& tensor : layout.tensors) {
      const auto scale = static_cast<float>(deviation(tensor.spec));
      if (is_quantised(tensor.dtype)) {
        auto& table = levels[{scale, tensor.dtype}];
        if (!table) table = std::make_shared<RandomLevels>(scale, tensor.dtype);
        tensor.levels = table;
        continue;
      }
      const float mean = tensor.spec.form == Form::norm && !model.norm_plus_one ? 1.0f : 0.0f;
      auto& table = tables[{scale, mean, tensor.dtype}];
      if (!table) table = std::make_shared<Deviates>(scale, mean, tensor.dtype);
      tensor.deviates = table;
    }
}

Weights Weights::from_packed(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                             const Checkpoint& packed, DType type, const policy::WeightFormat& format) {
  Weights weights;
  weights.type_ = type;
  weights.quantised_ = model.quantisation;
  weights.lay_out(units, format);
  for (Layout& layout : weights.layouts_) layout.in_files = true;
  weights.packed_.emplace(packed, UnitSizes(weights.bytes_.begin(), weights.bytes_.end()));
  weights.packed_file_ = &packed;
  return weights;
}

Weights Weights::to_pack(const policy::ModelSpec& model, const std::vector<policy::Unit>& units,
                         const Checkpoint& checkpoint, DType type, const policy::WeightFormat& format) {
  checkpoint.demand(tensor_needs(model, units, checkpoint));
  Weights weights;
  weights.checkpoint_ = &checkpoint;
  weights.type_ = type;
  weights.quantised_ = model.quantisation;
  for (const policy::Unit& unit : units) {
    Layout layout;
    for (const policy::TensorSpec& spec : unit.tensors) {
      Placed& tensor = layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type});
      weights.take(model, tensor);
      weights.quantise_if(unit, tensor, format);
    }
    weights.lay_out_packed(layout);
    weights.layouts_.push_back(std::move(layout));
  }
  return weights;
}

/// Finds the tensor in the checkpoint.
void Weights::take(const policy::ModelSpec& model, Placed& tensor) const {
  StoredTensor stored = stored_tensor(model, tensor.spec, *checkpoint_);
  tensor.matrix = std::move(stored.matrix);
  tensor.source = stored.info;
  tensor.spec.first_row += stored.first_row;
  if (tensor.source)
    tensor.file_offset =
        tensor.source->offset + bytes_of(weight_dtype(*tensor.source), tensor.spec.first_row * tensor.spec.cols);
}

/// Lays out the tensors of every unit in their order, in a buffer for the unit alone.
void Weights::lay_out(const std::vector<policy::Unit>& units, const std::optional<policy::WeightFormat>& format) {
  for (const policy::Unit& unit : units) {
    Layout layout;
    for (const policy::TensorSpec& spec : unit.tensors) {
      layout.tensors.emplace_back(Placed{.spec = spec, .dtype = type_});
      quantise_if(unit, layout.tensors.back(), format);
    }
    lay_out_packed(layout);
    layouts_.push_back(std::move(layout));
  }
}

namespace {

/// The format's own type, except that int4 becomes int8 for the matrix that makes the values: it is a twelfth of a
/// layer or less, and in 4 bits it causes a third of int4's loss (docs/quality.md).
DType quantised_type(const policy::WeightFormat& format, policy::Role role) {
  return format.dtype == DType::i4 && role == policy::Role::v_weight ? DType::i8 : format.dtype;
}

}  // namespace

bool Weights::quantise_if(const policy::Unit& unit, Placed& tensor,
                          const std::optional<policy::WeightFormat>& format) const {
  if (!format || !format->quantised() || !policy::quantises(unit, tensor.spec)) return false;
  if (format->dtype == quantised_.dtype && format->group == quantised_.group) {
    if (!quantise_as_stored(tensor, *format)) return false;
  } else {
    tensor.dtype = quantised_type(*format, tensor.spec.role), tensor.group = format->group;
  }
  if (keeps_levels(tensor) && !widens_levels(tensor)) tensor.table = tensor.matrix->form().table;
  return true;
}

bool Weights::quantise_as_stored(Placed& tensor, const policy::WeightFormat& format) const {
  const std::string& name = tensor.spec.name;
  const auto among = [&](const std::vector<std::string>& names) {
    return std::binary_search(names.begin(), names.end(), name);
  };
  const bool levels = tensor.matrix && tensor.matrix->has_levels() &&
                      (tensor.matrix->form().type == DType::f8) == (format.dtype == DType::f8);
  tensor.plain = among(quantised_.plain) || (quantised_.foreign() && checkpoint_ && !levels);
  if (tensor.plain) return false;
  tensor.own_int8 =
      format.dtype == DType::i4 && (levels ? tensor.matrix->form().type == DType::i8 : among(quantised_.int8));
  if (tensor.own_int8) tensor.dtype = DType::i8;
  else tensor.dtype = quantised_.uniform ? format.dtype : quantised_type(format, tensor.spec.role);
  const bool own_group = levels && is_group_size(tensor.matrix->form().group);
  tensor.group = own_group ? tensor.matrix->form().group : quantised_.group_of(name);
  if (tensor.dtype == DType::i4 && !tensor.matrix) tensor.table = quantised_.table_of(name);
  return true;
}

void Weights::lay_out_packed(Layout& layout) {
  std::size_t end = 0;
  for (Placed& tensor : layout.tensors) {
    tensor.offset = offload::round_up(end, kPart);
    end = tensor.offset + tensor.bytes();
  }
  bytes_.push_back(offload::round_up(end, offload::kPage));
}

/// Tensors that follow each other in a file stay together. Every such run begins as far into a page as it does in the
/// file, so that O_DIRECT reads land in place. If the data of another file begin elsewhere in a word, its reads do not
/// land in place, because all runs of a unit must need the same shift.
void Weights::lay_out_in_files(Layout& layout) {
  std::sort(layout.tensors.begin(), layout.tensors.end(), [](const Placed& a, const Placed& b) {
    return std::pair(a.source->file, a.file_offset) < std::pair(b.source->file, b.file_offset);
  });
  std::size_t end = 0;
  const Placed* before = nullptr;
  for (Placed& tensor : layout.tensors) {
    const bool follows = before && before->source->file == tensor.source->file &&
                         before->file_offset + before->bytes() == tensor.file_offset;
    if (!follows) end = offload::round_up(end, offload::kPage) + tensor.file_offset % offload::kPage;
    if (before && !follows) end += (layout.tensors.front().offset - end) % kWord;
    tensor.offset = end;
    end += tensor.bytes();
    before = &tensor;
  }
  bytes_.push_back(offload::round_up(end, offload::kPage));
}

const Weights::Placed& Weights::placed(std::size_t unit, policy::Role role) const {
  const auto& tensors = layouts_[unit].tensors;
  return *std::find_if(tensors.begin(), tensors.end(), [&](const Placed& tensor) { return tensor.spec.role == role; });
}

std::size_t Weights::shift(std::size_t unit) const {
  const Layout& layout = layouts_[unit];
  return layout.in_files ? layout.tensors.front().offset % kWord : 0;
}

std::vector<std::uint64_t> Weights::unpacked_bytes() const {
  std::vector<std::uint64_t> bytes;
  for (const Layout& layout : layouts_) {
    offload::Arena counting;
    for (const Placed& tensor : layout.tensors)
      if (is_quantised(tensor.dtype)) take_unpacked(counting, tensor.spec.elements());
    bytes.push_back(counting.used());
  }
  return bytes;
}

UnitViews Weights::views(std::size_t unit, const std::byte* base, int expert) const {
  UnitViews views;
  for (const Placed& tensor : layouts_[unit].tensors) {
    if (tensor.spec.expert != expert) continue;
    ConstView& view = views[static_cast<std::size_t>(tensor.spec.role)];
    view = ConstView(base + tensor.offset, tensor.dtype, tensor.spec.rows, tensor.spec.cols);
    view.group = tensor.group, view.table = tensor.table;
  }
  return views;
}

std::vector<ByteRange> Weights::ranges_of(std::size_t unit, const std::vector<bool>& wanted) const {
  std::vector<ByteRange> ranges;
  const Placed* before = nullptr;
  for (const Placed& tensor : layouts_[unit].tensors) {
    const auto expert = static_cast<std::size_t>(tensor.spec.expert);
    const bool reads = expert == wanted.size() || wanted[expert];  // what follows the last expert is always used
    // Gaps between tensors are read too, where both are.
    if (reads && before) ranges.back().end = tensor.offset + tensor.bytes();
    else if (reads) ranges.push_back({tensor.offset, tensor.offset + tensor.bytes()});
    before = reads ? &tensor : nullptr;
  }
  return ranges;
}

std::vector<offload::FilePart> Weights::parts(std::size_t unit, std::span<const offload::FileId> files) const {
  if (packed_) return {packed_->part(unit, files)};
  std::vector<offload::FilePart> parts;
  for (const Placed& tensor : layouts_[unit].tensors) {
    const offload::Extent extent{files[tensor.source->file], tensor.file_offset, tensor.bytes()};
    if (!parts.empty()) {
      offload::FilePart& last = parts.back();
      if (last.extent.file == extent.file && last.extent.offset + last.extent.bytes == extent.offset &&
          last.offset + last.extent.bytes == tensor.offset) {
        last.extent.bytes += extent.bytes;
        continue;
      }
    }
    parts.push_back({extent, tensor.offset});
  }
  return parts;
}

std::int64_t Weights::quantised_elements(std::size_t unit) const {
  std::int64_t count = 0;
  for (const Placed& tensor : layouts_[unit].tensors)
    if (is_quantised(tensor.dtype) && !keeps_levels(tensor) && !tensor.levels) count += tensor.spec.elements();
  return count;
}

std::vector<std::string> Weights::names_with(bool Placed::*mark) const {
  std::vector<std::string> names;
  for (const Layout& layout : layouts_)
    for (const Placed& tensor : layout.tensors)
      if (tensor.*mark) names.push_back(tensor.spec.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> Weights::left_plain() const { return names_with(&Placed::plain); }

std::vector<std::string> Weights::left_int8() const { return names_with(&Placed::own_int8); }

std::map<std::string, LevelTable> Weights::level_tables() const {
  std::map<std::string, LevelTable> tables;
  for (const Layout& layout : layouts_)
    for (const Placed& tensor : layout.tensors)
      if (tensor.dtype == DType::i4) tables.emplace(tensor.spec.name, tensor.table);
  return tables;
}

std::map<std::string, int> Weights::group_sizes() const {
  std::map<std::string, int> sizes;
  for (const Layout& layout : layouts_)
    for (const Placed& tensor : layout.tensors)
      if (is_quantised(tensor.dtype)) sizes.emplace(tensor.spec.name, tensor.group);
  return sizes;
}

std::vector<std::string> Weights::changed_levels() const {
  std::map<std::string, std::set<std::string>> forms;  // by what becomes of them
  for (const Layout& layout : layouts_)
    for (const Placed& tensor : layout.tensors) {
      if (!tensor.matrix || !tensor.matrix->has_levels()) continue;
      const StoredForm& form = tensor.matrix->form();
      if (keeps_levels(tensor) && form.exact) continue;
      const std::string name = name_of(tensor.dtype);
      forms[keeps_levels(tensor) && form.table == LevelTable::nf4
                ? "keeps its levels, with scales rounded to float16 and the table's numbers to 8 bits"
            : keeps_levels(tensor) ? "keeps its levels, with scales and minima rounded to float16"
            : is_quantised(tensor.dtype)
                ? "is quantised anew to " + name + " in groups of " + std::to_string(tensor.group)
            : tensor.dtype == DType::f32 ? "is unpacked to float32, exactly"
                                         : "is unpacked to " + name + ", which rounds its numbers"]
          .insert(form.name);
    }
  std::vector<std::string> lines;
  for (const auto& [what, names] : forms) {
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    lines.push_back(list + " " + what);
  }
  return lines;
}

bool Weights::converts() const {
  return checkpoint_ && std::any_of(layouts_.begin(), layouts_.end(), [](const Layout& l) { return !l.in_files; });
}

/// The type of the numbers that a tensor is made of: the checkpoint's, or that of random numbers.
DType Weights::given_type(const Placed& tensor) const {
  return tensor.source ? weight_dtype(*tensor.source) : tensor.dtype;
}

/// Whether the tensor's levels are those of the checkpoint.
bool Weights::keeps_levels(const Placed& tensor) const {
  return tensor.matrix && tensor.matrix->form().group == tensor.group &&
         (tensor.matrix->form().type == tensor.dtype || widens_levels(tensor));
}

/// Whether they become the levels of 8 bits that they stand for.
bool Weights::widens_levels(const Placed& tensor) {
  const StoredForm& form = tensor.matrix->form();
  return form.type == DType::i4 && form.table != LevelTable::even && tensor.dtype == DType::i8;
}

/// Where a row of the unit's tensor begins in the checkpoint's.
ElementPlace Weights::place_of(const Placed& tensor, std::int64_t row) {
  const std::string& name = tensor.source   ? tensor.source->name
                            : tensor.matrix ? tensor.matrix->name()
                                            : tensor.spec.name;
  return {name, tensor.spec.cols, (tensor.spec.first_row + row) * tensor.spec.cols};
}

}  // namespace weft::runtime
