#include "runtime/stored/expert_stack.h"

#include <algorithm>
#include <utility>

#include "runtime/checkpoint/float_types.h"

namespace weft::runtime {
namespace {

using policy::ExpertStack;
using policy::Form;
using policy::TensorSpec;

bool is_vector(const TensorSpec& spec) { return spec.form != Form::matrix; }

/// The numbers of a part that share a place among the parts: its rows, or a vector's numbers.
std::int64_t height(const TensorSpec& spec) { return is_vector(spec) ? spec.cols : spec.rows; }

/// Where a part's rows, or a vector's numbers, lie among those of the whole stack, unless experts are transposed.
struct Places {
  std::int64_t first, step;
};
Places places(const ExpertStack& stack, const TensorSpec& spec) {
  const std::int64_t before = std::int64_t{spec.of_layer} * stack.parts * height(spec);
  if (stack.alternate) return {before + stack.part, stack.parts};
  return {before + stack.part * height(spec), 1};
}

/// Rows first, first + step, ... of a matrix in a form of its own.
class RowsOfMatrix : public StoredMatrix {
 public:
  RowsOfMatrix(std::unique_ptr<const StoredMatrix> whole, Places at, std::string name, std::int64_t rows)
      : StoredMatrix(std::move(name), rows, whole->cols(), whole->form()), whole_(std::move(whole)), at_(at) {}

  void check() const override { whole_->check(); }
  void read_levels(std::int64_t first_row, std::int64_t rows, StoredLevels& to) const override {
    whole_->read_levels(at_.first + first_row * at_.step, (rows - 1) * at_.step + 1, to);
    thin_out(to.levels, cols(), rows);
    thin_out(to.scales, groups(), rows);
    thin_out(to.minima, groups(), rows);
  }
  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    whole_->read_numbers(at_.first + first_row * at_.step, (rows - 1) * at_.step + 1, to);
    thin_out(to, cols(), rows);
  }

 private:
  /// Moves every row of the part to the front.
  template <class T> void thin_out(std::vector<T>& all, std::int64_t width, std::int64_t rows) const {
    for (std::int64_t row = 1; at_.step > 1 && row < rows; ++row)
      std::copy_n(all.begin() + row * at_.step * width, width, all.begin() + row * width);
    all.resize(static_cast<std::size_t>(rows * width));
  }

  const std::unique_ptr<const StoredMatrix> whole_;
  const Places at_;
};

/// Plain numbers at equal distances: of a row row_step, of a column col_step.
class SpreadNumbers : public StoredMatrix {
 public:
  SpreadNumbers(const Checkpoint& checkpoint, const TensorInfo& tensor, std::int64_t first, std::int64_t row_step,
                std::int64_t col_step, std::string name, const TensorSpec& spec)
      : StoredMatrix(std::move(name), spec.rows, spec.cols, {.type = weight_dtype(tensor), .name = tensor.dtype}),
        checkpoint_(checkpoint), tensor_(tensor), first_(first), row_step_(row_step), col_step_(col_step) {}

  bool is_by_rows() const override { return col_step_ < row_step_; }
  void read_levels(std::int64_t, std::int64_t, StoredLevels&) const override {
    refuse_tensor(checkpoint_, tensor_, "has no levels");  // form() says so
  }
  void read_numbers(std::int64_t first_row, std::int64_t rows, std::vector<float>& to) const override {
    to.resize(static_cast<std::size_t>(rows * cols()));
    const std::int64_t begin = first_ + first_row * row_step_;
    if (is_by_rows()) {
      for (std::int64_t r = 0; r < rows; ++r)
        read_run(begin + r * row_step_, cols(), col_step_, to.data() + r * cols(), 1);
    } else {
      for (std::int64_t c = 0; c < cols(); ++c) read_run(begin + c * col_step_, rows, row_step_, to.data() + c, cols());
    }
  }

 private:
  /// Reads numbers that are `step` apart to places `apart`.
  void read_run(std::int64_t first, std::int64_t count, std::int64_t step, float* to, std::int64_t apart) const {
    const std::vector<float> run = read_floats(checkpoint_, tensor_, first, (count - 1) * step + 1);
    for (std::int64_t i = 0; i < count; ++i) to[i * apart] = run[static_cast<std::size_t>(i * step)];
  }

  const Checkpoint& checkpoint_;
  const TensorInfo& tensor_;
  const std::int64_t first_, row_step_, col_step_;
};

const MatrixFormat* format_of(const policy::ModelSpec& model, const Checkpoint& checkpoint, const std::string& name,
                              const TensorSpec& spec) {
  return is_vector(spec) ? nullptr : matrix_format(checkpoint, model.quantisation, name);
}

std::int64_t rows_of(const policy::ModelSpec& model, const ExpertStack& stack, const TensorSpec& spec) {
  return std::int64_t{model.experts.count} * stack.parts * spec.rows;
}

/// Whether a stack's shape is that of transposed experts, and not also that of others. Qwen3-VL's checkpoints are so,
/// but not when transformers 5 has saved them again.
bool fits_transposed_alone(const policy::ModelSpec& model, const TensorInfo& tensor, const ExpertStack& stack,
                           const TensorSpec& spec) {
  const std::int64_t high = stack.parts * height(spec);
  return !is_vector(spec) && high != spec.cols &&
         tensor.shape == std::vector<std::int64_t>{model.experts.count, spec.cols, high};
}

}  // namespace

std::optional<ExpertStack> find_stack(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                                      const TensorSpec& spec) {
  if (spec.stack.name.empty()) return {};
  const std::string own = "." + std::to_string(spec.of_layer) + ".";
  ExpertStack of_name{.name = spec.name};
  of_name.name.replace(of_name.name.rfind(own), own.size(), ".*.");
  for (const ExpertStack& stack : {of_name, spec.stack})
    for (const char* const prefix : policy::name_prefixes(model)) {
      ExpertStack found = stack;
      found.name = prefix + stack.name;
      const TensorInfo* const tensor = checkpoint.find(found.name);
      if (tensor && fits_transposed_alone(model, *tensor, found, spec)) found.transposed = true;
      if (tensor || format_of(model, checkpoint, found.name, spec)) return found;
    }
  return {};
}

std::vector<TensorNeed> stack_needs(const policy::ModelSpec& model, const Checkpoint& checkpoint,
                                    const ExpertStack& stack, const TensorSpec& spec) {
  const std::int64_t experts = model.experts.count, high = stack.parts * height(spec);
  if (const MatrixFormat* const format = format_of(model, checkpoint, stack.name, spec)) {
    auto needs = format->needs(checkpoint, model.quantisation, stack.name, rows_of(model, stack, spec), spec.cols);
    for (TensorNeed& need : needs)
      if (need.name == stack.name) need.shape = {experts, high, spec.cols};
    return needs;
  }
  if (is_vector(spec)) return {{stack.name, {experts, high}}};
  if (stack.transposed) return {{stack.name, {experts, spec.cols, high}}};
  return {{stack.name, {experts, high, spec.cols}}};
}

StackPart stack_part(const policy::ModelSpec& model, const Checkpoint& checkpoint, const ExpertStack& stack,
                     const TensorSpec& spec, std::string name) {
  const Places at = places(stack, spec);
  StackPart part;
  if (const MatrixFormat* const format = format_of(model, checkpoint, stack.name, spec)) {
    auto whole = format->open(checkpoint, model.quantisation, stack.name, rows_of(model, stack, spec), spec.cols);
    part.matrix = std::make_unique<RowsOfMatrix>(std::move(whole), at, std::move(name), spec.rows);
    return part;
  }
  const TensorInfo& tensor = *checkpoint.find(stack.name);
  if (is_vector(spec) && at.step > 1) {
    part.matrix = std::make_unique<SpreadNumbers>(checkpoint, tensor, at.first, at.step * spec.cols, at.step,
                                                  std::move(name), spec);
  } else if (!is_vector(spec) && stack.transposed) {
    const std::int64_t high = stack.parts * spec.rows, expert = spec.of_layer * high * spec.cols;
    const std::int64_t first = expert + (stack.alternate ? stack.part : stack.part * spec.rows);
    part.matrix = std::make_unique<SpreadNumbers>(checkpoint, tensor, first, at.step, high, std::move(name), spec);
  } else if (!is_vector(spec) && at.step > 1) {
    part.matrix = std::make_unique<SpreadNumbers>(checkpoint, tensor, at.first * spec.cols, at.step * spec.cols, 1,
                                                  std::move(name), spec);
  } else {
    part.info = &tensor;
    part.first_row = is_vector(spec) ? at.first / spec.cols : at.first;
  }
  return part;
}

}  // namespace weft::runtime
