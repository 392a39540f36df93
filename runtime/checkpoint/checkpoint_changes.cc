// runtime/checkpoint/checkpoint_changes.cc: whether the files of a checkpoint hold what they should, and what they
// held.
#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "offload/crc32c.h"
#include "runtime/base/hash.h"
#include "runtime/base/quote.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/zip_reader.h"

namespace weft::runtime {

std::uint64_t Checkpoint::sample(std::size_t file, std::uint64_t before) const {
  constexpr std::uint64_t most = 64 << 10;
  const std::uint64_t size = inputs_[file].size(), bytes = std::min(size, most);
  std::string text(bytes, '\0');
  std::uint64_t sum = before;
  for (const std::uint64_t offset : {std::uint64_t{0}, (size - bytes) / 2, size - bytes}) {
    read_range(file, offset, std::as_writable_bytes(std::span(text)));
    sum = mix(sum ^ hash(text));
  }
  return sum;
}

/// Whether a file of the same size still holds what it held. A packed file has checksums of all it holds.
bool Checkpoint::is_the_same(std::size_t file, const std::atomic<bool>& stop) const {
  std::optional<std::uint32_t> was;
  {
    const std::lock_guard lock(known_->mutex);
    was = known_->checksums[file];
  }
  if (was) return checksum(file, stop) == *was;
  if (format_ != Format::safetensors || !has_checksums()) return false;
  try {
    verify(stop);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

void Checkpoint::require_unchanged(const std::atomic<bool>& stop) const {
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    const FileState now = inputs_[i].state();
    FileState was;
    {
      const std::lock_guard lock(known_->mutex);
      was = known_->states[i];
    }
    if (now == was) continue;
    if (now.size != was.size || !is_the_same(i, stop))
      throw DataError(paths_[i].string() + ": has changed since its header was read" +
                      (now.size != was.size
                           ? " (" + std::to_string(was.size) + " bytes then, " + std::to_string(now.size) + " now)"
                       : now.modified == was.modified
                           ? ", or its mode or names have, and its contents then are not known to be those now"
                           : "") +
                      "; put the old file back and continue with --resume, or begin anew");
    const std::lock_guard lock(known_->mutex);
    known_->states[i] = now;  // a change since then shows in the next comparison
  }
}

bool Checkpoint::know(std::size_t file, std::uint32_t checksum) const {
  const std::lock_guard lock(known_->mutex);
  if (inputs_[file].state() != states_[file]) return false;
  known_->checksums[file] = checksum;
  return true;
}

std::uint32_t Checkpoint::checksum(std::size_t file, const std::atomic<bool>& stop) const {
  std::vector<std::byte> piece(std::size_t{4} << 20);
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0, size = inputs_[file].size(); at < size; at += piece.size()) {
    if (stop) throw Interrupted{};
    piece.resize(static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), size - at)));
    read_range(file, at, piece);
    crc = offload::crc32c(piece.data(), piece.size(), crc);
  }
  return crc;
}

void Checkpoint::verify(const std::atomic<bool>& stop) const {
  constexpr std::size_t kPiece = std::size_t{4} << 20, kMostThreads = 8;
  std::atomic<std::size_t> next = 0;
  const auto check = [&](const Checksum& sum, std::span<std::byte> buffer) {
    std::uint32_t crc = 0;
    for (std::uint64_t at = 0; at < sum.bytes && !stop;) {
      const auto piece = buffer.first(static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), sum.bytes - at)));
      read_range(sum.file, sum.offset + at, piece);
      crc = crc32(piece, crc);
      at += piece.size();
    }
    if (crc != sum.crc && !stop)
      throw CheckpointError(Fault::bad_checksum,
                            paths_[sum.file].string() + ": the record " + in_quotes(sum.record) +
                                " does not have its checksum: download the file again, or, if it was saved "
                                "without checksums, give --no-verify-crc");
  };
  const auto work = [&] {
    std::vector<std::byte> buffer(kPiece);
    try {
      for (std::size_t i = next++; i < checksums_.size() && !stop; i = next++) check(checksums_[i], buffer);
    } catch (...) {
      next = checksums_.size();  // the other threads need not continue
      throw;
    }
  };
  // One core sums about as fast as a disk reads, or slower, so several cores share the work.
  const std::size_t threads =
      std::min({std::size_t{std::max(1U, std::thread::hardware_concurrency())}, kMostThreads, checksums_.size()});
  std::vector<std::future<void>> workers;
  for (std::size_t i = 0; i < threads; ++i) workers.push_back(std::async(std::launch::async, work));
  for (std::future<void>& worker : workers) worker.get();
  if (stop) throw Interrupted{};
}

}  // namespace weft::runtime
