// runtime/job/progress.h: shows progress in one line on a terminal, or in a plain line now and then if there is none.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

namespace weft::runtime {

/// A plan's prediction for a job. 0 seconds: nothing is known.
struct Forecast {
  double seconds = 0;
  double prefill_seconds = 0;  ///< the part of `seconds` that the first block's prefill takes
  double later = 0;            ///< seconds of what follows, of which begin() tells nothing yet
};

/// Estimates the seconds left of a job, if that is possible: at first by the forecast, then more and more by the work
/// that is done. `prefill`, `tokens`: the shares of the first block's prefill and of all tokens that are done.
std::optional<double> seconds_left(const Forecast& forecast, double elapsed, double prefill, double tokens);

/// Whether `fd` is a terminal on which a line can be redrawn.
bool is_drawn_on(int fd);
/// Columns of the terminal behind `fd`: the lesser of the terminal's own number and COLUMNS; 80 if neither is known.
std::size_t terminal_columns(int fd);

/// Shows what a job is doing from beginning to end. Any thread, except for begin().
class Progress {
 public:
  /// Begins with a stage. `quiet`: shows nothing.
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Begins a stage before or after the sweeps, such as "loading weights".
  void stage(const std::string& what);
  void stage_share(double share) { stage_share_ = share; }  ///< share of the stage that is done
  /// The sweeps begin. There are `total` requests; earlier runs have answered `already` of them. `tokens`: the most
  /// that can come until the next stage. `prefill` returns the share of the first sweep that is done. Both functions
  /// outlive the last token() and last until the next stage.
  void begin(std::size_t total, std::size_t already, std::uint64_t tokens, const Forecast& forecast,
             std::function<double()> prefill, std::function<std::string()> busiest);

  void token();  ///< one more token; called by one thread, which calls `busiest`
  void ended_early(std::uint64_t tokens) { skipped_ += tokens; }  ///< that many tokens of a sequence will not come
  void finished() { ++finished_; }                                ///< one more request was answered
  void clear();                                                   ///< ends the display before something else is printed
  std::size_t answered() const { return already_ + finished_; }
  double seconds() const;  ///< since this was made

 private:
  using Clock = std::chrono::steady_clock;
  void watch();
  void show();
  std::string line() const;

  const bool quiet_, terminal_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string stage_ = "reading the model";
  std::atomic<double> stage_share_{0};
  bool begun_ = false, ended_ = false, shown_ = false;
  Clock::time_point begin_, last_line_, last_asked_;
  std::size_t total_ = 0;
  std::atomic<std::size_t> already_{0}, finished_{0};
  std::uint64_t expected_ = 0, earlier_ = 0, earlier_skipped_ = 0;  // earlier: before begin()
  std::atomic<std::uint64_t> tokens_{0}, skipped_{0};
  Forecast forecast_;
  std::function<double()> prefill_;
  std::function<std::string()> busiest_;
  std::string busy_;
  std::thread watcher_;
};

}  // namespace weft::runtime
