#include "runtime/job/in_flight.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "policy/layout/policy.h"
#include "runtime/base/sha256.h"
#include "runtime/job/job_record.h"
#include "runtime/planning/log.h"

namespace weft::runtime {
namespace {

constexpr double kMostShare = 0.03;             // share of the time that saving may take by default
constexpr std::chrono::seconds kGrace{8};       // a stopped run ends within ten
constexpr std::uint64_t kIndexBytes = 1 << 16;  // about what a file needs in addition to KV and tokens

std::string run_of(const RunRecord& record) {
  std::string text;
  for (const auto& [name, value] : record.fields)
    if (name != "retention") text += name + '\0' + value + '\0';
  for (const WeightsPin& pin : record.weights)
    text += pin.name + '\0' + std::to_string(pin.state.size) + ' ' + std::to_string(pin.state.modified) + '\0';
  return sha256(text);
}

std::uint32_t prompt_crc(const Sequence& sequence) {
  return offload::crc32c(reinterpret_cast<const std::byte*>(sequence.tokens.data()),
                         static_cast<std::size_t>(sequence.prompt_tokens) * sizeof(std::int32_t));
}

SavedSequence saved(const Sequence& sequence) {
  return {.request = sequence.request,
          .choice = sequence.choice,
          .prompt_crc = prompt_crc(sequence),
          .keep = sequence.keep.front().front(),
          .generated = {sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end()},
          .logprobs = sequence.logprobs,
          .greedy = sequence.greedy,
          .token_logprobs = sequence.token_logprobs};
}

/// Whether a saved sequence holds what a run of this sequence would have saved.
bool is_of(const SavedSequence& saved, const Sequence& sequence, std::int64_t vocab) {
  const std::size_t count = saved.generated.size();
  const bool scores = !sequence.forced.empty() && sequence.prompt_tail == 0;
  const bool reports = !scores && sequence.alternatives >= 0;
  return saved.prompt_crc == prompt_crc(sequence) && saved.keep == sequence.keep.front().front() && count > 0 &&
         count < static_cast<std::size_t>(sequence.max_tokens) && saved.logprobs.size() == (scores ? count : 0) &&
         saved.greedy.size() == saved.logprobs.size() && are_ids(saved.generated, vocab) &&
         fits(saved.token_logprobs, count, reports ? sequence.alternatives : -1, vocab);
}

bool is_in(const std::vector<std::uint32_t>& ascending, std::uint64_t request) {
  return std::binary_search(ascending.begin(), ascending.end(), request);
}

bool in_flight(const Sequence& sequence) { return sequence.finish == Finish::none && sequence.generated() > 0; }

}  // namespace

SavedWork::SavedWork(JobOptions& options, const RunRecord& record) : run_(run_of(record)) {
  if (!options.resume.on) return;
  const std::filesystem::path path = Snapshot::place(options.output);
  try {
    snapshot_.emplace(path);
  } catch (const NotAFile& none) {
    if (!none.missing) log_warn("{}; what was in flight begins again", none.what());
    return;
  } catch (const Error& damaged) {
    log_warn("{}; what was in flight begins again", damaged.what());
    return;
  }
  const std::string was = snapshot_->kind().retention;
  const std::string* const known = record.find("retention");
  std::vector<policy::Retention> allowed{options.policy.retention.value_or(policy::Retention{})};
  allowed.insert(allowed.end(), options.retentions.begin(), options.retentions.end());
  const auto it = std::find_if(allowed.begin(), allowed.end(), [&](const auto& r) { return retention_text(r) == was; });
  if (snapshot_->kind().run != run_ || (known ? *known != was : it == allowed.end())) {
    log_warn("{}: is of another run; what was in flight begins again", path.string());
    snapshot_.reset();
    return;
  }
  if (known) return;
  options.policy.retention = *it;
  options.retentions.clear();
}

InFlight::InFlight(const JobOptions& options, const SavedWork& saved, const std::vector<std::uint32_t>& mine,
                   const std::vector<std::uint32_t>& later, Session& session, Answers& answers)
    : interval_(options.save_every), limited_(options.save_seldom), path_(Snapshot::place(options.output)),
      session_(session), answers_(answers), later_(later), snapshot_(saved.snapshot() ? &*saved.snapshot() : nullptr),
      parts_(SlotRecords::runs(session.footprint())), kind_{.run = saved.run(),
                                                            .retention = retention_text(session.policy().retention),
                                                            .kv = SlotRecords::kind(session.footprint()),
                                                            .records = static_cast<std::int32_t>(parts_.size())} {
  if (snapshot_ && snapshot_->kind() != kind_) {
    log_warn("{}: holds another kind of KV cache; what was in flight begins again", path_.string());
    snapshot_ = nullptr;
  }
  for (std::size_t i = 0; snapshot_ && i < snapshot_->size(); ++i)
    if (const std::uint64_t request = snapshot_->sequence(i).request; is_in(mine, request) || is_in(later, request))
      waiting_[{request, snapshot_->sequence(i).choice}] = i;
  if (!interval_) return;
  session_.grace().allow(kGrace);
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(*interval_);
}

SlotRecords& InFlight::rows() {
  if (!rows_) rows_.emplace(session_.storage(), session_.footprint(), session_.backend());
  return *rows_;
}

void InFlight::say(const std::string& words) {
  if (!std::exchange(said_, true)) log_warn("{}", words);
}

bool InFlight::has(std::uint64_t request, std::int32_t choice) const {
  const std::lock_guard lock(mutex_);
  return waiting_.contains({request, choice});
}

std::span<const SavedChoice> InFlight::ended() const {
  return snapshot_ ? snapshot_->ended() : std::span<const SavedChoice>{};
}

void InFlight::advance(Sequence& sequence) {
  const std::lock_guard lock(mutex_);
  const auto it = waiting_.find({sequence.request, sequence.choice});
  if (it == waiting_.end()) return;
  const SavedSequence& saved = snapshot_->sequence(it->second);
  if (!is_of(saved, sequence, session_.source().spec.vocab)) {
    say(path_.string() + ": a sequence of it is not as this run would have saved it; it begins again");
    waiting_.erase(it);
    return;
  }
  for (std::size_t i = sequence.forced.size(); sequence.matcher && i < saved.generated.size(); ++i) {
    if (sequence.matcher->accept(saved.generated[i])) continue;
    sequence.matcher->restart();
    say(path_.string() + ": a sequence of it has not the form that its request wants; it begins again");
    waiting_.erase(it);
    return;
  }
  sequence.tokens.insert(sequence.tokens.end(), saved.generated.begin(), saved.generated.end());
  sequence.logprobs = saved.logprobs;
  sequence.greedy = saved.greedy;
  sequence.token_logprobs = saved.token_logprobs;
  sequence.sampling.counter += static_cast<std::uint64_t>(sequence.sampled());
  if (!sequence.stop_search) return;
  for (std::size_t i = sequence.forced.size(); i < saved.generated.size(); ++i)
    sequence.stop_search->push(saved.generated[i], /*look=*/false);
}

void InFlight::begin_again(Sequence& sequence) const {
  sequence.sampling.counter -= static_cast<std::uint64_t>(sequence.sampled());
  sequence.tokens.resize(static_cast<std::size_t>(sequence.prompt_tokens));
  sequence.logprobs.clear();
  sequence.greedy.clear();
  sequence.token_logprobs = {};
  if (sequence.matcher) sequence.matcher->restart();
  if (sequence.stop_search) sequence.stop_search->restart();
}

bool InFlight::due() { return interval_ && Clock::now() >= next_; }

void InFlight::save(std::span<const Sequence> block) {
  saved_.reset();
  if (!interval_) return;
  const auto begin = Clock::now();
  try {
    answers_.drain();
    write(block);
  } catch (const Interrupted&) {  // no time is left
  } catch (const offload::LostPage&) {
    throw;
  } catch (const IoError& failed) {
    say(std::string(failed.what()) + "; what is in flight is not saved, and the job goes on");
  } catch (const DataError& damaged) {  // of a waiting sequence, read again once that has a place
    say(std::string(damaged.what()) + "; what is in flight is not saved, and the job goes on");
  } catch (const UsageError& failed) {
    say(failed.what());
  } catch (const std::bad_alloc&) {
    say("no memory to save what is in flight; the job goes on");
  }
  const std::chrono::duration<double> took = Clock::now() - begin;
  seconds_ += took.count();
  const double pause = limited_ ? std::max(interval_->count(), took.count() / kMostShare) : interval_->count();
  next_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(pause));
}

/// The most bytes that the sequences in flight take in a snapshot. Ended choices are not counted.
std::uint64_t InFlight::bytes_needed(std::span<const Sequence> block, const std::map<Key, std::size_t>& waiting) {
  std::uint64_t bytes = kIndexBytes;
  for (const Sequence& sequence : block) {
    if (!in_flight(sequence)) continue;
    bytes += 64 * sequence.tokens.size();
    for (const SlotRecords::Run& part : parts_) {
      const std::vector<kernels::Keep>& keeps = policy::entry_of(sequence.keep, part.layer);
      const kernels::Keep& keep = keeps[static_cast<std::size_t>(part.run)];
      const std::size_t tokens = sequence.tokens.size(),
                        fine = std::min(static_cast<std::size_t>(keep.budget()), tokens),
                        cold = std::min(static_cast<std::size_t>(keep.cold),
                                        tokens - std::min(tokens, static_cast<std::size_t>(keep.of_prompt())));
      bytes += rows().record_bytes(part, {fine + 1, cold}) + sizeof(SavedRecord);
    }
  }
  for (const auto& [key, index] : waiting)
    for (std::size_t part = 0; part < parts_.size(); ++part) bytes += snapshot_->record(index, part).bytes;
  return bytes;
}

void InFlight::write(std::span<const Sequence> block) {
  Snapshot::require_own(path_);
  std::map<Key, std::size_t> waiting;
  {
    const std::lock_guard lock(mutex_);
    waiting = waiting_;
  }
  const int batch_size = session_.policy().gpu_batch_size;
  SnapshotWriter writer(path_, kind_, bytes_needed(block, waiting));
  std::size_t count = waiting.size();
  for (std::size_t place = 0; place < block.size(); ++place) {
    if (!in_flight(block[place])) continue;
    ++count;
    writer.begin(saved(block[place]));
    for (const SlotRecords::Run& part : parts_) {
      if (session_.grace().over()) throw Interrupted{};
      std::uint32_t hot = 0;
      const auto size = static_cast<std::size_t>(batch_size);
      const auto record =
          rows().read(part, static_cast<int>(place / size), static_cast<std::int64_t>(place % size), hot);
      writer.record(hot, record);
    }
  }
  copy_waiting(writer, waiting);
  for (const SavedChoice& choice : answers_.ended_choices()) writer.ended(choice);
  for (const SavedChoice& choice : ended())
    if (is_in(later_, choice.request)) writer.ended(choice);
  writer.commit();
  bytes_ = writer.bytes();
  ++count_;
  newer_ = true;
  saved_ = count;
  log_debug("saved {} sequences in flight: {}", count, policy::bytes_to_text(bytes_));
}

/// Copies the sequences that still wait for a place. They are only in the file from which this run continues.
void InFlight::copy_waiting(SnapshotWriter& writer, const std::map<Key, std::size_t>& waiting) const {
  std::vector<std::byte> record;
  for (const auto& [key, index] : waiting) {
    writer.begin(snapshot_->sequence(index));
    for (std::size_t part = 0; part < parts_.size(); ++part) {
      if (session_.grace().over()) throw Interrupted{};
      const SavedRecord& saved = snapshot_->record(index, part);
      record.resize(static_cast<std::size_t>(saved.bytes));
      snapshot_->read(index, part, record);
      writer.record(saved.slots, record);
    }
  }
}

void InFlight::go_back(std::span<const WorkItem> open) {
  if (std::exchange(newer_, false)) try {
      auto saved = std::make_unique<Snapshot>(path_);
      if (saved->kind() == kind_) {
        own_ = std::move(saved);
        snapshot_ = own_.get();
      }
    } catch (const Error& damaged) {  // the earlier snapshot is older, but as correct
      say(std::string(damaged.what()) + "; what was in flight begins again");
    }
  std::set<Key> wanted;
  for (const WorkItem& item : open) wanted.insert({item.request, static_cast<std::int32_t>(item.choice)});
  const std::lock_guard lock(mutex_);
  for (const auto& [key, index] : waiting_) wanted.insert(key);  // sequences of later blocks
  waiting_.clear();
  for (std::size_t i = 0; snapshot_ && i < snapshot_->size(); ++i) {
    const Key key{snapshot_->sequence(i).request, snapshot_->sequence(i).choice};
    if (wanted.contains(key)) waiting_[key] = i;
  }
}

std::string InFlight::resumes_from() const {
  return newer_ || snapshot_ ? "what " + path_.string() + " holds of those in flight" : "the answers that are written";
}

bool InFlight::put(std::size_t saved, std::size_t part, std::int64_t sequence, std::size_t tokens) try {
  const SavedRecord& record = snapshot_->record(saved, part);
  if (record.slots > tokens + 1) return false;  // the slot of the next token may be in use
  const auto slots = rows().slots_of(parts_[part], record.slots, record.bytes);
  if (!slots) return false;
  record_.resize(static_cast<std::size_t>(record.bytes));
  snapshot_->read(saved, part, record_);
  return rows().write(parts_[part].run, sequence, *slots, record_);
} catch (const Error& damaged) {
  say(std::string(damaged.what()) + "; it begins again");
  return false;
}

void InFlight::restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) {
  struct Restored {
    std::size_t place, saved;
    bool lost = false;
  };
  std::vector<Restored> all;
  {
    const std::lock_guard lock(mutex_);
    for (const std::size_t place : places) {
      const auto it = waiting_.find({block[place].request, block[place].choice});
      if (it == waiting_.end()) {  // it did not fit, and begins with its prompt
        begin_again(block[place]);
        continue;
      }
      all.push_back({place, it->second});
      waiting_.erase(it);
    }
  }
  const auto size = static_cast<std::size_t>(session_.policy().gpu_batch_size);
  for (int batch = 0; batch < session_.policy().num_gpu_batches; ++batch) {
    const bool any = std::any_of(all.begin(), all.end(), [&](const Restored& each) {
      return each.place / size == static_cast<std::size_t>(batch);
    });
    if (!any && !fresh) continue;
    for (std::size_t part = 0; part < parts_.size();) {
      if (session_.grace().asked()) throw Interrupted{};
      const int layer = parts_[part].layer;
      rows().open(layer, batch, fresh);
      for (; part < parts_.size() && parts_[part].layer == layer; ++part)
        for (Restored& each : all)
          if (each.place / size == static_cast<std::size_t>(batch) && !each.lost)
            each.lost =
                !put(each.saved, part, static_cast<std::int64_t>(each.place % size), block[each.place].tokens.size());
      rows().close();
    }
  }
  for (const Restored& each : all) {
    if (each.lost) {
      begin_again(block[each.place]);
      continue;
    }
    ++resumed_;
    resumed_tokens_ += std::max<std::int64_t>(0, block[each.place].answered());
  }
}

std::string InFlight::saved_words() const {
  return saved_ && *saved_ > 0 ? " and " + std::to_string(*saved_) + " sequences in flight are saved" : "";
}

nlohmann::ordered_json InFlight::report() const {
  return {{"count", count_},
          {"bytes", bytes_},
          {"seconds", seconds_},
          {"resumed_sequences", resumed_},
          {"resumed_tokens", resumed_tokens_}};
}

}  // namespace weft::runtime
