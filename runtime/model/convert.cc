#include "runtime/model/convert.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/own_file.h"
#include "runtime/model/convert_tensors.h"
#include "runtime/model/model_source.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargestCopied = 512 << 20;

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
  const std::vector<CopiedTensor> planned = plan_tensors(spec, checkpoint, type, read);
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
    for (const CopiedTensor& each : planned) done.bytes += each.bytes;

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
    write_tensors(checkpoint, planned, file, stop);
    file.commit();
  }
  write_small_files(files.texts(), small, place);
  folder.keep_as(to);
  return done;
}

}  // namespace weft::runtime
