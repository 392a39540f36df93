// runtime/job/progress.h: the one line on a terminal, or a plain line now and then where there is none.
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

/// What a plan says of a job. 0 seconds: nothing is known.
struct Forecast {
  double seconds = 0;
  double prefill_seconds = 0;  ///< of these, those of the first block
};

/// Seconds left of a job, where that can be said: at first those of the forecast, more and more those that what is done
/// has shown. `prefill`, `tokens`: shares that are done of the first block's prefill and of all tokens.
std::optional<double> seconds_left(const Forecast& forecast, double elapsed, double prefill, double tokens);

/// Whether `fd` is a terminal on which a line can be drawn again and again.
bool is_drawn_on(int fd);
/// Columns of the terminal behind `fd`, by what it says and by COLUMNS, whichever is less; 80 where neither says any.
std::size_t terminal_columns(int fd);

/// Says what goes on from the first moment to the last. Any thread, but for begin().
class Progress {
 public:
  /// Begins with a stage. `quiet`: says nothing.
  explicit Progress(bool quiet);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// What goes on before and after the sweeps, such as "loading weights".
  void stage(const std::string& what);
  void stage_share(double share) { stage_share_ = share; }  ///< of it that is done
  /// The sweeps begin. `total` requests, `already` of them answered by earlier runs; `tokens`: the most that is to
  /// come. `prefill` says which share of the first sweep is done. Both functions outlive the last token().
  void begin(std::size_t total, std::size_t already, std::uint64_t tokens, const Forecast& forecast,
             std::function<double()> prefill, std::function<std::string()> busiest);

  void token();  ///< one more token; one thread, which `busiest` is asked on
  void ended_early(std::uint64_t tokens) { skipped_ += tokens; }  ///< so many tokens of a sequence will not come
  void finished() { ++finished_; }                                ///< one more request was answered
  void clear();  ///< ends what is shown, before something else is printed
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
  std::uint64_t expected_ = 0;
  std::atomic<std::uint64_t> tokens_{0}, skipped_{0};
  Forecast forecast_;
  std::function<double()> prefill_;
  std::function<std::string()> busiest_;
  std::string busy_;
  std::thread watcher_;
};

}  // namespace weft::runtime
