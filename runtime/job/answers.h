// runtime/job/answers.h: tokens in, lines of the result file out.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/engine/model_source.h"
#include "runtime/engine/session.h"
#include "runtime/job/progress.h"
#include "runtime/requests/journal.h"
#include "runtime/requests/result_line.h"

namespace weft::runtime {

/// Begins the sequences of requests, finds their ends and writes their answers, each when all its choices have ended.
/// References must outlive it.
class Answers {
 public:
  Answers(const ModelSource& source, Journal& journal, Progress& progress)
      : source_(source), journal_(journal), progress_(progress) {}

  /// `choice`: from 0 to below the request's n.
  Sequence begin(std::size_t index, std::int32_t choice, const Request& request, const Session& session);
  /// Looks for an end at the newest token; writes the answer if it ends the last choice of a request.
  void token(Sequence& sequence);

 private:
  /// A request of which a choice has begun.
  struct Pending {
    Recipient to;
    std::vector<Choice> choices;
    std::size_t ended = 0;
  };
  void look_for_end(Sequence& sequence) const;
  Choice choice_of(Sequence& sequence) const;
  static std::string scored(const Sequence& sequence, const std::string& id);

  const ModelSource& source_;
  Journal& journal_;
  Progress& progress_;
  std::unordered_map<std::size_t, Pending> pending_;  // by index; as many as have places, for choices are neighbours
};

}  // namespace weft::runtime
