#include "runtime/model/convert_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>

#include "kernels/machine/mapped_memory.h"
#include "runtime/base/files.h"
#include "runtime/base/fill_ahead.h"
#include "runtime/base/parallel.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/weights.h"
#include "runtime/stored/expert_stack.h"

namespace weft::runtime {
namespace {

// Bytes of a tensor that a thread, and all, convert at a time.
constexpr std::size_t kPiece = 1 << 20, kStep = 64 << 20;

/// Gives a tensor of the copy a name and a shape that transformers knows. A GGUF file has the experts of a layer in one
/// tensor, where transformers has one for each; where that too has one tensor of plain numbers, it is copied whole.
void name_as_transformers(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, const Checkpoint& checkpoint,
                          CopiedTensor& planned) {
  StoredTensor& stored = planned.stored;
  const bool vector = tensor.form != policy::Form::matrix;
  if (const auto star = stored.name.find(".*."); stored.info && star != std::string::npos) {
    stored.name.replace(star, 3, "." + std::to_string(tensor.of_layer) + ".");
    planned.first = static_cast<std::uint64_t>(stored.first_row * tensor.cols);
    planned.shape = vector ? std::vector{tensor.cols} : std::vector{tensor.rows, tensor.cols};
    return;
  }
  if (const auto stack = stored.matrix ? find_stack(spec, checkpoint, tensor) : std::nullopt)
    if (const TensorInfo* const whole = checkpoint.find(stack->name);
        whole && stack->name.find(".*.") == std::string::npos &&
        (vector || !matrix_format(checkpoint, spec.quantisation, stack->name)))
      stored = {.name = stack->name, .info = whole, .first_row = 0, .matrix = nullptr};
  if (!stored.info) return;
  planned.shape = stored.info->shape;
  if (stored.name.ends_with(".moe_statics.e_score_correction_bias") && planned.shape.size() == 1)
    planned.shape.insert(planned.shape.begin(), 1);  // ERNIE's has two sizes
}

/// Whether transformers has one parameter for all experts, and knows no names for those of one.
bool wants_stack(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, const CopiedTensor& planned) {
  return !tensor.stack.name.empty() && planned.stored.name.ends_with(tensor.name) &&
         (spec.architecture == "gpt_oss" || spec.architecture.starts_with("gemma4"));
}

/// Adds an expert's tensor to that of all.
void add_to_stack(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, DType type, CopiedTensor each,
                  std::map<std::string, std::size_t>& places, std::vector<CopiedTensor>& planned) {
  const std::string prefix = each.stored.name.substr(0, each.stored.name.size() - tensor.name.size());
  const auto [place, is_new] = places.try_emplace(prefix + tensor.stack.name, planned.size());
  const std::int64_t experts = spec.experts.count, parts = tensor.stack.parts;
  if (is_new) {
    const bool is_matrix = tensor.form == policy::Form::matrix;
    const std::int64_t rows = is_matrix ? tensor.rows : tensor.cols, cols = is_matrix ? tensor.cols : 1;
    CopiedTensor all{.stored = {.name = place->first, .info = nullptr, .first_row = 0, .matrix = nullptr},
                     .shape = {experts, parts * rows},
                     .type = type};
    if (is_matrix) all.shape.insert(tensor.stack.transposed ? all.shape.begin() + 1 : all.shape.end(), cols);
    all.bytes = bytes_of(type, experts * parts * rows * cols);
    all.stacked.emplace(StackedExperts{.stack = tensor.stack, .rows = rows, .cols = cols, .parts = {}});
    all.stacked->parts.resize(static_cast<std::size_t>(experts * parts));
    planned.push_back(std::move(all));
  }
  const std::int64_t at = tensor.of_layer * parts + tensor.stack.part;
  planned[place->second].stacked->parts[static_cast<std::size_t>(at)] = std::move(each.stored);
}

const char* safetensors_name(DType type) { return type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : "BF16"; }

std::string make_header(const std::vector<CopiedTensor>& planned) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (const CopiedTensor& each : planned) {
    header[each.stored.name] = {
        {"dtype", safetensors_name(each.type)}, {"shape", each.shape}, {"data_offsets", {offset, offset + each.bytes}}};
    offset += each.bytes;
  }
  return safetensors_head(header);
}

/// Appends to a file what comes in pieces, one while the next is made.
class Appender {
 public:
  explicit Appender(AtomicFile& file) : file_(file) {}
  std::byte* next(std::size_t bytes) { return ahead_.next(bytes_ = bytes); }
  void append(const std::byte* piece) {
    ahead_.carry([this, text = std::string_view(reinterpret_cast<const char*>(piece), bytes_)] { file_.append(text); });
  }
  void finish() { ahead_.finish(); }

 private:
  AtomicFile& file_;
  std::size_t bytes_ = 0;
  FillAhead ahead_{[](std::size_t bytes) { return std::make_unique<kernels::MappedMemory>(bytes); }};
};

/// Writes a matrix that the checkpoint stores in a form of its own, as plain numbers.
void write_matrix(const StoredMatrix& matrix, DType type, Appender& file, const std::atomic<bool>& stop) {
  matrix.check();
  std::vector<float> numbers;
  const std::int64_t step =
      std::max<std::int64_t>(1, static_cast<std::int64_t>(kPiece / sizeof(float)) / matrix.cols());
  for (std::int64_t first = 0; first < matrix.rows(); first += step) {
    if (stop) throw Interrupted{};
    matrix.read_numbers(first, std::min(step, matrix.rows() - first), numbers);
    std::byte* const out = file.next(numbers.size() * size_of(type));
    convert_elements(DType::f32, reinterpret_cast<const std::byte*>(numbers.data()), type, out, numbers.size(),
                     {matrix.name(), matrix.cols(), first * matrix.cols()});
    file.append(out);
  }
}

/// The numbers of an expert's tensor in fp32.
std::vector<float> numbers_of(const Checkpoint& checkpoint, const StoredTensor& part, std::int64_t rows,
                              std::int64_t cols) {
  std::vector<float> numbers;
  if (part.matrix) {
    part.matrix->read_numbers(0, part.matrix->rows(), numbers);
    return numbers;
  }
  const TensorInfo& tensor = *part.info;
  const DType from = weight_dtype(tensor);
  const auto count = static_cast<std::size_t>(rows * cols);
  std::vector<std::byte> bytes(count * size_of(from));
  const std::uint64_t first = static_cast<std::uint64_t>(part.first_row * tensor.shape.back());
  checkpoint.read_range(tensor.file, tensor.offset + first * size_of(from), bytes);
  numbers.resize(count);
  convert_elements(from, bytes.data(), DType::f32, reinterpret_cast<std::byte*>(numbers.data()), count,
                   {tensor.name, cols, static_cast<std::int64_t>(first)});
  return numbers;
}

/// Writes the tensors of single experts as one of all.
void write_stack(const Checkpoint& checkpoint, const CopiedTensor& planned, Appender& file,
                 const std::atomic<bool>& stop) {
  const StackedExperts& all = *planned.stacked;
  const std::int64_t parts = all.stack.parts, high = parts * all.rows;
  std::vector<float> expert(static_cast<std::size_t>(high * all.cols));
  for (std::size_t first = 0; first < all.parts.size(); first += static_cast<std::size_t>(parts)) {
    for (std::int64_t part = 0; part < parts; ++part) {
      if (stop) throw Interrupted{};
      const std::vector<float> numbers =
          numbers_of(checkpoint, all.parts[first + static_cast<std::size_t>(part)], all.rows, all.cols);
      for (std::int64_t i = 0; i < all.rows; ++i) {
        const std::int64_t row = all.stack.alternate ? i * parts + part : part * all.rows + i;
        for (std::int64_t c = 0; c < all.cols; ++c)
          expert[static_cast<std::size_t>(all.stack.transposed ? c * high + row : row * all.cols + c)] =
              numbers[static_cast<std::size_t>(i * all.cols + c)];
      }
    }
    std::byte* const out = file.next(expert.size() * size_of(planned.type));
    convert_elements(DType::f32, reinterpret_cast<const std::byte*>(expert.data()), planned.type, out, expert.size(),
                     {planned.stored.name, planned.shape.back(), 0});
    file.append(out);
  }
}

/// Parts of a tensor are read and converted side by side.
void write_tensor(const Checkpoint& checkpoint, const CopiedTensor& planned, Appender& file,
                  const std::atomic<bool>& stop) {
  if (planned.stacked) return write_stack(checkpoint, planned, file, stop);
  if (planned.stored.matrix) return write_matrix(*planned.stored.matrix, planned.type, file, stop);
  const TensorInfo& tensor = *planned.stored.info;
  const std::size_t element = size_of(planned.from), width = size_of(planned.type), part = kPiece / element;
  const std::uint64_t count = planned.bytes / width, before = planned.first;
  const std::int64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
  std::vector<std::byte> whole;
  if (!tensor.strides.empty()) whole = checkpoint.read_tensor(tensor);
  std::vector<std::vector<std::byte>> read(static_cast<std::size_t>(loop_threads()));
  for (std::uint64_t first = 0; first < count; first += kStep / element) {
    const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(kStep / element, count - first));
    std::byte* const out = file.next(some * width);
    for_each_of(static_cast<std::int64_t>((some + part - 1) / part), loop_threads(), [&](std::int64_t i, int thread) {
      if (stop) throw Interrupted{};
      const std::size_t begin = static_cast<std::size_t>(i) * part, here = std::min(part, some - begin);
      const std::byte* from = whole.data() + (before + first + begin) * element;
      if (whole.empty()) {
        std::vector<std::byte>& in = read[static_cast<std::size_t>(thread)];
        in.resize(here * element);
        checkpoint.read_range(tensor.file, tensor.offset + (before + first + begin) * element, in);
        from = in.data();
      }
      convert_elements(planned.from, from, planned.type, out + begin * width, here,
                       {tensor.name, cols, static_cast<std::int64_t>(before + first + begin)});
    });
    file.append(out);
  }
}

}  // namespace

std::vector<CopiedTensor> plan_tensors(const policy::ModelSpec& spec, const Checkpoint& checkpoint, DType type,
                                       std::size_t& read) {
  const std::vector<policy::Unit> units = policy::model_units(spec);
  const std::vector<TensorNeed> needs = tensor_needs(spec, units, checkpoint);
  check_unused(needs, spec, checkpoint);
  checkpoint.demand(needs, Checkpoint::Order::any);
  std::vector<CopiedTensor> planned;
  std::set<std::string> seen;
  for (const TensorNeed& need : needs) read += seen.insert(need.name).second;
  seen.clear();
  std::map<std::string, std::size_t> stacks;  // places in `planned`
  for (const policy::Unit& unit : units)
    for (const policy::TensorSpec& tensor : unit.tensors) {
      CopiedTensor each{.stored = stored_tensor(spec, tensor, checkpoint), .shape = {}};
      name_as_transformers(spec, tensor, checkpoint, each);
      if (wants_stack(spec, tensor, each)) {
        add_to_stack(spec, tensor, type, std::move(each), stacks, planned);
        continue;
      }
      if (!seen.insert(each.stored.name).second) continue;
      if (const auto& matrix = each.stored.matrix) {
        each.shape = {matrix->rows(), matrix->cols()};
        if (matrix->rows() == 1 && (tensor.form == policy::Form::norm || tensor.form == policy::Form::vector))
          each.shape.erase(each.shape.begin());
        each.type = type;
        each.bytes = bytes_of(type, matrix->rows() * matrix->cols());
      } else {
        const TensorInfo& info = *each.stored.info;
        each.from = weight_dtype(info);
        each.type = type == DType::f32 ? each.from : type;
        each.bytes = bytes_of(
            each.type, std::accumulate(each.shape.begin(), each.shape.end(), std::int64_t{1}, std::multiplies<>()));
      }
      planned.push_back(std::move(each));
    }
  return planned;
}

void write_tensors(const Checkpoint& checkpoint, const std::vector<CopiedTensor>& planned, AtomicFile& file,
                   const std::atomic<bool>& stop) {
  file.append(make_header(planned));
  Appender appender(file);
  for (const CopiedTensor& each : planned) write_tensor(checkpoint, each, appender, stop);
  appender.finish();
}

}  // namespace weft::runtime
