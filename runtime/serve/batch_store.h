// runtime/serve/batch_store.h: uploaded files and batches in a folder. A process that is killed at any moment leaves a
// folder in which each of them is there, whole, or not there.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/files.h"
#include "runtime/serve/batch.h"

namespace weft::runtime {

/// FOLDER/files has ID.jsonl and ID.json of each file, FOLDER/batches ID.json of each batch and its folder of work, ID.
/// A JSON file is written last, and makes the other one count. Any thread may call anything.
class BatchStore {
 public:
  /// Creates the folder if it is missing, and locks it. Removes what a killed process has left without a record. Throws
  /// UsageError if another process has it or a record is not Weft's, IoError.
  explicit BatchStore(std::filesystem::path folder);
  ~BatchStore();
  BatchStore(const BatchStore&) = delete;
  BatchStore& operator=(const BatchStore&) = delete;

  /// A file that is being written. It is there once it is kept, and never if it is not.
  class Writing {
   public:
    /// Throws IoError.
    void append(std::string_view text);
    StoredFile keep(const std::string& filename, const std::string& purpose);

   private:
    friend class BatchStore;
    Writing(BatchStore& store, std::string id);
    BatchStore& store_;
    std::string id_;
    std::uint64_t bytes_ = 0;
    std::unique_ptr<AtomicFile> file_;
  };
  /// A new file; with `id` one that is written again if it was there.
  Writing write_file(std::string id = {});
  std::vector<StoredFile> files() const;  ///< the newest first
  std::optional<StoredFile> file(const std::string& id) const;
  std::filesystem::path contents(const std::string& id) const;
  /// Returns false if a batch that is not over has it as its input.
  bool remove_file(const std::string& id);

  /// Adds a batch that waits for its turn; fields that the store sets are overwritten. Nothing if its input is gone.
  std::optional<Batch> add_batch(Batch batch);
  std::vector<Batch> batches() const;  ///< the newest first
  std::optional<Batch> batch(const std::string& id) const;
  /// The batch whose turn it is.
  std::optional<Batch> next() const;
  /// Changes a batch on the disk, and then here. The batch must be there.
  Batch update(const std::string& id, const std::function<void(Batch&)>& change);
  /// Changes counts here alone; they are counted again after a kill.
  void count(const std::string& id, std::uint64_t completed, std::uint64_t failed);
  /// The folder in which a batch is worked on, which exists.
  std::filesystem::path work_folder(const std::string& id) const;
  void remove_work_folder(const std::string& id) const;

 private:
  std::filesystem::path files_folder() const { return folder_ / "files"; }
  std::filesystem::path batches_folder() const { return folder_ / "batches"; }
  void lock();
  void read_files();
  void read_batches();

  std::filesystem::path folder_;
  int lock_ = -1;
  mutable std::mutex mutex_;
  std::map<std::string, StoredFile> files_;
  std::map<std::string, Batch> batches_;
  std::uint64_t next_number_ = 1;
};

/// Seconds since 1970.
std::int64_t seconds_now();

}  // namespace weft::runtime
