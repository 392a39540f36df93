#include "runtime/serve/batch_store.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/hash.h"
#include "runtime/base/own_file.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kLargestRecord = 1 << 20;

/// 96 random bits in hexadecimal digits.
std::string random_name() {
  std::uint64_t bits[2];
  if (::getrandom(bits, sizeof bits, 0) != sizeof bits) throw IoError("the system has no random numbers");
  return to_hex(bits[0]) + to_hex(bits[1]).substr(8);
}

void make_folder(const fs::path& folder) {
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed || !fs::is_directory(folder))
    throw IoError("--dir " + folder.string() + ": cannot be made: " + failed.message());
  fs::permissions(folder, fs::perms::owner_all, failed);
}

template <class Value, class Read> Value record_of(const fs::path& path, const Read& read) {
  const auto text = read_own_file(path, kLargestRecord);
  try {
    return read(policy::parse_json(text.value_or(""), path.string(), policy::Blame::usage));
  } catch (const std::exception& error) {  // nlohmann's, for a key that is missing
    if (const auto* usage = dynamic_cast<const UsageError*>(&error)) throw *usage;
    throw UsageError(path.string() + ": is no record of weft serve-batches; move it away");
  }
}

/// The files of a folder that are whole. Removes what a kill has left of others, where files have a name while they are
/// written.
std::vector<fs::path> whole_files(const fs::path& folder) {
  std::error_code failed;
  std::vector<fs::path> whole;
  for (const fs::path& path : entries_of(folder, failed)) {
    if (path.extension() != ".weft-part") whole.push_back(path);
    else fs::remove(path);
  }
  if (failed) throw IoError(folder.string() + ": cannot be read: " + failed.message());
  return whole;
}

/// Writes a record. Nobody else writes in the folder, so it need not be searched for what others have left.
template <class Json> void write_record(const fs::path& path, const Json& json) {
  write_file_atomically(path, policy::to_line(json) + "\n", {.link = AtomicFile::Link::refuse, .only_writer = true});
}

template <class Value, class Newer>
std::vector<Value> values_of(const std::map<std::string, Value>& map, const Newer& newer) {
  std::vector<Value> all;
  for (const auto& [id, value] : map) all.push_back(value);
  std::sort(all.begin(), all.end(), newer);
  return all;
}

}  // namespace

std::int64_t seconds_now() { return static_cast<std::int64_t>(std::time(nullptr)); }

BatchStore::BatchStore(fs::path folder) : folder_(std::move(folder)) {
  for (const fs::path& each : {folder_, files_folder(), batches_folder()}) make_folder(each);
  lock();
  try {
    read_files();
    read_batches();
  } catch (...) {
    ::close(lock_);
    throw;
  }
}

BatchStore::~BatchStore() { ::close(lock_); }

void BatchStore::lock() {
  const fs::path path = folder_ / "lock";
  lock_ = ::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) throw IoError(path.string() + ": cannot be opened: " + std::generic_category().message(errno));
  if (lock_file(path, lock_) != Lock::taken) return;
  ::close(lock_);
  throw UsageError("--dir " + folder_.string() +
                   ": another weft serve-batches works there; stop it or name another folder");
}

void BatchStore::read_files() {
  const std::vector<fs::path> all = whole_files(files_folder());
  for (const fs::path& path : all) {
    if (path.extension() != ".json") continue;
    StoredFile file = record_of<StoredFile>(path, file_from);
    files_.emplace(file.id, file);
  }
  for (const fs::path& path : all)  // a kill between contents and record
    if (path.extension() == ".jsonl" && !files_.contains(path.stem().string())) fs::remove(path);
}

void BatchStore::read_batches() {
  for (const fs::path& path : whole_files(batches_folder())) {
    if (path.extension() != ".json") continue;
    Batch batch = record_of<Batch>(path, batch_from);
    next_number_ = std::max(next_number_, batch.number + 1);
    if (is_over(batch.status)) remove_work_folder(batch.id);
    batches_.emplace(batch.id, batch);
  }
}

BatchStore::Writing::Writing(BatchStore& store, std::string id)
    : store_(store), id_(std::move(id)),
      file_(std::make_unique<AtomicFile>(store.contents(id_),
                                         AtomicFile::Options{.link = AtomicFile::Link::refuse, .only_writer = true})) {}

void BatchStore::Writing::append(std::string_view text) {
  file_->append(text);
  bytes_ += text.size();
}

StoredFile BatchStore::Writing::keep(const std::string& filename, const std::string& purpose) {
  file_->commit();
  const StoredFile made{id_, filename, purpose, bytes_, seconds_now()};
  write_record(store_.files_folder() / (id_ + ".json"), to_json(made));
  const std::lock_guard lock(store_.mutex_);
  return store_.files_[id_] = made;
}

BatchStore::Writing BatchStore::write_file(std::string id) {
  return {*this, id.empty() ? "file-" + random_name() : std::move(id)};
}

std::vector<StoredFile> BatchStore::files() const {
  const std::lock_guard lock(mutex_);
  return values_of(files_, [](const StoredFile& a, const StoredFile& b) {
    return std::pair(b.created_at, b.id) < std::pair(a.created_at, a.id);
  });
}

std::optional<StoredFile> BatchStore::file(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(id);
  return found == files_.end() ? std::optional<StoredFile>{} : found->second;
}

fs::path BatchStore::contents(const std::string& id) const { return files_folder() / (id + ".jsonl"); }

bool BatchStore::remove_file(const std::string& id) {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, batch] : batches_)
    if (batch.input_file_id == id && !is_over(batch.status)) return false;
  files_.erase(id);
  fs::remove(files_folder() / (id + ".json"));  // first: contents without a record go at the next start
  fs::remove(contents(id));
  return true;
}

std::optional<Batch> BatchStore::add_batch(Batch batch) {
  const std::lock_guard lock(mutex_);
  if (!files_.contains(batch.input_file_id)) return {};
  batch.id = "batch_" + random_name();
  batch.number = next_number_++;
  batch.time_of(BatchStatus::validating) = seconds_now();
  write_record(batches_folder() / (batch.id + ".json"), to_json(batch, true));
  return batches_[batch.id] = batch;
}

std::vector<Batch> BatchStore::batches() const {
  const std::lock_guard lock(mutex_);
  return values_of(batches_, [](const Batch& a, const Batch& b) { return a.number > b.number; });
}

std::optional<Batch> BatchStore::batch(const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto found = batches_.find(id);
  return found == batches_.end() ? std::optional<Batch>{} : found->second;
}

std::optional<Batch> BatchStore::next() const {
  const std::vector<Batch> all = batches();
  const auto oldest = std::find_if(all.rbegin(), all.rend(), [](const Batch& batch) { return !is_over(batch.status); });
  return oldest == all.rend() ? std::optional<Batch>{} : *oldest;
}

Batch BatchStore::update(const std::string& id, const std::function<void(Batch&)>& change) {
  const std::lock_guard lock(mutex_);
  Batch batch = batches_.at(id);
  change(batch);
  write_record(batches_folder() / (id + ".json"), to_json(batch, true));
  return batches_[id] = batch;
}

void BatchStore::count(const std::string& id, std::uint64_t completed, std::uint64_t failed) {
  const std::lock_guard lock(mutex_);
  Batch& batch = batches_.at(id);
  batch.completed = completed;
  batch.failed = failed;
}

fs::path BatchStore::work_folder(const std::string& id) const {
  const fs::path folder = batches_folder() / id;
  make_folder(folder);
  return folder;
}

void BatchStore::remove_work_folder(const std::string& id) const {
  std::error_code ignored;  // the next start tries again
  fs::remove_all(batches_folder() / id, ignored);
}

}  // namespace weft::runtime
