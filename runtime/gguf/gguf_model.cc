// runtime/gguf/gguf_model.cc: a model in one file or in several parts.
#include <algorithm>
#include <set>
#include <span>

#include "runtime/base/quote.h"
#include "runtime/gguf/gguf.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostParts = 99999, kMostFactors = 1 << 16;
constexpr const char *kNumber = "split.no", *kCount = "split.count", *kTensors = "split.tensors.count";

/// The end of the name of part `number`, counted from 1: "-00001-of-00003.gguf".
std::string suffix_of(std::int64_t number, std::int64_t count) {
  const auto five = [](std::int64_t value) {
    const std::string digits = std::to_string(value);
    return std::string(5 - digits.size(), '0') + digits;
  };
  return "-" + five(number) + "-of-" + five(count) + ".gguf";
}

std::vector<fs::path> parts_beside(const Gguf& first, std::int64_t count) {
  const std::string name = first.path.filename().string(), suffix = suffix_of(1, count);
  if (const auto number = first.integer(kNumber, 0, count - 1); number != 0)
    first.refuse(GgufFault::bad_parts, "is part " + std::to_string(number + 1) + " of " + std::to_string(count) +
                                           "; give the first, whose name ends in " + suffix);
  if (!name.ends_with(suffix))
    first.refuse(GgufFault::bad_parts, "is the first of " + std::to_string(count) +
                                           " parts, which are found by their names; its name must end in " + suffix);
  std::vector<fs::path> parts;
  const std::string stem = name.substr(0, name.size() - suffix.size());
  for (std::int64_t part = 2; part <= count; ++part)
    parts.push_back(first.path.parent_path() / (stem + suffix_of(part, count)));
  return parts;
}

Gguf read_part(const fs::path& path, std::uint64_t alignment_of_first = kDefaultAlignment) {
  try {
    return read_gguf(InputFile(path), alignment_of_first);
  } catch (const NotAFile& error) {
    throw GgufError(GgufFault::bad_parts, error.what());
  }
}

void read_rest(GgufModel& model, std::int64_t count) {
  for (const fs::path& path : parts_beside(model.first(), count)) {
    Gguf part = read_part(path, model.first().alignment);
    const auto of = part.integer(kCount, 0, kMostParts), number = part.integer(kNumber, 0, kMostParts),
               wanted = static_cast<std::int64_t>(model.parts.size());
    if (of != count || number != wanted)
      part.refuse(GgufFault::bad_parts, "says that it is part " + std::to_string(number + 1) + " of " +
                                            std::to_string(of) + ", wanted " + std::to_string(wanted + 1) + " of " +
                                            std::to_string(count));
    model.parts.push_back(std::move(part));
  }
  std::set<std::string> names;
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors)
      if (!names.insert(tensor.name).second)
        part.refuse(GgufFault::duplicate_tensor, "tensor " + in_quotes(tensor.name) + " is in another part too");
  const auto all = static_cast<std::int64_t>(names.size());
  if (const auto stated = model.first().integer(kTensors, 0, 1 << 24, all); stated != all)
    model.first().refuse(GgufFault::bad_parts, "says that all parts have " + std::to_string(stated) +
                                                   " tensors, they have " + std::to_string(all));
}

std::vector<float> read_factors(const Gguf& part, const GgufTensor& tensor) {
  if (tensor.shape.size() != 1 || tensor.shape[0] > kMostFactors || tensor.format->type != DType::f32)
    part.refuse(GgufFault::bad_tensor, "tensor " + in_quotes(tensor.name) + " is no list of at most " +
                                           std::to_string(kMostFactors) + " numbers in F32");
  std::vector<float> values(static_cast<std::size_t>(tensor.shape[0]));
  InputFile(part.path).read(tensor.offset, std::as_writable_bytes(std::span(values)));
  return values;
}

}  // namespace

GgufModel GgufModel::open(const fs::path& path) {
  GgufModel model{.parts = {}, .factors = {}};
  model.parts.push_back(read_part(path));
  if (const auto count = model.first().integer(kCount, 0, kMostParts, 1); count > 1) read_rest(model, count);
  for (const Gguf& part : model.parts)
    for (const GgufTensor& tensor : part.tensors)
      if (std::find(kGgufFactors.begin(), kGgufFactors.end(), tensor.name) != kGgufFactors.end())
        model.factors[tensor.name] = read_factors(part, tensor);
  return model;
}

const GgufTensor* GgufModel::tensor(const std::string& name) const {
  for (const Gguf& part : parts) {
    const auto found =
        std::find_if(part.tensors.begin(), part.tensors.end(), [&](const auto& each) { return each.name == name; });
    if (found != part.tensors.end()) return &*found;
  }
  return nullptr;
}

}  // namespace weft::runtime
