#include "runtime/model/convert.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "kernels/machine/mapped_memory.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/fill_ahead.h"
#include "runtime/base/own_file.h"
#include "runtime/base/parallel.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/model/model_source.h"
#include "runtime/stored/expert_stack.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

// Bytes of a tensor that a thread, and all, convert at a time.
constexpr std::size_t kPiece = 1 << 20, kStep = 64 << 20;
constexpr std::size_t kLargestCopied = 512 << 20;

/// Tensors of single experts that become one of all, expert by expert.
struct Stacked {
  policy::ExpertStack stack;
  std::int64_t rows = 0, cols = 0;  // of a part; of a list of numbers one row
  std::vector<StoredTensor> parts;  // [experts][parts]
};

struct Planned {
  StoredTensor stored;
  std::optional<Stacked> stacked = {};
  std::uint64_t first = 0;  // numbers of `stored.info` before those that are meant
  std::vector<std::int64_t> shape;
  DType from = DType::f32, type = DType::f32;
  std::uint64_t bytes = 0;
};

/// Gives a tensor of the copy a name and a shape that transformers knows. A GGUF file has the experts of a layer in one
/// tensor, where transformers has one for each; where that too has one tensor of plain numbers, it is copied whole.
void name_as_transformers(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, const Checkpoint& checkpoint,
                          Planned& planned) {
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
bool wants_stack(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, const Planned& planned) {
  return !tensor.stack.name.empty() && planned.stored.name.ends_with(tensor.name) &&
         (spec.architecture == "gpt_oss" || spec.architecture.starts_with("gemma4"));
}

/// Adds an expert's tensor to that of all.
void stack(const policy::ModelSpec& spec, const policy::TensorSpec& tensor, DType type, Planned each,
           std::map<std::string, std::size_t>& places, std::vector<Planned>& planned) {
  const std::string prefix = each.stored.name.substr(0, each.stored.name.size() - tensor.name.size());
  const auto [place, is_new] = places.try_emplace(prefix + tensor.stack.name, planned.size());
  const std::int64_t experts = spec.experts.count, parts = tensor.stack.parts;
  if (is_new) {
    const bool is_matrix = tensor.form == policy::Form::matrix;
    const std::int64_t rows = is_matrix ? tensor.rows : tensor.cols, cols = is_matrix ? tensor.cols : 1;
    Planned all{.stored = {.name = place->first, .info = nullptr, .first_row = 0, .matrix = nullptr},
                .shape = {experts, parts * rows},
                .type = type};
    if (is_matrix) all.shape.insert(tensor.stack.transposed ? all.shape.begin() + 1 : all.shape.end(), cols);
    all.bytes = bytes_of(type, experts * parts * rows * cols);
    all.stacked.emplace(Stacked{.stack = tensor.stack, .rows = rows, .cols = cols, .parts = {}});
    all.stacked->parts.resize(static_cast<std::size_t>(experts * parts));
    planned.push_back(std::move(all));
  }
  const std::int64_t at = tensor.of_layer * parts + tensor.stack.part;
  planned[place->second].stacked->parts[static_cast<std::size_t>(at)] = std::move(each.stored);
}

/// Lists the tensors in the order in which the units are read. A tensor in pieces, or in two units, is listed once.
/// Adds to `read` the number of checkpoint tensors that they need.
std::vector<Planned> plan_tensors(const policy::ModelSpec& spec, const Checkpoint& checkpoint, DType type,
                                  std::size_t& read) {
  const std::vector<policy::Unit> units = policy::model_units(spec);
  const std::vector<TensorNeed> needs = tensor_needs(spec, units, checkpoint);
  check_unused(needs, spec, checkpoint);
  checkpoint.demand(needs, Checkpoint::Order::any);
  std::vector<Planned> planned;
  std::set<std::string> seen;
  for (const TensorNeed& need : needs) read += seen.insert(need.name).second;
  seen.clear();
  std::map<std::string, std::size_t> stacks;  // places in `planned`
  for (const policy::Unit& unit : units)
    for (const policy::TensorSpec& tensor : unit.tensors) {
      Planned each{.stored = stored_tensor(spec, tensor, checkpoint), .shape = {}};
      name_as_transformers(spec, tensor, checkpoint, each);
      if (wants_stack(spec, tensor, each)) {
        stack(spec, tensor, type, std::move(each), stacks, planned);
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

const char* safetensors_name(DType type) { return type == DType::f32 ? "F32" : type == DType::f16 ? "F16" : "BF16"; }

std::string make_header(const std::vector<Planned>& planned) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::uint64_t offset = 0;
  for (const Planned& each : planned) {
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
void write_stack(const Checkpoint& checkpoint, const Planned& planned, Appender& file, const std::atomic<bool>& stop) {
  const Stacked& all = *planned.stacked;
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
void write_tensor(const Checkpoint& checkpoint, const Planned& planned, Appender& file, const std::atomic<bool>& stop) {
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

/// The mode of a file's copy: the read and write permissions of the original.
unsigned mode_of(const fs::path& path) {
  return static_cast<unsigned>(fs::status(path).permissions() & (fs::perms(0666)));
}

struct SmallFile {
  std::string name, text;
};

std::vector<SmallFile> small_files(const ModelTexts& from, DType type, bool untied,
                                   const policy::Quantisation& quantisation) {
  nlohmann::json config = policy::parse_json(from.read("config.json", kLargestConfig), from.where("config.json"),
                                             policy::Blame::data, {.depth = 32, .large_integers = true});
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = name_of(type);
  for (const char* key : {"quantization_config", "compression_config"}) config.erase(key);
  if (untied) config["tie_word_embeddings"] = false;
  if (quantisation) config["quantization_config"] = policy::to_config(quantisation);
  std::vector<SmallFile> all{{"config.json", policy::to_pretty(config) + "\n"}};
  for (const std::string name : kModelTexts)
    if (name != "config.json" && name != kModelOptConfig && from.has(name))
      all.push_back({name, from.read(name, kLargestCopied)});
  return all;
}

void write_small_files(const ModelTexts& from, const std::vector<SmallFile>& files, const fs::path& to) {
  for (const auto& [name, text] : files) {
    fs::create_directories((to / name).parent_path());
    write_file_atomically(to / name, text, {.mode = mode_of(from.in_folder() ? from.place() / name : from.place())});
  }
}

/// Takes the most frequent table for all, and lists the matrices with others.
void put_tables(const std::map<std::string, LevelTable>& tables, policy::Quantisation& quantisation) {
  std::map<LevelTable, std::size_t> count;
  for (const auto& [name, table] : tables) ++count[table];
  for (const LevelTable table : kLevelTableKinds)
    if (count[table] > count[quantisation.table]) quantisation.table = table;
  for (const auto& [name, table] : tables)
    if (table != quantisation.table) quantisation.other_tables.emplace(name, table);
}

/// A folder that is removed again unless it is kept. It is locked and marked while it is made, so that the next
/// conversion recognises what a killed one has left, and removes it.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path) {
    remove_left();
    if (std::error_code error; !fs::create_directory(path, error))
      throw IoError(path.string() + ": cannot be created: " + (error ? error.message() : "it is there; move it away"));
    lock();
  }
  ~NewFolder() {
    unlock();  // NFS keeps what is open, and the folder with it
    try {
      if (!path_.empty()) fs::remove_all(path_);
    } catch (const std::exception&) {  // the next run removes what is left
    }
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  /// Renames the folder. On return it is on disk under its new name.
  void keep_as(const fs::path& name) {
    fs::remove(path_ / kMark);
    unlock();
    fs::rename(path_, name);
    path_.clear();
    sync_folder_of(name);
  }

 private:
  static constexpr const char* kMark = ".weft-convert";

  /// Locks the mark. NFS locks no folders, and no file that is not open for writing.
  void lock() {
    const fs::path mark = path_ / kMark;
    fd_ = ::open(mark.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd_ < 0 && errno == EEXIST) fd_ = open_own(mark, O_RDWR);
    if (fd_ < 0) throw IoError(mark.string() + ": cannot be created: " + std::generic_category().message(errno));
    if (lock_file(mark, fd_) != Lock::taken) return;
    unlock();
    throw IoError(path_.string() + ": another conversion is writing it; wait for that or give another --output");
  }
  void unlock() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  void remove_left() {
    if (!fs::exists(fs::symlink_status(path_))) return;
    const bool empty =
        fs::is_directory(fs::symlink_status(path_)) && fs::is_empty(path_);  // killed before it was marked
    if (!empty && !fs::exists(fs::symlink_status(path_ / kMark)))
      throw IoError(path_.string() + ": is there and was not made by a conversion; move it away");
    lock();
    unlock();
    fs::remove_all(path_);
  }

  fs::path path_;
  int fd_ = -1;
};

}  // namespace

Converted convert_checkpoint(const fs::path& name, const fs::path& to, const std::string& dtype,
                             const std::atomic<bool>& stop, bool verify_crc,
                             const std::optional<policy::WeightFormat>& asked, const PackingProgress& progress) {
  const ModelFiles files = ModelFiles::open(name);
  const fs::path& from = files.path();
  if (!files.may_have_weights())
    throw UsageError("--model " + from.string() +
                     ": is a file without weights; convert wants a checkpoint folder or a GGUF file");
  if (fs::exists(to) && !(fs::is_directory(to) && fs::is_empty(to)))
    throw UsageError("--output " + to.string() + ": exists; give the name of a folder that does not");
  policy::ModelSpec spec = read_model_spec(files);
  if (spec.quantisation.packing == policy::Quantisation::Packing::weft)
    throw UsageError("--model " + from.string() + ": is packed as " + name_of(spec.quantisation.dtype) +
                     " already; give the checkpoint that it was made of");
  const Checkpoint checkpoint = files.open_checkpoint();
  const bool tied = spec.tied_head;
  complete_from_files(spec, checkpoint);
  const auto format = format_of(spec.quantisation, asked, from);
  keep_head_levels(spec, checkpoint, format);
  const bool untied = tied && !spec.tied_head;
  const DType type = format && !format->quantised() ? format->dtype : dtype_named(dtype, spec.dtype);
  std::size_t read = 0;
  const std::vector<Planned> planned = plan_tensors(spec, checkpoint, type, read);
  const std::vector<policy::Unit> units = policy::model_units(spec);
  policy::Quantisation quantisation;
  std::optional<Weights> packed;
  if (format && format->quantised()) {
    packed = Weights::to_pack(spec, units, checkpoint, type, *format);
    quantisation = {.packing = policy::Quantisation::Packing::weft,
                    .dtype = format->dtype,
                    .group = format->group,
                    .uniform = spec.quantisation.uniform && format->dtype == spec.quantisation.dtype,
                    .plain = packed->left_plain(),
                    .int8 = packed->left_int8(),
                    .head = spec.quantisation.head};
    put_tables(packed->level_tables(), quantisation);
    for (const auto& [matrix, group] : packed->group_sizes())
      if (group != quantisation.group) quantisation.other_groups.emplace(matrix, group);
  }
  if (verify_crc) checkpoint.verify(stop);
  Converted done{.tensors = planned.size(), .left_out = checkpoint.size() - read};
  if (packed) done.bytes = std::accumulate(packed->unit_bytes().begin(), packed->unit_bytes().end(), std::uint64_t{0});
  else
    for (const Planned& each : planned) done.bytes += each.bytes;

  const fs::path parent = folder_of(to);
  if (!fs::is_directory(parent))
    throw UsageError("--output " + to.string() + ": there is no folder " + parent.string());
  const std::vector<SmallFile> small = small_files(files.texts(), type, untied, quantisation);  // may refuse some
  require_space("--output " + to.string(), parent, done.bytes);
  const fs::path place = to.string() + ".partial";
  NewFolder folder(place);
  const unsigned mode = mode_of(checkpoint.files().front());
  if (packed) {
    const auto& bytes = packed->unit_bytes();
    const fs::path weights = place / "model.safetensors";
    AtomicFile file(weights, {.mode = mode});
    write_packed(
        file, weights, [&](std::size_t unit, std::byte* out) { packed->make(unit, out, stop); },
        UnitSizes(bytes.begin(), bytes.end()), {}, stop, progress);
    file.commit();
  } else {
    AtomicFile file(place / "model.safetensors", {.mode = mode});
    file.append(make_header(planned));
    Appender appender(file);
    for (const Planned& each : planned) write_tensor(checkpoint, each, appender, stop);
    appender.finish();
    file.commit();
  }
  write_small_files(files.texts(), small, place);
  folder.keep_as(to);
  return done;
}

}  // namespace weft::runtime
