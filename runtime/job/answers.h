// runtime/job/answers.h: makes lines of the result file from the tokens of sequences.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "runtime/base/handover.h"
#include "runtime/engine/session.h"
#include "runtime/job/progress.h"
#include "runtime/model/model_source.h"
#include "runtime/results/result_line.h"
#include "runtime/results/result_sink.h"
#include "runtime/results/snapshot.h"

namespace weft::runtime {

/// Begins the sequences of requests, finds their ends, and writes each answer when all choices of its request have
/// ended. The caller's thread only decides whether a sequence ends. Another thread makes text and JSON and writes the
/// journal, so that a slow disk holds up no sweep until `capacity` ended sequences wait. References must outlive it.
class Answers {
 public:
  Answers(const Session& session, ResultSink& results, Progress& progress, std::size_t capacity);
  /// Writes what has ended, as finish() does, but throws nothing.
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  /// `choice`: from 0 to below the request's n. Any thread, one at a time.
  Sequence begin(std::size_t index, std::int32_t choice, const Request& request);
  /// Checks whether the newest token ends the sequence. A sequence that has ended is moved away, except for its
  /// `finish` and its numbers. Throws what writing an earlier answer threw.
  void token(Sequence& sequence);
  /// Counts a choice of an earlier run as ended; its text is made anew of its tokens. Call it before the request's
  /// other choices begin. Returns false, and does nothing, if this run would not have ended the choice like that.
  bool take_up(const Request& request, const SavedChoice& saved);
  /// Returns once what has ended is written or waits for the other choices of its request. Throws what writing threw.
  void drain();
  /// The ended choices that wait for others of their request. Call it after drain().
  std::vector<SavedChoice> ended_choices() const;
  /// Returns once all that has ended is written, or throws what writing threw. No other call may follow.
  void finish();

 private:
  /// A request with a choice that has begun.
  struct Pending {
    Recipient to;
    std::vector<Choice> choices;
    std::size_t ended = 0;
    bool failed = false;  ///< one of the choices has no next token
  };
  void look_for_end(Sequence& sequence) const;
  bool replay(Sequence& sequence, const Choice& choice) const;
  void write_ended();
  void write(Sequence& sequence);
  Choice choice_of(Sequence& sequence) const;
  static std::string scored(const Sequence& sequence, const Recipient& to);

  const Session& session_;
  const ModelSource& source_;
  ResultSink& results_;
  Progress& progress_;
  mutable std::mutex mutex_;                          // guards pending_ and handed_
  std::unordered_map<std::size_t, Pending> pending_;  // by index; few, because the choices of a request are neighbours
  Handover<Sequence> ended_;
  std::int64_t handed_ = 0;  // sequences that the writer has not done yet
  std::condition_variable done_;
  std::exception_ptr error_;  // the writer's, set before it closes ended_
  std::thread writer_;
};

}  // namespace weft::runtime
