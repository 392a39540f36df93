// runtime/answers.h: tokens in, lines of the result file out.
#pragma once

#include <string>

#include "runtime/journal.h"
#include "runtime/model_source.h"
#include "runtime/progress.h"
#include "runtime/result_line.h"
#include "runtime/session.h"

namespace weft::runtime {

/// Begins the sequences of requests, finds their ends and writes their answers. References must outlive it.
class Answers {
 public:
  Answers(const ModelSource& source, Journal& journal, Progress& progress)
      : source_(source), journal_(journal), progress_(progress) {}

  Sequence begin(std::size_t index, const Request& request, const Session& session) const;
  /// Looks for an end at the newest token; writes the answer if there is one.
  void token(Sequence& sequence, const Recipient& to);

 private:
  void look_for_end(Sequence& sequence) const;
  std::string generated(const Sequence& sequence, const Recipient& to) const;
  static std::string scored(const Sequence& sequence, const std::string& id);

  const ModelSource& source_;
  Journal& journal_;
  Progress& progress_;
};

}  // namespace weft::runtime
