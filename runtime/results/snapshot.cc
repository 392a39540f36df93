// runtime/results/snapshot.cc: a snapshot has a magic number, the KV of all sequences one after another, the index, and
// at the end the place of the index. Numbers are in the processor's own form. Each byte is covered by a checksum or
// must have a certain value.
#include "runtime/results/snapshot.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <type_traits>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "runtime/base/own_file.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMostIndex = std::uint64_t{1} << 30, kSyncBytes = std::uint64_t{32} << 20;
constexpr int kMostRecords = 1 << 16;

/// The last bytes of the file.
struct Trailer {
  std::uint64_t index_at = 0;
  std::uint32_t index_crc = 0, crc = 0;  // crc: checksum of the members before it
};

std::uint32_t crc_of(const Trailer& trailer) {
  return offload::crc32c(reinterpret_cast<const std::byte*>(&trailer), offsetof(Trailer, crc));
}

/// Walks over the fields of the index in their order and writes them.
class Packer {
 public:
  template <class T> void number(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  template <class List> void list(const List& values) {
    number<std::uint64_t>(values.size());
    bytes_.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(values[0]));
  }
  std::uint64_t count(std::uint64_t value, std::size_t) {
    number(value);
    return value;
  }
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(bytes_)); }

 private:
  std::string bytes_;
};

/// Does the same walk and reads them.
class Unpacker {
 public:
  explicit Unpacker(std::span<const std::byte> bytes) : left_(bytes) {}

  template <class T> void number(T& value) { take(&value, sizeof value); }
  template <class List> void list(List& values) {
    values.resize(static_cast<std::size_t>(count(0, sizeof(values[0]))));
    take(values.data(), values.size() * sizeof(values[0]));
  }
  /// Reads how many things follow, each of at least `least` bytes.
  std::uint64_t count(std::uint64_t, std::size_t least) {
    std::uint64_t value = 0;
    number(value);
    if (value > left_.size() / least) throw DataError("a list is longer than the file");
    return value;
  }
  bool at_end() const { return left_.empty(); }

 private:
  void take(void* to, std::size_t bytes) {
    if (bytes > left_.size()) throw DataError("it ends early");
    if (bytes > 0) std::memcpy(to, left_.data(), bytes);
    left_ = left_.subspan(bytes);
  }
  std::span<const std::byte> left_;
};

template <class Walk, class Kind> void walk_kind(Walk& walk, Kind& kind) {
  walk.list(kind.run), walk.list(kind.retention), walk.list(kind.kv);
  walk.number(kind.records);
}

template <class Walk, class Logprobs> void walk_logprobs(Walk& walk, Logprobs& logprobs) {
  walk.list(logprobs.chosen);
  const std::uint64_t count = walk.count(logprobs.top.size(), sizeof(std::uint64_t));
  if constexpr (!std::is_const_v<Logprobs>) logprobs.top.resize(static_cast<std::size_t>(count));
  for (auto& each : logprobs.top) walk.list(each);
}

template <class Walk, class Sequence> void walk_sequence(Walk& walk, Sequence& sequence) {
  walk.number(sequence.request), walk.number(sequence.choice), walk.number(sequence.prompt_crc);
  walk.number(sequence.keep);
  walk.list(sequence.generated), walk.list(sequence.logprobs), walk.list(sequence.greedy);
  walk_logprobs(walk, sequence.token_logprobs);
}

void pack_choice(Packer& walk, const SavedChoice& saved) {
  walk.number(saved.request), walk.number(saved.index);
  walk.list(saved.choice.text), walk.number(std::uint8_t{saved.choice.has_text});
  walk.list(saved.choice.tokens), walk.number(std::uint8_t{std::string_view(saved.choice.finish) == "stop"});
  walk.number(std::uint8_t{saved.choice.logprobs.has_value()});
  if (saved.choice.logprobs) walk_logprobs(walk, *saved.choice.logprobs);
}

SavedChoice unpack_choice(Unpacker& walk) {
  SavedChoice saved;
  std::uint8_t has_text = 0, stop = 0, logprobs = 0;
  walk.number(saved.request), walk.number(saved.index);
  walk.list(saved.choice.text), walk.number(has_text);
  walk.list(saved.choice.tokens), walk.number(stop);
  walk.number(logprobs);
  if (logprobs) walk_logprobs(walk, saved.choice.logprobs.emplace());
  saved.choice.has_text = has_text != 0;
  saved.choice.finish = stop ? "stop" : "length";
  return saved;
}

/// Opens a file of this user's. Throws NotAFile if nothing is there.
InputFile open_file(const fs::path& path) {
  const int fd = open_own(path, O_RDONLY);
  if (fd < 0) throw NotAFile(path.string() + ": no such file", true);
  return {fd, path};
}

/// Whether the file at `path` is this user's, and begins or ends as a snapshot does or is empty.
bool is_snapshot(const fs::path& path) try {
  const InputFile file = open_file(path);
  std::array<char, kSnapshotMagic.size()> magic{};
  if (file.size() > 0 && file.size() < magic.size()) return false;
  if (file.size() > 0) file.read(0, std::as_writable_bytes(std::span(magic)));
  if (file.size() == 0 || std::string_view(magic.data(), magic.size()) == kSnapshotMagic) return true;
  Trailer trailer;
  if (file.size() < sizeof trailer) return false;
  file.read(file.size() - sizeof trailer, std::as_writable_bytes(std::span(&trailer, 1)));
  return trailer.index_at > 0 && trailer.crc == crc_of(trailer);
} catch (const Error&) {
  return false;
}

}  // namespace

SnapshotWriter::SnapshotWriter(const fs::path& path, const SnapshotKind& kind, std::uint64_t bytes)
    : path_(path), file_(path, {.link = AtomicFile::Link::refuse, .only_writer = true}), kind_(kind) {
  make_private(path, file_.fd());
  // Reserving shows a full disk before it is filled. If a file system cannot reserve, a write fails later.
  if (bytes > 0 && ::fallocate(file_.fd(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0 &&
      (errno == ENOSPC || errno == EDQUOT || errno == EFBIG))
    fail("cannot be written");
  append(std::as_bytes(std::span(kSnapshotMagic)));
}

void SnapshotWriter::fail(const std::string& what) const {
  throw IoError(path_.string() + ": " + what + ": " + std::generic_category().message(errno));
}

void SnapshotWriter::append(std::span<const std::byte> bytes) {
  file_.append({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  end_ += bytes.size();
  if (end_ - synced_ < kSyncBytes) return;
  if (::fdatasync(file_.fd()) != 0) fail("cannot be flushed");
  synced_ = end_;
}

void SnapshotWriter::begin(const SavedSequence& sequence) { entries_.push_back({sequence, {}}); }

void SnapshotWriter::record(std::uint32_t slots, std::span<const std::byte> record) {
  entries_.back().records.push_back({end_, record.size(), slots, offload::crc32c(record.data(), record.size())});
  append(record);
}

void SnapshotWriter::ended(const SavedChoice& choice) { ended_.push_back(choice); }

void SnapshotWriter::commit() {
  Packer index;
  walk_kind(index, kind_);
  index.number<std::uint64_t>(entries_.size());
  for (const Entry& entry : entries_) {
    walk_sequence(index, entry.sequence);
    index.list(entry.records);
  }
  index.number<std::uint64_t>(ended_.size());
  for (const SavedChoice& choice : ended_) pack_choice(index, choice);
  if (index.bytes().size() > kMostIndex)
    throw IoError(path_.string() + ": cannot be written: the tokens in flight and their log-probabilities take " +
                  std::to_string(index.bytes().size()) + " bytes, of at most " + std::to_string(kMostIndex) +
                  "; a smaller block has fewer");
  Trailer trailer{.index_at = end_, .index_crc = offload::crc32c(index.bytes().data(), index.bytes().size())};
  trailer.crc = crc_of(trailer);
  append(index.bytes());
  append(std::as_bytes(std::span(&trailer, 1)));
  // Cuts what was reserved for sequences that have ended since.
  if (::ftruncate(file_.fd(), static_cast<off_t>(end_)) != 0) fail("cannot be cut");
  file_.commit();
}

bool are_ids(std::span<const std::int32_t> tokens, std::int64_t vocab) {
  return std::all_of(tokens.begin(), tokens.end(), [vocab](std::int32_t id) { return id >= 0 && id < vocab; });
}

bool fits(const ChoiceLogprobs& logprobs, std::size_t tokens, std::int32_t alternatives, std::int64_t vocab) {
  const std::size_t wanted = alternatives < 0 ? 0 : tokens;
  if (logprobs.chosen.size() != wanted || logprobs.top.size() != wanted) return false;
  for (const auto& place : logprobs.top) {
    if (static_cast<std::int64_t>(place.size()) > alternatives) return false;
    for (const TokenLogprob& each : place)
      if (each.token < 0 || each.token >= vocab) return false;
  }
  return true;
}

fs::path Snapshot::place(const fs::path& output) { return output.string() + ".inflight"; }

void Snapshot::require_own(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && !is_snapshot(path))
    throw UsageError(path.string() +
                     ": is another file than this would write; move it away, give --output another name, or use "
                     "--checkpoint-every off");
}

void Snapshot::remove(const fs::path& path) {
  if (is_snapshot(path)) ::unlink(path.c_str());
}

Snapshot::Snapshot(const fs::path& path) : file_(open_file(path)) {
  const auto damaged = [&](const std::string& what) { return DataError(path.string() + ": " + what); };
  std::array<char, kSnapshotMagic.size()> magic{};
  Trailer trailer;
  if (file_.size() < sizeof magic + sizeof trailer) throw damaged("is too short");
  file_.read(0, std::as_writable_bytes(std::span(magic)));
  if (std::string_view(magic.data(), magic.size()) != kSnapshotMagic)
    throw damaged(std::string_view(magic.data(), magic.size() - 1) ==
                          kSnapshotMagic.substr(0, kSnapshotMagic.size() - 1)
                      ? "was saved by another version of Weft"
                      : "begins as no such file does");
  const std::uint64_t end = file_.size() - sizeof trailer;
  file_.read(end, std::as_writable_bytes(std::span(&trailer, 1)));
  if (trailer.crc != crc_of(trailer) || trailer.index_at < sizeof magic || trailer.index_at > end ||
      end - trailer.index_at > kMostIndex)
    throw damaged("its end is damaged");
  std::vector<std::byte> bytes(static_cast<std::size_t>(end - trailer.index_at));
  file_.read(trailer.index_at, bytes);
  if (offload::crc32c(bytes.data(), bytes.size()) != trailer.index_crc) throw damaged("its index is damaged");
  try {
    Unpacker index(bytes);
    walk_kind(index, kind_);
    if (kind_.records < 1 || kind_.records > kMostRecords) throw DataError("the number of records is wrong");
    std::uint64_t at = sizeof magic;  // where the next KV begins; there are no gaps
    const std::uint64_t count = index.count(0, sizeof(SavedRecord) * static_cast<std::size_t>(kind_.records));
    for (std::uint64_t i = 0; i < count; ++i) {
      walk_sequence(index, sequences_.emplace_back());
      std::vector<SavedRecord> records;
      index.list(records);
      if (records.size() != static_cast<std::size_t>(kind_.records)) throw DataError("records are missing");
      for (const SavedRecord& record : records) {
        if (record.offset != at || record.bytes > trailer.index_at - at) throw DataError("KV lies elsewhere");
        at += record.bytes;
      }
      records_.insert(records_.end(), records.begin(), records.end());
    }
    if (at != trailer.index_at) throw DataError("something else is in it");
    for (std::uint64_t left = index.count(0, sizeof(std::uint64_t)); left > 0; --left)
      ended_.push_back(unpack_choice(index));
    if (!index.at_end()) throw DataError("its index is too long");
  } catch (const DataError& wrong) {
    throw damaged(wrong.what());
  }
}

void Snapshot::read(std::size_t index, std::size_t number, std::span<std::byte> to) const {
  const SavedRecord& saved = record(index, number);
  if (to.size() != saved.bytes) throw DataError(file_.path().string() + ": a record has another size");
  file_.read(saved.offset, to);
  if (offload::crc32c(to.data(), to.size()) != saved.crc)
    throw DataError(file_.path().string() + ": the KV cache of a sequence is damaged");
}

}  // namespace weft::runtime
