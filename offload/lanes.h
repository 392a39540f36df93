// offload/lanes.h: one queue per lane. Work runs in order within a lane, and by dependencies across lanes.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "kernels/backend.h"
#include "offload/tier.h"

namespace weft::offload {

/// Names one piece of submitted work; the default names none and counts as done.
struct Ticket {
  std::uint64_t number = 0;
};

/// The time when work ran, in seconds since its Lanes were made. For a GPU's lanes, the time as the host saw it.
struct LaneRecord {
  Lane lane{};
  std::uint32_t label = 0;
  double begin = 0, end = 0;
};

/// One ordered queue per lane. Work on host_to_device, device_to_host and device_compute gets that lane's stream and is
/// done when its stream has passed it; work on the other lanes blocks its lane's thread and gets
/// Backend::host_stream().
///
/// Each lane has a thread that runs its work. A lane of a GPU has one more, which sees when issued work is done, so
/// that the first can issue what is due meanwhile: only it waits for the device, and only the first waits for other
/// lanes.
class Lanes {
 public:
  /// Captures of up to two pointers cost no allocation. They live until the work has been issued, not until it is done.
  using Work = std::function<void(kernels::Stream&)>;

  explicit Lanes(kernels::Backend& backend);
  /// Finishes all submitted work. Failures that no wait() has thrown are lost.
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  /// Runs `work` after `deps` and after all earlier work of the same lane. If a dep failed, `work` does not run and
  /// fails with the same exception. Blocks while kRunAhead pieces wait in the lane. Any thread except the lanes' own
  /// may call this. If it throws because memory ran out, nothing was submitted.
  Ticket submit(Lane lane, std::span<const Ticket> deps, Work work, std::uint32_t label = 0);
  static constexpr std::size_t kRunAhead = 256;

  /// Blocks until the work is done, and rethrows its failure.
  void wait(Ticket ticket);
  /// Blocks until all submitted work is done. Rethrows the failure of the lowest ticket, if any, and forgets all
  /// failures, so that the lanes can be used again.
  void wait_all();

  /// Starts recording: every piece that runs to its end leaves a LaneRecord.
  void start_recording();
  /// Returns the records so far, in order of completion, and drops them.
  std::vector<LaneRecord> take_records();
  /// Seconds during which each lane had work running, so far.
  std::array<double, kLanes.size()> busy_seconds() const;
  double now() const;  ///< seconds on the clock of the records

 private:
  static constexpr std::size_t kInFlight = 8;  // pieces issued to a GPU's stream and not yet seen done

  enum class State : std::uint8_t { queued, issued, done, failed };
  struct Issued {
    std::uint64_t number = 0;
    std::unique_ptr<kernels::Event> event;
    std::vector<std::uint64_t> after;  // the pieces that the stream waits for
    int readers = 0;                   // threads that order their stream after `event`, which must stay as it is
  };
  struct Piece {
    State state = State::queued;
    bool ran = false;
    Lane lane{};
    std::uint32_t label = 0;
    Issued* issued = nullptr;  // set while issued
    double begin = 0;
  };
  struct Entry {
    std::uint64_t number = 0;
    Work work;
    std::vector<Ticket> deps;
  };
  struct Queue {
    std::thread thread, watcher;
    std::condition_variable wake;  // of `thread`
    std::condition_variable wake_watcher;
    std::array<Entry, kRunAhead> ring;  // reused, so that dependency lists keep their memory
    std::size_t first = 0, count = 0;
    std::uint64_t waits_for = 0;  // a ticket number, or 0 for none
    double last_end = 0, busy = 0;
    std::unique_ptr<kernels::Stream> stream;  // null for a host lane
    std::array<Issued, kInFlight> issued;     // a ring too
    std::size_t first_issued = 0, issued_count = 0;
    bool issuing = false;  // the slot after the issued ones is being filled
    Issued& next_issued() { return issued[(first_issued + issued_count) % kInFlight]; }
  };
  /// Lives on the stack of the waiting thread.
  struct Waiter {
    std::uint64_t number = 0;
    std::condition_variable wake;
    Waiter* next = nullptr;
  };
  struct Failure {
    std::uint64_t number = 0;
    std::exception_ptr error;
  };
  using Lock = std::unique_lock<std::mutex>;

  Queue& queue(Lane lane) { return queues_[static_cast<std::size_t>(lane)]; }
  void end_threads();
  void run(Lane lane);
  void watch(Lane lane);
  void run_entry(Queue& queue, Entry& entry, Lock& lock);
  std::exception_ptr await(Queue& queue, Issued& issued, Ticket dep, Lock& lock);
  void retire_oldest(Queue& queue, Lock& lock);
  void reserve_for_one_more();
  void finish(std::uint64_t number, const std::exception_ptr& error);
  void announce(std::uint64_t number);
  void wait_finished(std::uint64_t number, Lock& lock);
  Piece* find(std::uint64_t number);
  std::exception_ptr failure(std::uint64_t number) const;

  kernels::Backend& backend_;
  const bool issue_is_completion_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  mutable std::mutex mutex_;       // guards all members below
  std::condition_variable space_;  // signals that a full queue is half empty again
  Waiter* waiters_ = nullptr;
  std::deque<Piece> pieces_;  // those with tickets first_, first_ + 1, ...; finished ones are removed at the front
  std::uint64_t first_ = 1;
  // Both have room for all of pieces_, so that a lane's thread, in which an exception would end the process, never
  // allocates.
  std::vector<Failure> failures_;  // sorted by number
  std::vector<LaneRecord> records_;
  bool recording_ = false, quit_ = false;
  bool all_issued_ = false;  // after quit_: no thread issues any more
  std::array<Queue, kLanes.size()> queues_;
};

}  // namespace weft::offload
