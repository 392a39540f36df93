// offload/lanes.cc
#include "offload/lanes.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/error.h"

namespace weft::offload {
namespace {

constexpr bool has_stream(Lane lane) {
  return lane == Lane::host_to_device || lane == Lane::device_to_host || lane == Lane::device_compute;
}

constexpr auto kBefore = [](const auto& failure, std::uint64_t number) { return failure.number < number; };

}  // namespace

Lanes::Lanes(kernels::Backend& backend) : backend_(backend), issue_is_completion_(backend.device_is_host_memory()) {
  for (const Lane lane : kLanes) {
    if (!has_stream(lane)) continue;
    queue(lane).stream = backend.make_stream();
    for (Issued& issued : queue(lane).issued) issued.event = backend.make_event();
  }
  try {
    for (const Lane lane : kLanes) {
      queue(lane).thread = std::thread([this, lane] { run(lane); });
      if (has_stream(lane) && !issue_is_completion_) queue(lane).watcher = std::thread([this, lane] { watch(lane); });
    }
  } catch (...) {
    end_threads();
    throw;
  }
}

Lanes::~Lanes() { end_threads(); }

void Lanes::end_threads() {
  {
    const Lock lock(mutex_);
    quit_ = true;
  }
  for (Queue& q : queues_) q.wake.notify_all();
  for (Queue& q : queues_)
    if (q.thread.joinable()) q.thread.join();
  {
    const Lock lock(mutex_);
    all_issued_ = true;
  }
  for (Queue& q : queues_) q.wake_watcher.notify_all();
  for (Queue& q : queues_)
    if (q.watcher.joinable()) q.watcher.join();
}

double Lanes::now() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

Ticket Lanes::submit(Lane lane, std::span<const Ticket> deps, Work work, std::uint32_t label) {
  Lock lock(mutex_);
  Queue& q = queue(lane);
  // Waking only when the queue is half empty saves a thread switch per piece.
  if (q.count == kRunAhead) space_.wait(lock, [&] { return q.count <= kRunAhead / 2; });
  const std::uint64_t number = first_ + pieces_.size();
  for (const Ticket dep : deps)
    if (dep.number >= number)
      throw UsageError("lanes: work " + std::to_string(number) + " cannot depend on work " +
                       std::to_string(dep.number) + ", which comes later");
  Entry& entry = q.ring[(q.first + q.count) % kRunAhead];
  entry.deps.assign(deps.begin(), deps.end());
  for (Issued& issued : q.issued) issued.after.reserve(deps.size());
  reserve_for_one_more();
  Piece piece;
  piece.lane = lane;
  piece.label = label;
  pieces_.push_back(piece);  // the last call that can fail: a piece without an entry would never end
  entry.number = number;
  entry.work = std::move(work);
  if (++q.count == 1) q.wake.notify_one();
  return {number};
}

void Lanes::reserve_for_one_more() {
  const auto reserve = [this](auto& list) {
    const std::size_t wanted = list.size() + pieces_.size() + 1;
    if (wanted > list.capacity()) list.reserve(2 * wanted);
  };
  reserve(failures_);
  if (recording_) reserve(records_);
}

void Lanes::wait(Ticket ticket) {
  Lock lock(mutex_);
  wait_finished(ticket.number, lock);
  if (const auto error = failure(ticket.number)) std::rethrow_exception(error);
}

void Lanes::wait_all() {
  Lock lock(mutex_);
  while (!pieces_.empty()) wait_finished(first_, lock);
  if (failures_.empty()) return;
  const std::exception_ptr first = failures_.front().error;
  failures_.clear();
  std::rethrow_exception(first);
}

void Lanes::wait_finished(std::uint64_t number, Lock& lock) {
  const auto finished = [&] {
    const Piece* piece = find(number);
    return !piece || piece->state == State::done || piece->state == State::failed;
  };
  if (finished()) return;
  Waiter waiter;
  waiter.number = number;
  waiter.next = std::exchange(waiters_, &waiter);
  waiter.wake.wait(lock, finished);
  Waiter** to = &waiters_;
  while (*to != &waiter) to = &(*to)->next;
  *to = waiter.next;
}

void Lanes::start_recording() {
  const Lock lock(mutex_);
  records_.reserve(records_.size() + pieces_.size());
  recording_ = true;
}

std::vector<LaneRecord> Lanes::take_records() {
  const Lock lock(mutex_);
  std::vector<LaneRecord> later;
  later.reserve(pieces_.size());
  return std::exchange(records_, std::move(later));
}

std::array<double, kLanes.size()> Lanes::busy_seconds() const {
  const Lock lock(mutex_);
  std::array<double, kLanes.size()> seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] = queues_[i].busy;
  return seconds;
}

Lanes::Piece* Lanes::find(std::uint64_t number) { return number < first_ ? nullptr : &pieces_[number - first_]; }

std::exception_ptr Lanes::failure(std::uint64_t number) const {
  const auto found = std::lower_bound(failures_.begin(), failures_.end(), number, kBefore);
  return found == failures_.end() || found->number != number ? nullptr : found->error;
}

void Lanes::run(Lane lane) {
  using Duty = kernels::Backend::Duty;
  Queue& q = queue(lane);
  if (q.stream || lane == Lane::host_compute)
    backend_.settle_thread(q.stream ? Duty::feeds_device : Duty::computes_on_host);
  Lock lock(mutex_);
  for (;;) {
    if (q.count > 0) {
      run_entry(q, q.ring[q.first], lock);
      q.first = (q.first + 1) % kRunAhead;
      if (--q.count == kRunAhead / 2) space_.notify_all();
    } else if (quit_) {
      return;
    } else {
      q.wake.wait(lock);
    }
  }
}

void Lanes::watch(Lane lane) {
  Queue& q = queue(lane);
  backend_.settle_thread(kernels::Backend::Duty::feeds_device);
  Lock lock(mutex_);
  for (;;) {
    if (q.issued_count > 0) retire_oldest(q, lock);
    else if (all_issued_) return;
    else q.wake_watcher.wait(lock);
  }
}

void Lanes::run_entry(Queue& q, Entry& entry, Lock& lock) {
  // A slot that another thread still reads has an event that must not be recorded anew.
  q.wake.wait(lock, [&] { return q.issued_count < kInFlight && q.next_issued().readers == 0; });
  Issued* const issued = &q.next_issued();
  issued->number = entry.number;
  issued->after.clear();
  q.issuing = true;
  std::exception_ptr error;
  for (const Ticket dep : entry.deps)
    if ((error = await(q, *issued, dep, lock))) break;
  Piece& piece = *find(entry.number);  // its address is valid until it is finished
  piece.begin = std::max(piece.begin, now());
  const bool issues = q.stream && !issue_is_completion_;
  bool ran = false;
  if (!error) {
    lock.unlock();
    try {
      entry.work(q.stream ? *q.stream : backend_.host_stream());
      ran = true;
      if (issues) backend_.record(*issued->event, *q.stream);
    } catch (...) {
      error = std::current_exception();
    }
    entry.work = nullptr;
    lock.lock();
  } else {
    entry.work = nullptr;
  }
  q.issuing = false;
  piece.ran = ran;
  if (error || !issues) return finish(entry.number, error);
  piece.issued = issued;
  piece.state = State::issued;
  if (++q.issued_count == 1) q.wake_watcher.notify_one();
  announce(entry.number);
}

/// Waits until `dep` is done, or until this lane's stream is ordered after it. Returns its failure, or null.
std::exception_ptr Lanes::await(Queue& q, Issued& issued, Ticket dep, Lock& lock) {
  for (;;) {
    const Piece* piece = find(dep.number);
    if (!piece || piece->state == State::done || piece->state == State::failed) return failure(dep.number);
    if (piece->state == State::issued && q.stream) {
      Queue& other = queue(piece->lane);
      if (&other == &q) return nullptr;
      Issued& before = *piece->issued;
      issued.after.push_back(dep.number);
      ++before.readers;
      // Not under the lock: a device whose queue of work is full lets this thread wait, and no other.
      std::exception_ptr error;
      lock.unlock();
      try {
        backend_.wait(*q.stream, *before.event);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (--before.readers == 0) other.wake.notify_one();
      return error;
    }
    q.waits_for = dep.number;
    q.wake.wait(lock);
    q.waits_for = 0;
  }
}

void Lanes::retire_oldest(Queue& q, Lock& lock) {
  const Issued& oldest = q.issued[q.first_issued];
  std::exception_ptr error;
  lock.unlock();
  try {
    backend_.synchronize(*oldest.event);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  q.first_issued = (q.first_issued + 1) % kInFlight;
  --q.issued_count;
  finish(oldest.number, error);
  q.wake.notify_one();  // it may wait for this slot
}

void Lanes::finish(std::uint64_t number, const std::exception_ptr& error) {
  Piece& piece = *find(number);
  const double end = now();
  piece.state = error ? State::failed : State::done;
  if (error) failures_.insert(std::lower_bound(failures_.begin(), failures_.end(), number, kBefore), {number, error});
  if (piece.ran) {
    Queue& q = queue(piece.lane);
    // Work that was issued early began when the work before it on its stream ended.
    const double begin = std::min(std::max(piece.begin, q.last_end), end);
    q.last_end = end;
    q.busy += end - begin;
    if (recording_) records_.push_back({piece.lane, piece.label, begin, end});
  }
  for (Queue& q : queues_)
    for (std::size_t i = 0; i < q.issued_count + (q.issuing ? 1 : 0); ++i) {
      const Issued& later = q.issued[(q.first_issued + i) % kInFlight];
      if (std::find(later.after.begin(), later.after.end(), number) != later.after.end())
        find(later.number)->begin = std::max(find(later.number)->begin, end);
    }
  while (!pieces_.empty() && (pieces_.front().state == State::done || pieces_.front().state == State::failed)) {
    pieces_.pop_front();
    ++first_;
  }
  announce(number);
}

void Lanes::announce(std::uint64_t number) {
  for (Queue& q : queues_)
    if (q.waits_for == number) q.wake.notify_one();
  for (Waiter* waiter = waiters_; waiter; waiter = waiter->next)
    if (waiter->number == number) waiter->wake.notify_one();
}

}  // namespace weft::offload
