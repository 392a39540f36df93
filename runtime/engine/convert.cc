#include "runtime/engine/convert.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/base/files.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/engine/model_source.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kStep = 8 << 20;  // of a tensor, converted at a time
constexpr std::size_t kLargestCopied = 512 << 20;
constexpr std::array kCopied{
    "generation_config.json",  "tokenizer.json",    "tokenizer_config.json", "vocab.json",         "merges.txt",
    "special_tokens_map.json", "added_tokens.json", "tokenizer.model",       "chat_template.jinja"};

struct Planned {
  const TensorInfo* tensor = nullptr;
  DType stored = DType::f32, type = DType::f32;
  std::uint64_t bytes = 0;
};

/// In the order in which the units are read; a tensor in pieces, or of two units, comes once.
std::vector<Planned> plan_tensors(const policy::ModelSpec& spec, const Checkpoint& checkpoint, DType type) {
  const std::vector<policy::Unit> units = policy::model_units(spec);
  checkpoint.demand(tensor_needs(spec, units, checkpoint), Checkpoint::Order::any);
  std::vector<Planned> planned;
  std::set<const TensorInfo*> seen;
  for (const policy::Unit& unit : units)
    for (const policy::TensorSpec& tensor : unit.tensors) {
      const TensorInfo* info = checkpoint.find(stored_name(spec, checkpoint, tensor));
      if (!seen.insert(info).second) continue;
      const DType stored = weight_dtype(*info), to = type == DType::f32 ? stored : type;
      planned.push_back({info, stored, to, info->bytes / size_of(stored) * size_of(to)});
    }
  return planned;
}

const char* safetensors_name(DType type) { return type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : "BF16"; }

std::string make_header(const std::vector<Planned>& planned) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (const Planned& each : planned) {
    header[each.tensor->name] = {{"dtype", safetensors_name(each.type)},
                                 {"shape", each.tensor->shape},
                                 {"data_offsets", {offset, offset + each.bytes}}};
    offset += each.bytes;
  }
  return safetensors_head(header);
}

void write_tensor(const Checkpoint& checkpoint, const Planned& planned, AtomicFile& file,
                  const std::atomic<bool>& stop) {
  const TensorInfo& tensor = *planned.tensor;
  const std::size_t element = size_of(planned.stored), width = size_of(planned.type);
  std::vector<std::byte> whole, in, out;
  if (!tensor.strides.empty()) whole = checkpoint.read_tensor(tensor);
  const std::uint64_t count = tensor.bytes / element;
  for (std::uint64_t first = 0; first < count; first += kStep / element) {
    if (stop) throw Interrupted{};
    const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(kStep / element, count - first));
    const std::byte* from = whole.data() + first * element;
    if (whole.empty()) {
      in.resize(some * element);
      checkpoint.read_range(tensor.file, tensor.offset + first * element, in);
      from = in.data();
    }
    out.resize(some * width);
    convert_elements(planned.stored, from, planned.type, out.data(), some);
    file.append({reinterpret_cast<const char*>(out.data()), out.size()});
  }
}

/// Who may read and write a file may read and write its copy, and nobody else.
unsigned mode_of(const fs::path& path) {
  return static_cast<unsigned>(fs::status(path).permissions() & (fs::perms(0666)));
}

void write_small_files(const fs::path& from, const fs::path& to, DType type, const policy::WeightFormat* format) {
  json config = policy::parse_json(read_file(from / "config.json", 1 << 20), (from / "config.json").string(),
                                   policy::Blame::data, {.depth = 32});
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name_of(type);
  if (format)
    config["quantization_config"] = {
        {"quant_method", "weft"}, {"version", 1}, {"dtype", name_of(format->dtype)}, {"group_size", format->group}};
  write_file_atomically(to / "config.json", policy::to_pretty(config) + "\n", {.mode = mode_of(from / "config.json")});
  for (const char* name : kCopied)
    if (fs::exists(from / name))
      write_file_atomically(to / name, read_file(from / name, kLargestCopied), {.mode = mode_of(from / name)});
}

/// A folder that is removed again unless it was kept. It is locked and marked while it is made, so that what a killed
/// conversion has left is known, and removed by the next one.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path) {
    remove_left();
    if (std::error_code error; !fs::create_directory(path, error))
      throw IoError(path.string() + ": cannot be created: " + (error ? error.message() : "it is there; move it away"));
    lock();
    write_file_atomically(path_ / kMark, "");
  }
  ~NewFolder() {
    try {
      if (!path_.empty()) fs::remove_all(path_);
    } catch (const std::exception&) {  // the next run removes what is left
    }
    if (fd_ >= 0) ::close(fd_);
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// On disk under its new name when it returns.
  void keep_as(const fs::path& name) {
    fs::remove(path_ / kMark);
    fs::rename(path_, name);
    path_.clear();
    sync_folder_of(name);
  }

 private:
  static constexpr const char* kMark = ".weft-convert";

  void lock() {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd_ >= 0 && ::flock(fd_, LOCK_EX | LOCK_NB) == 0) return;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    throw IoError(path_.string() + ": another conversion is writing it; wait for that or give another --output");
  }
  void remove_left() {
    if (!fs::exists(fs::symlink_status(path_))) return;
    const bool empty = fs::is_directory(fs::symlink_status(path_)) && fs::is_empty(path_);  // it ended before the mark
    if (!empty && !fs::exists(fs::symlink_status(path_ / kMark)))
      throw IoError(path_.string() + ": is there and was not made by a conversion; move it away");
    lock();
    fs::remove_all(path_);
    ::close(std::exchange(fd_, -1));
  }

  fs::path path_;
  int fd_ = -1;
};

}  // namespace

Converted convert_checkpoint(const fs::path& from, const fs::path& to, const std::string& dtype,
                             const std::atomic<bool>& stop, bool verify_crc,
                             const std::optional<policy::WeightFormat>& format, const PackingProgress& progress) {
  if (!fs::is_directory(from))
    throw UsageError("--model " + from.string() + ": there is no such folder; convert wants a checkpoint folder");
  if (fs::exists(to) && !(fs::is_directory(to) && fs::is_empty(to)))
    throw UsageError("--output " + to.string() + ": exists; give the name of a folder that does not");
  const policy::ModelSpec spec = read_model_spec(from);
  if (spec.packed != DType::f32)
    throw UsageError("--model " + from.string() + ": is packed as " + name_of(spec.packed) +
                     " already; give the checkpoint that it was made of");
  const DType type = format && !format->quantised() ? format->dtype : dtype_named(dtype, spec.dtype);
  const Checkpoint checkpoint = Checkpoint::open(from);
  const std::vector<Planned> planned = plan_tensors(spec, checkpoint, type);
  const bool quantises = format && format->quantised();
  const std::vector<policy::Unit> units = policy::model_units(spec);
  std::optional<Weights> packed;
  if (quantises) packed = Weights::to_pack(spec, units, checkpoint, type, *format);
  if (verify_crc) checkpoint.verify(stop);
  Converted done{.tensors = planned.size(), .left_out = checkpoint.size() - planned.size()};
  if (packed) done.bytes = std::accumulate(packed->unit_bytes().begin(), packed->unit_bytes().end(), std::uint64_t{0});
  else
    for (const Planned& each : planned) done.bytes += each.bytes;

  const fs::path parent = to.has_parent_path() ? to.parent_path() : fs::path(".");
  if (!fs::is_directory(parent))
    throw UsageError("--output " + to.string() + ": there is no folder " + parent.string());
  require_space("--output " + to.string(), parent, done.bytes);
  const fs::path place = to.string() + ".partial";
  NewFolder folder(place);
  const unsigned mode = mode_of(checkpoint.files().front());
  if (packed) {
    const auto& bytes = packed->unit_bytes();
    write_packed(
        place / "model.safetensors", mode, [&](std::size_t unit, std::byte* out) { packed->make(unit, out); },
        UnitSizes(bytes.begin(), bytes.end()), stop, progress);
  } else {
    AtomicFile file(place / "model.safetensors", {.mode = mode});
    file.append(make_header(planned));
    for (const Planned& each : planned) write_tensor(checkpoint, each, file, stop);
    file.commit();
  }
  write_small_files(from, place, type, quantises ? &*format : nullptr);
  folder.keep_as(to);
  return done;
}

}  // namespace weft::runtime
