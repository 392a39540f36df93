// runtime/checkpoint/checkpoint.cc: finds the files of a checkpoint folder, and checks what they must hold together.
#include "runtime/checkpoint/checkpoint.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <utility>

#include "runtime/base/files.h"
#include "runtime/base/quote.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/packed_sums.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/shard_index.h"
#include "runtime/checkpoint/torch_bin.h"
#include "runtime/checkpoint/training_folder.h"
#include "runtime/gguf/gguf_names.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kTorchSingle = "pytorch_model.bin";
constexpr const char* kTorchIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kSafetensorsSuffix = ".safetensors", kTorchSuffix = ".bin";

[[noreturn]] void fail(Fault fault, const std::string& message) { throw CheckpointError(fault, message); }

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

/// Joins names, such as "F32, F16 or BF16".
std::string alternatives(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

/// Whether something is at `path`. Throws CheckpointError if it is a link to nowhere, IoError if that cannot be known.
bool is_there(const fs::path& path) {
  if (const std::string words = dangling_link(path); !words.empty()) fail(Fault::missing_file, words);
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::status_known(status)) throw IoError(path.string() + ": cannot look at it: " + error.message());
  return fs::exists(status);
}

bool ends_with(std::string_view name, std::string_view suffix) {
  return name.size() > suffix.size() && name.substr(name.size() - suffix.size()) == suffix;
}

using Format = Checkpoint::Format;
constexpr std::array<std::pair<const char*, Format>, 4> kFormats{{{kSingle, Format::safetensors},
                                                                  {kIndex, Format::sharded_safetensors},
                                                                  {kTorchSingle, Format::torch_bin},
                                                                  {kTorchIndex, Format::sharded_torch_bin}}};

/// Explains missing weights from the other files of the folder.
[[noreturn]] void fail_without_weights(const fs::path& directory) {
  const std::string where = directory.string();
  if (!is_there(directory))
    fail(Fault::missing_file, where + ": no such directory; wanted a checkpoint folder in the Hugging Face layout");
  std::error_code error;
  if (!fs::is_directory(directory, error))
    fail(Fault::not_a_file, where + ": is no directory; wanted the folder that holds " + kSingle);
  if (const std::string found = found_instead_of_weights(directory); !found.empty())
    fail(Fault::missing_file, where + ": " + found);
  std::string hint;
  for (const fs::path& path : entries_of(directory, error)) {
    const std::string name = path.filename().string();
    if (ends_with(name, kSafetensorsSuffix))
      hint = std::string("; ") + in_quotes(name) + " is there, but " + kIndex + " is not";
  }
  fail(Fault::missing_file, where + ": holds neither " + kSingle + " nor " + kIndex + ", nor " + kTorchSingle +
                                " nor " + kTorchIndex + hint);
}

bool by_name(const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; }

}  // namespace

DType weight_dtype(const TensorInfo& tensor) {
  if (tensor.dtype == "F32") return DType::f32;
  if (tensor.dtype == "F16") return DType::f16;
  if (tensor.dtype == "BF16") return DType::bf16;
  fail(Fault::bad_dtype,
       "tensor " + in_quotes(tensor.name) + " is stored as " + tensor.dtype + "; weights must be F32, F16 or BF16");
}

Checkpoint Checkpoint::open(const fs::path& directory) {
  if (is_gguf(directory)) return open(GgufModel::open(directory));
  Checkpoint checkpoint;
  const char* taken = nullptr;
  for (const auto& [name, format] : kFormats) {
    if (taken ? !fs::exists(directory / name) : !is_there(directory / name)) continue;
    if (taken) {
      checkpoint.notes_.push_back((directory / taken).string() + " is read, " + name + " next to it is not");
    } else {
      taken = name;
      checkpoint.format_ = format;
    }
  }
  if (!taken) fail_without_weights(directory);
  if (is_there(directory / kAdapter))
    checkpoint.notes_.push_back((directory / kAdapter).string() +
                                ": the adapter in this folder is not used; merge it into the model if it should be");
  if (checkpoint.format_ == Format::safetensors || checkpoint.format_ == Format::torch_bin) {
    checkpoint.tensors_ = checkpoint.add_file(directory / taken);
  } else {
    checkpoint.open_sharded(directory, directory / taken);
  }
  if (std::string note = remove_wrappers(checkpoint.tensors_); !note.empty())
    checkpoint.notes_.push_back(std::move(note));
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(), by_name);
  checkpoint.look_at_files();
  return checkpoint;
}

bool Checkpoint::present(const fs::path& directory) {
  return std::any_of(kFormats.begin(), kFormats.end(),
                     [&](const auto& one) { return is_there(directory / one.first); });
}

Checkpoint Checkpoint::open_file(InputFile file) {
  Checkpoint checkpoint;
  checkpoint.tensors_ = checkpoint.add_file(std::move(file));
  std::sort(checkpoint.tensors_.begin(), checkpoint.tensors_.end(), by_name);
  checkpoint.look_at_files();
  return checkpoint;
}

void Checkpoint::look_at_files() {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    paths_.push_back(inputs_[i].path());
    states_.push_back(inputs_[i].state());
  }
  known_->states = states_;
  known_->checksums.resize(states_.size());
}

void Checkpoint::add_input(const fs::path& path) try { inputs_.emplace_back(path); } catch (const NotAFile& error) {
  fail(error.missing ? Fault::missing_file : Fault::not_a_file, error.what());
}

Checkpoint Checkpoint::open(const GgufModel& model) {
  Checkpoint checkpoint;
  checkpoint.format_ = Format::gguf;
  std::vector<TensorInfo>& tensors = checkpoint.tensors_;
  const GgufArchitecture& architecture = gguf_architecture(model.first());
  for (std::size_t file = 0; file < model.parts.size(); ++file) {
    const Gguf& part = model.parts[file];
    checkpoint.add_input(part.path);
    if (checkpoint.inputs_.back().state() != part.state)
      part.refuse(GgufFault::changed, "has changed since its header was read; start again");
    for (const GgufTensor& tensor : part.tensors) {
      if (gguf_scaled(model, tensor, ".input_scale")) continue;  // of activations, which are not quantised so
      const GgufTensor* const scaled = gguf_scaled(model, tensor, ".scale");
      GgufName name = gguf_name(model.first(), architecture, scaled ? *scaled : tensor);
      if (scaled) name = {.name = name.name + kGgufScale};
      tensors.push_back({.name = std::move(name.name),
                         .dtype = tensor.format->name,
                         .shape = tensor.shape,
                         .file = file,
                         .offset = tensor.offset,
                         .bytes = tensor.bytes,
                         .pair_rows = name.pair_rows,
                         .plus_one = name.plus_one});
    }
  }
  std::sort(tensors.begin(), tensors.end(), by_name);
  const auto twice =
      std::adjacent_find(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name == b.name; });
  if (twice != tensors.end())
    model.first().refuse(GgufFault::duplicate_tensor, "has two tensors for " + in_quotes(twice->name));
  checkpoint.look_at_files();
  return checkpoint;
}

std::vector<TensorInfo> Checkpoint::add_file(const fs::path& path) {
  add_input(path);
  return read_headers();
}

std::vector<TensorInfo> Checkpoint::add_file(InputFile file) {
  inputs_.push_back(std::move(file));
  return read_headers();
}

/// Reads the headers of the file that was added last.
std::vector<TensorInfo> Checkpoint::read_headers() {
  const InputFile& input = inputs_.back();
  const auto keep = [&](std::vector<Checksum> found) {
    for (Checksum& checksum : found) {
      checksum.file = inputs_.size() - 1;
      checksums_.push_back(std::move(checksum));
    }
  };
  if (format_ == Format::safetensors || format_ == Format::sharded_safetensors) {
    std::vector<TensorInfo> tensors = read_safetensors(input, &metadata_);
    keep(take_packed_sums(input, tensors));
    return tensors;
  }
  TorchFile torch = read_torch_bin(input);
  notes_.insert(notes_.end(), torch.notes.begin(), torch.notes.end());
  keep(std::move(torch.checksums));
  return std::move(torch.tensors);
}

void Checkpoint::open_sharded(const fs::path& directory, const fs::path& index) {
  const std::string_view suffix = format_ == Format::sharded_torch_bin ? kTorchSuffix : kSafetensorsSuffix;
  const std::string where = index.string();
  const ShardIndex named = read_shard_index(index, suffix);
  std::size_t unlisted = 0;
  for (const auto& [shard, count] : named.tensors_of) {
    const fs::path path = directory / shard;
    if (!is_there(path))
      fail(Fault::missing_file, path.string() + ": no such file; " + std::to_string(count) + " tensors of " +
                                    index.filename().string() + " are in it: download it again");
    for (TensorInfo& tensor : add_file(path)) {
      const auto entry = named.shard_of.find(tensor.name);
      if (entry == named.shard_of.end()) {
        ++unlisted;
        continue;
      }
      tensor.file = inputs_.size() - 1;
      tensors_.push_back(std::move(tensor));
    }
  }
  // Of several tensors of one name that counts which is where the index has it.
  const auto is_as_listed = [&](const TensorInfo& tensor) {
    return inputs_[tensor.file].path().filename().string() == named.shard_of.at(tensor.name);
  };
  std::stable_sort(tensors_.begin(), tensors_.end(), [&](const TensorInfo& a, const TensorInfo& b) {
    return a.name != b.name ? a.name < b.name : is_as_listed(a) && !is_as_listed(b);
  });
  tensors_.erase(std::unique(tensors_.begin(), tensors_.end(),
                             [](const TensorInfo& a, const TensorInfo& b) { return a.name == b.name; }),
                 tensors_.end());
  const auto elsewhere = std::count_if(tensors_.begin(), tensors_.end(), std::not_fn(is_as_listed));
  if (elsewhere > 0)
    notes_.push_back(where + ": " + std::to_string(elsewhere) + " tensors are in another shard than the index says");
  const auto lost = std::find_if(named.shard_of.begin(), named.shard_of.end(),
                                 [&](const auto& entry) { return find(entry.first) == nullptr; });
  if (lost != named.shard_of.end())
    notes_.push_back(where + ": " + std::to_string(named.shard_of.size() - tensors_.size()) +
                     " tensors of the index are in no shard, such as " + in_quotes(lost->first));
  notes_.insert(notes_.end(), named.notes.begin(), named.notes.end());
  if (unlisted)
    notes_.push_back(where + ": " + std::to_string(unlisted) +
                     " tensors of the shards are not in the index and are ignored");
  if (named.stated_bytes && *named.stated_bytes != total_bytes())
    notes_.push_back(where + ": total_size says " + std::to_string(*named.stated_bytes) + " bytes, the tensors have " +
                     std::to_string(total_bytes()));
}

std::uint64_t Checkpoint::total_bytes() const {
  std::uint64_t bytes = 0;
  for (const TensorInfo& tensor : tensors_) bytes += tensor.bytes;
  return bytes;
}

const TensorInfo* Checkpoint::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

void Checkpoint::demand(std::span<const TensorNeed> needs, Order order) const {
  constexpr std::size_t kShown = 20;
  static const std::vector<std::string> kComputed{"F32", "F16", "BF16"};
  const std::string where = (paths_.empty() ? fs::path() : folder_of(paths_.front())).string();
  std::vector<std::string> wrong;
  Fault fault = Fault::missing_tensor;
  const auto add = [&](Fault kind, const std::string& text) {
    if (wrong.empty()) fault = kind;
    wrong.push_back(text);
  };
  for (const TensorNeed& need : needs) {
    const TensorInfo* tensor = find(need.name);
    if (!tensor) add(Fault::missing_tensor, in_quotes(need.name) + " " + shape_text(need.shape) + " is missing");
    else if (tensor->shape == std::vector<std::int64_t>{0})
      fail(Fault::bad_shape, where + ": tensor " + in_quotes(need.name) +
                                 " is empty, as DeepSpeed's ZeRO-3 saves it; gather the weights (zero_to_fp32.py, or "
                                 "stage3_gather_16bit_weights_on_model_save) and save them again");
    else if (tensor->shape != need.shape)
      add(Fault::bad_shape,
          in_quotes(need.name) + " is " + shape_text(tensor->shape) + ", wanted " + shape_text(need.shape));
    else if (!tensor->strides.empty() && need.row_major)
      add(Fault::bad_shape, in_quotes(need.name) + " is not row-major in its file");
    else if (!tensor->strides.empty() && order == Order::row_major)
      add(Fault::bad_shape, in_quotes(need.name) + " is not row-major in its file; weft convert writes a copy that is");
    else if (const auto& wanted = need.dtypes.empty() ? kComputed : need.dtypes;
             std::find(wanted.begin(), wanted.end(), tensor->dtype) == wanted.end())
      add(Fault::bad_dtype, in_quotes(need.name) + " is stored as " + tensor->dtype + ", wanted " +
                                alternatives(wanted) +
                                (tensor->dtype == "F64" ? "; save the model in one of these" : ""));
  }
  if (wrong.empty()) return;
  std::string text = where + ": does not match its config.json: ";
  for (std::size_t i = 0; i < wrong.size() && i < kShown; ++i) text += (i ? "; " : "") + wrong[i];
  if (wrong.size() > kShown) text += "; and " + std::to_string(wrong.size() - kShown) + " more";
  for (const std::string& note : notes_) text += "; " + note;
  fail(fault, text);
}

void Checkpoint::read_range(std::size_t file, std::uint64_t offset, std::span<std::byte> out) const {
  inputs_.at(file).read(offset, out);
}

std::vector<std::byte> Checkpoint::read_tensor(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(static_cast<std::size_t>(tensor.bytes));
  if (tensor.strides.empty()) {
    read_range(tensor.file, tensor.offset, bytes);
    return bytes;
  }
  std::size_t count = 1, span = 1;
  for (std::size_t i = 0; i < tensor.shape.size(); ++i) {
    count *= static_cast<std::size_t>(tensor.shape[i]);
    span += static_cast<std::size_t>((tensor.shape[i] - 1) * tensor.strides[i]);
  }
  const std::size_t element = bytes.size() / count;
  std::vector<std::byte> stored(span * element);
  read_range(tensor.file, tensor.offset, stored);
  for (std::size_t to = 0; to < count; ++to) {
    std::size_t rest = to, from = 0;
    for (std::size_t i = tensor.shape.size(); i-- > 0;) {
      const auto rows = static_cast<std::size_t>(tensor.shape[i]);
      from += rest % rows * static_cast<std::size_t>(tensor.strides[i]);
      rest /= rows;
    }
    std::copy_n(stored.begin() + static_cast<std::ptrdiff_t>(from * element), element,
                bytes.begin() + static_cast<std::ptrdiff_t>(to * element));
  }
  return bytes;
}

}  // namespace weft::runtime
