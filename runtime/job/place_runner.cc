#include "runtime/job/place_runner.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>

#include "offload/disk_store.h"
#include "runtime/base/handover.h"
#include "runtime/job/work_list.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

constexpr int kMostLost = 3;  // losses in its spill file that a job survives

/// Reads requests ahead of their turn on another thread, so that lines are parsed and texts are tokenized while the
/// device is busy. References must outlive it.
class ReadAhead {
 public:
  /// Reads `again` first, then `count` items from `walk` on.
  ReadAhead(std::span<const WorkItem> again, const WorkList::Walk& walk, std::size_t count, const RequestFile& requests,
            Answers& answers, InFlight& in_flight)
      : again_(again), walk_(walk), count_(count), requests_(requests), answers_(answers), in_flight_(in_flight),
        begun_(kAhead), reader_([this] { read(); }) {}
  ~ReadAhead() {
    begun_.close();
    reader_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The sequence of the next item. There must be one. Throws what reading its request threw.
  Sequence next() {
    peek();
    return *std::exchange(next_, std::nullopt);
  }
  /// The same sequence, which stays the next one.
  const Sequence& peek() {
    if (!next_) next_ = begun_.pop();
    if (!next_) std::rethrow_exception(error_);
    return *next_;
  }

 private:
  static constexpr std::size_t kAhead = 32;

  void read() try {
    std::optional<Request> request;
    std::uint32_t held = 0;
    for (std::size_t i = 0; i < again_.size() + count_; ++i) {
      const WorkItem item = i < again_.size() ? again_[i] : walk_.next();
      if (!request || held != item.request) request = requests_.read(item.request);  // choices are neighbours
      held = item.request;
      Sequence sequence = answers_.begin(item.request, static_cast<std::int32_t>(item.choice), *request);
      // A prompt whose own log-probabilities are asked for begins with less of it.
      sequence.prefix_tokens =
          std::min<std::int64_t>(requests_.entry(item.request).prefix_tokens, sequence.prompt_tokens - 1);
      in_flight_.advance(sequence);
      if (!begun_.push(std::move(sequence))) return;
    }
  } catch (...) {
    error_ = std::current_exception();
    begun_.close();
  }

  const std::span<const WorkItem> again_;
  WorkList::Walk walk_;
  const std::size_t count_;
  const RequestFile& requests_;
  Answers& answers_;
  InFlight& in_flight_;
  Handover<Sequence> begun_;
  std::optional<Sequence> next_;  // taken out of begun_ already
  std::exception_ptr error_;      // set before begun_ is closed
  std::thread reader_;
};

/// Makes the weight units in the spill file again, after it has lost something. No lane may be busy. Throws DataError
/// if the checkpoint has changed, IoError.
void remake_spilled_weights(const Session& session) {
  const offload::BufferStore& buffers = session.storage().buffers();
  const ModelSource& source = session.source();
  for (std::size_t unit = 0; unit < source.units.size(); ++unit) {
    const auto id = static_cast<offload::BufferId>(unit);
    if (buffers.home(id) != policy::Tier::disk || buffers.read_only(id)) continue;  // a file is its home
    const auto memory = session.backend().allocate_host(buffers.bytes(id));
    source.weights->make(unit, memory->data());
    buffers.write_to_disk(id, memory->data());
  }
  if (source.checkpoint) source.checkpoint->require_unchanged();
}

/// Runs sequences in the places of one block after another, or of one block that is refilled.
class PlaceRunner {
 public:
  PlaceRunner(Session& session, const WorkList& list, const RequestFile& requests, Answers& answers,
              InFlight& in_flight)
      : session_(session), requests_(requests), answers_(answers), in_flight_(in_flight), walk_(list) {}

  std::size_t left() const { return walk_.left(); }

  /// Runs `again`, which begins with those that have KV, then the next `count` items. The first take the block's
  /// places, the others those of finished sequences. What the spill file loses is made again: weight units from the
  /// checkpoint, sequences from where they were saved last, or else from their prompts.
  void run(std::vector<WorkItem> again, std::size_t count) {
    while (!again.empty() || count > 0) {
      try {
        return run_once(again, count);
      } catch (const offload::FullDisk& full) {
        throw IoError(std::string(full.what()) + ", and run the same command with --resume, which goes on from " +
                      in_flight_.resumes_from());
      } catch (const offload::LostPage& lost) {
        if (++lost_ > kMostLost) give_up(lost);
        log_warn("{}; what was computed with it is computed again", lost.what());
      }
      const std::size_t of_again = std::min(taken_, again.size());
      count -= taken_ - of_again;
      std::vector<WorkItem> rest;
      for (const Sequence& place : places_)
        if (place.finish == Finish::none)
          rest.push_back({static_cast<std::uint32_t>(place.request), static_cast<std::uint32_t>(place.choice)});
      rest.insert(rest.end(), again.begin() + static_cast<std::ptrdiff_t>(of_again), again.end());
      remake_spilled_weights(session_);
      in_flight_.go_back(rest);
      std::stable_partition(rest.begin(), rest.end(), [this](const WorkItem& item) { return has_kv(item); });
      again = std::move(rest);
    }
  }

 private:
  [[noreturn]] void give_up(const offload::LostPage& lost) const {
    throw offload::LostPage(
        std::string(lost.what()) + "; that is too often in one run: check the disk or name another " +
        "--disk-dir, and run the same command with --resume, which goes on from " + in_flight_.resumes_from());
  }
  bool has_kv(const WorkItem& item) const {
    return in_flight_.has(item.request, static_cast<std::int32_t>(item.choice));
  }

  void run_once(std::span<const WorkItem> again, std::size_t count) {
    const std::size_t all = again.size() + count;
    const std::size_t places = std::min(all, static_cast<std::size_t>(session_.policy().block_size()));
    places_.assign(places, {});
    taken_ = 0;
    ReadAhead ahead(again, walk_, count, requests_, answers_, in_flight_);
    const auto fill = [&](Sequence& place) {
      place = ahead.next();
      if (taken_++ >= again.size()) walk_.next();
    };
    for (Sequence& place : places_) fill(place);
    const auto next_has_begun = [&] { return taken_ < again.size() && has_kv(again[taken_]); };
    const auto next_shares = [&](const Sequence& place) { return ahead.peek().tokens == place.tokens; };
    session_.executor().run(
        places_, [&](Sequence& sequence) { answers_.token(sequence); },
        {.count = static_cast<std::int64_t>(all - places),
         .next = fill,
         .next_has_begun = next_has_begun,
         .next_shares = next_shares},
        &in_flight_);
  }

  Session& session_;
  const RequestFile& requests_;
  Answers& answers_;
  InFlight& in_flight_;
  std::vector<Sequence> places_;
  WorkList::Walk walk_;    // after everything that was ever taken
  std::size_t taken_ = 0;  // items, by this run_once()
  int lost_ = 0;
};

/// Returns the choices that continue in the middle of their answers, and the other open choices of the same requests.
/// Removes these requests from `indices`. Takes up choices that ended in an earlier run.
std::vector<WorkItem> resumed_items(std::vector<std::uint32_t>& indices, const RequestFile& requests, Answers& answers,
                                    InFlight& in_flight) {
  std::set<std::pair<std::uint64_t, std::int32_t>> ended;
  std::set<std::uint64_t> begun;  // requests
  const auto has_kv = [&](std::uint32_t request, std::uint32_t choice) {
    return in_flight.has(request, static_cast<std::int32_t>(choice));
  };
  if (!in_flight.ended().empty()) {
    const std::set<std::uint64_t> open(indices.begin(), indices.end());
    for (const SavedChoice& saved : in_flight.ended()) {
      if (!open.contains(saved.request) || saved.index < 0) continue;
      const RequestFile::Entry& entry = requests.entry(saved.request);
      if (static_cast<std::uint32_t>(saved.index) >= entry.n || ended.contains({saved.request, saved.index})) continue;
      begun.insert(saved.request);  // also if it is not taken up: it has begun in `answers`
      if (answers.take_up(requests.read(saved.request), saved)) ended.insert({saved.request, saved.index});
      else log_warn("a choice that has ended is not as this run would have ended it; it begins again");
    }
  }
  std::vector<WorkItem> items;
  std::erase_if(indices, [&](std::uint32_t index) {
    bool any = begun.contains(index);
    for (std::uint32_t choice = 0; choice < requests.entry(index).n; ++choice) any |= has_kv(index, choice);
    for (std::uint32_t choice = 0; any && choice < requests.entry(index).n; ++choice)
      if (!ended.contains({index, static_cast<std::int32_t>(choice)})) items.push_back({index, choice});
    return any;
  });
  std::stable_partition(items.begin(), items.end(),
                        [&](const WorkItem& item) { return has_kv(item.request, item.choice); });
  return items;
}

}  // namespace

bool run_requests(Session& session, const RequestFile& requests, std::vector<std::uint32_t> indices, Answers& answers,
                  InFlight& in_flight, bool prefix_sharing) {
  const bool continuous = session.policy().continuous;
  if (continuous) put_in_order(indices, requests, prefix_sharing);
  const std::vector<WorkItem> resumed = resumed_items(indices, requests, answers, in_flight);
  const WorkList list(std::move(indices), requests);
  PlaceRunner places(session, list, requests, answers, in_flight);
  const std::size_t size =
      continuous ? places.left() + resumed.size() : static_cast<std::size_t>(session.policy().block_size());
  try {
    std::size_t again = 0;  // resumed items that have run
    while (again < resumed.size() || places.left() > 0) {
      const std::size_t some = std::min(size, resumed.size() - again);
      const auto first = resumed.begin() + static_cast<std::ptrdiff_t>(again);
      places.run({first, first + static_cast<std::ptrdiff_t>(some)}, std::min(size - some, places.left()));
      again += some;
    }
    answers.finish();
  } catch (const Interrupted&) {
    return false;
  }
  return true;
}

}  // namespace weft::runtime
