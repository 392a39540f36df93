// kernels/machine/copy_pace.h: bulk copies in chunks, of which only so many are queued.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>

namespace weft::kernels {

/// Cuts copies into chunks, and keeps at most two groups of chunks queued. A copy engine serves in the order of its
/// queue, so the small copy of another stream waits for two groups at most. The thread that queues them sleeps until
/// the group before the last is done, and is not woken for each chunk. If it wakes late, the link has the last group to
/// go on with. So a group lasts about kGroupSeconds: on a fast link it is several chunks. Used by one thread at a time.
class CopyPace {
 public:
  static constexpr std::size_t kChunk = 16 << 20;
  /// A thread that finds a free core wakes within 0.1 ms; one that has to wait for the end of another's time slice, in
  /// up to 3 ms.
  static constexpr double kGroupSeconds = 1.2e-3;
  static constexpr std::size_t kMostGroup = 4 * kChunk;

  /// `most_group`: a group never has more bytes.
  explicit CopyPace(std::size_t most_group = kMostGroup) : most_group_(most_group) {}

  /// Copies `bytes`. issue(begin, bytes) queues a chunk, record(event) records event 0 or 1 behind it, and wait(event)
  /// sleeps until the last record() of that event is reached; it returns at once if there was none.
  template <class Issue, class Record, class Wait>
  void copy(std::size_t bytes, const Issue& issue, const Record& record, const Wait& wait) {
    const Clock::time_point start = Clock::now();
    std::array<std::size_t, 2> reached{};  // bytes of this copy up to each event
    for (std::size_t begin = 0; begin < bytes;) {
      if (open_ >= group_) {
        record(turn_);
        reached[turn_] = begin;
        turn_ ^= 1, open_ = 0;
        wait(turn_);
        note_rate(reached[turn_], start);
      }
      const std::size_t size = std::min(kChunk, bytes - begin);
      issue(begin, size);
      begin += size, open_ += size;
    }
  }

  std::size_t group() const { return group_; }

 private:
  using Clock = std::chrono::steady_clock;

  /// `bytes` of a copy have arrived, all of them queued after `start`: the link is at least as fast as that.
  void note_rate(std::size_t bytes, Clock::time_point start) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (bytes == 0 || seconds <= 0) return;
    const auto group = static_cast<std::size_t>(kGroupSeconds * static_cast<double>(bytes) / seconds);
    group_ = std::max(group_, std::min(group / kChunk * kChunk, most_group_));
  }

  const std::size_t most_group_;
  std::size_t group_ = kChunk;  // bytes of a group; grows to what the fastest copy so far asks for
  std::size_t open_ = 0;        // bytes queued since the last event
  std::size_t turn_ = 0;        // the next event
};

}  // namespace weft::kernels
