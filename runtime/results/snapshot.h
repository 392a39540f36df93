// runtime/results/snapshot.h: the file OUTPUT.inflight, which holds the sequences in flight as they were between two
// sweeps. Each is stored separately, so that it can continue in another block and with another placement.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "runtime/base/files.h"
#include "runtime/base/input_file.h"
#include "runtime/requests/choice.h"

namespace weft::runtime {

/// The beginning of the file. Its last character is the version of the format.
inline constexpr std::string_view kSnapshotMagic = "weft in flight 3";

/// The properties that a snapshot must share with the run that continues from it.
struct SnapshotKind {
  std::string run;           ///< a hash of all that answers depend on, except for the retention
  std::string retention;     ///< as the run record has it
  std::string kv;            ///< describes the layout of a slot of the KV cache
  std::int32_t records = 0;  ///< records of a sequence: one for each run of heads of each layer (SlotRecords)
  bool operator==(const SnapshotKind&) const = default;
};

/// One choice of a request, as far as it was computed.
struct SavedSequence {
  std::uint64_t request = 0;
  std::int32_t choice = 0;
  std::uint32_t prompt_crc = 0;  ///< CRC-32C of the prompt's ids
  kernels::Keep keep;            ///< that of the first record; SnapshotKind::retention gives the others'
  std::vector<std::int32_t> generated;
  std::vector<float> logprobs;  ///< the fields of Sequence with these names
  std::vector<std::uint8_t> greedy;
  ChoiceLogprobs token_logprobs;
};

/// Whether the log-probabilities are those of `tokens` tokens out of a vocabulary of `vocab`, for a request that asks
/// for `alternatives`; negative: for none.
bool fits(const ChoiceLogprobs& logprobs, std::size_t tokens, std::int32_t alternatives, std::int64_t vocab);
/// Whether all of them are ids of such a vocabulary.
bool are_ids(std::span<const std::int32_t> tokens, std::int64_t vocab);

/// A choice that has ended while others of its request have not.
struct SavedChoice {
  std::uint64_t request = 0;
  Choice choice;
  std::int32_t index = 0;
};

/// The place, length and checksum of one of a sequence's records in a snapshot.
struct SavedRecord {
  std::uint64_t offset = 0, bytes = 0;
  std::uint32_t slots = 0, crc = 0;
};

/// Writes a snapshot from the front to the back. The file of that name is replaced at the end, or not at all. The
/// snapshot is put on disk piece by piece, so that the end does not wait for all of it.
class SnapshotWriter {
 public:
  /// Reserves `bytes` bytes first. Throws IoError, as the other calls do.
  SnapshotWriter(const std::filesystem::path& path, const SnapshotKind& kind, std::uint64_t bytes);

  void begin(const SavedSequence& sequence);
  /// Adds the next record of the sequence that began last.
  void record(std::uint32_t slots, std::span<const std::byte> record);
  void ended(const SavedChoice& choice);
  void commit();
  std::uint64_t bytes() const { return end_; }

 private:
  struct Entry {
    SavedSequence sequence;
    std::vector<SavedRecord> records;
  };
  void append(std::span<const std::byte> bytes);
  [[noreturn]] void fail(const std::string& what) const;

  const std::filesystem::path path_;
  AtomicFile file_;
  const SnapshotKind kind_;
  std::vector<Entry> entries_;
  std::vector<SavedChoice> ended_;
  std::uint64_t end_ = 0, synced_ = 0;
};

/// A snapshot to be read. The description of the sequences is checked when it is opened, their KV when that is read.
class Snapshot {
 public:
  static std::filesystem::path place(const std::filesystem::path& output);
  /// Throws UsageError if something is at `path` that is not a snapshot of this user.
  static void require_own(const std::filesystem::path& path);
  /// Removes the file if it is a snapshot of this user. Does not throw.
  static void remove(const std::filesystem::path& path);

  /// Throws NotAFile if nothing is there, NotOwn, DataError if it is not whole, or IoError.
  explicit Snapshot(const std::filesystem::path& path);

  const SnapshotKind& kind() const { return kind_; }
  std::size_t size() const { return sequences_.size(); }
  const SavedSequence& sequence(std::size_t index) const { return sequences_[index]; }
  const SavedRecord& record(std::size_t index, std::size_t number) const {
    return records_[index * static_cast<std::size_t>(kind_.records) + number];
  }
  std::span<const SavedChoice> ended() const { return ended_; }
  /// Reads a record to `to` [record().bytes]. Throws DataError if it is not what was written, or IoError.
  void read(std::size_t index, std::size_t number, std::span<std::byte> to) const;

 private:
  InputFile file_;
  SnapshotKind kind_;
  std::vector<SavedSequence> sequences_;
  std::vector<SavedRecord> records_;  // [sequences, SnapshotKind::records]
  std::vector<SavedChoice> ended_;
};

}  // namespace weft::runtime
