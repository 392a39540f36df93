// runtime/job/progress.h: the one line on a terminal, or a plain line now and then where there is none.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace weft::runtime {

/// One thread at a time, but for finished() and answered(), which are any thread's.
class Progress {
 public:
  /// `total` requests, `already` of them answered by an earlier run.
  Progress(std::size_t total, std::size_t already, bool quiet);
  ~Progress() { clear(); }

  void token();     ///< one more token was generated
  void finished();  ///< one more request was answered
  /// Asked for the busiest lane so far whenever the rest is shown; outlives the last token().
  void show_busiest(std::function<std::string()> busiest) { busiest_ = std::move(busiest); }
  void clear();  ///< ends the terminal line, before something else is printed
  std::size_t answered() const { return already_ + finished_; }
  double seconds() const;

 private:
  void show();

  std::size_t total_, already_;
  std::atomic<std::size_t> finished_{0};
  std::uint64_t tokens_ = 0;
  bool quiet_, terminal_, shown_ = false;
  std::chrono::steady_clock::time_point start_, last_;
  std::function<std::string()> busiest_;
};

}  // namespace weft::runtime
