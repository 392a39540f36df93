// runtime/job/answers.h: tokens in, lines of the result file out.
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
#include "runtime/engine/model_source.h"
#include "runtime/engine/session.h"
#include "runtime/job/progress.h"
#include "runtime/requests/result_line.h"
#include "runtime/requests/result_sink.h"
#include "runtime/requests/snapshot.h"

namespace weft::runtime {

/// Begins the sequences of requests, finds their ends and writes their answers, each when all its choices have ended.
/// Only the decision whether a sequence ends is made on the caller's thread; text, JSON and the journal are a thread's
/// of its own, so that a slow disk holds up no sweep until `capacity` ended sequences wait. References must outlive it.
class Answers {
 public:
  Answers(const Session& session, ResultSink& results, Progress& progress, std::size_t capacity);
  /// Writes what has ended, as finish() does, but throws nothing.
  ~Answers();
  Answers(const Answers&) = delete;
  Answers& operator=(const Answers&) = delete;

  /// `choice`: from 0 to below the request's n. Any thread, one at a time.
  Sequence begin(std::size_t index, std::int32_t choice, const Request& request);
  /// Looks for an end at the newest token. A sequence that has ended is taken away but for its `finish` and its
  /// numbers. Throws what writing an earlier answer threw.
  void token(Sequence& sequence);
  /// A choice of an earlier run: it counts as ended. Before the request's other choices begin.
  void take_up(const Request& request, const SavedChoice& saved);
  /// Returns once what has ended is written or waits for the other choices of its request. Throws what writing threw.
  void drain();
  /// Those that wait. After drain().
  std::vector<SavedChoice> ended_choices() const;
  /// Returns once all that has ended is written, or throws what writing threw. Nothing may follow.
  void finish();

 private:
  /// A request of which a choice has begun.
  struct Pending {
    Recipient to;
    std::vector<Choice> choices;
    std::size_t ended = 0;
    bool failed = false;  ///< one of the choices has no next token
  };
  void look_for_end(Sequence& sequence) const;
  void write_ended();
  void write(Sequence& sequence);
  Choice choice_of(Sequence& sequence) const;
  static std::string scored(const Sequence& sequence, const std::string& id);

  const Session& session_;
  const ModelSource& source_;
  ResultSink& results_;
  Progress& progress_;
  mutable std::mutex mutex_;                          // of pending_ and handed_
  std::unordered_map<std::size_t, Pending> pending_;  // by index; few, because the choices of a request are neighbours
  Handover<Sequence> ended_;
  std::int64_t handed_ = 0;  // to the writer, and not yet done
  std::condition_variable done_;
  std::exception_ptr error_;  // of the writer, set before it closes ended_
  std::thread writer_;
};

}  // namespace weft::runtime
