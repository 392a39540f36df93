#include "runtime/job/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "runtime/base/duration.h"

namespace weft::runtime {
namespace {

constexpr std::chrono::milliseconds kOnTerminal{200};
constexpr std::chrono::seconds kInLog{10}, kSeldom{300};
constexpr double kTrust = 0.1;  // share of the forecast's time after which both weigh alike
constexpr std::size_t kColumns = 80;

}  // namespace

std::optional<double> seconds_left(const Forecast& forecast, double elapsed, double prefill, double tokens) {
  tokens = std::clamp(tokens, 0.0, 1.0);
  if (forecast.seconds <= 0) {
    if (tokens <= 0) return {};
    return elapsed * (1 - tokens) / tokens;
  }
  const double first = std::min(forecast.prefill_seconds, forecast.seconds);
  const double share = tokens > 0 ? 1 : std::clamp(prefill, 0.0, 1.0);
  const double done = first * share + (forecast.seconds - first) * tokens, prior = kTrust * forecast.seconds;
  return (elapsed + prior) / (done + prior) * (forecast.seconds - done);
}

bool is_drawn_on(int fd) {
  const char* const kind = std::getenv("TERM");
  return isatty(fd) == 1 && (!kind || std::strcmp(kind, "dumb") != 0);
}

std::size_t terminal_columns(int fd) {
  std::size_t columns = 0;
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0) columns = size.ws_col;
  if (const char* const text = std::getenv("COLUMNS")) {
    std::size_t said = 0;
    const char* const end = text + std::strlen(text);
    if (std::from_chars(text, end, said).ptr == end && said > 0) columns = columns > 0 ? std::min(columns, said) : said;
  }
  return columns > 0 ? columns : kColumns;
}

Progress::Progress(bool quiet)
    : quiet_(quiet), terminal_(is_drawn_on(STDERR_FILENO)), start_(Clock::now()), begin_(start_), last_line_(start_),
      last_asked_(start_) {
  if (quiet_) return;
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {  // nothing is shown then, and the job runs all the same
  }
}

Progress::~Progress() { clear(); }

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Progress::stage(const std::string& what) {
  const std::lock_guard lock(mutex_);
  stage_ = what;
  stage_share_ = 0;
  begun_ = false;
}

void Progress::begin(std::size_t total, std::size_t already, std::uint64_t tokens, const Forecast& forecast,
                     std::function<double()> prefill, std::function<std::string()> busiest) {
  const std::lock_guard lock(mutex_);
  begun_ = true;
  begin_ = last_asked_ = Clock::now();
  total_ = total;
  already_ = already;
  expected_ = tokens;
  earlier_ = tokens_, earlier_skipped_ = skipped_;
  forecast_ = forecast;
  prefill_ = std::move(prefill);
  busiest_ = std::move(busiest);
}

void Progress::token() {
  ++tokens_;
  if (quiet_) return;
  const auto now = Clock::now();
  if (now - last_asked_ < kOnTerminal || !busiest_) return;
  last_asked_ = now;
  std::string busy = busiest_();
  // A halted terminal blocks the watcher. It must not block the sweeps.
  if (const std::unique_lock lock(mutex_, std::try_to_lock); lock) busy_ = std::move(busy);
}

/// Shows a line now and then. A line that there is no memory for is left out.
void Progress::watch() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kOnTerminal, [this] { return ended_; })) {
    const auto now = Clock::now();
    // The longer a job takes, the less often it adds a line to a log.
    const auto pause =
        terminal_ ? Clock::duration(0) : std::clamp<Clock::duration>((now - start_) / 10, kInLog, kSeldom);
    if (now - last_line_ < pause) continue;
    last_line_ = now;
    try {
      show();
    } catch (const std::exception&) {}
  }
}

std::string Progress::line() const {
  char text[160];
  if (!begun_) {
    const double share = stage_share_;
    std::snprintf(text, sizeof text, "%s%s, %s", stage_.c_str(),
                  share > 0 ? (" " + std::to_string(std::lround(100 * share)) + " %").c_str() : "",
                  duration_text(seconds()).c_str());
    return text;
  }
  const double elapsed = std::chrono::duration<double>(Clock::now() - begin_).count();
  const double done = double(tokens_ - earlier_) + double(skipped_ - earlier_skipped_);
  const double share = expected_ > 0 ? done / double(expected_) : 0;
  const double prefill = prefill_ ? prefill_() : 0;
  const auto left = seconds_left(forecast_, elapsed, prefill, share);
  const std::string eta = left ? duration_text(*left + forecast_.later) : "?";
  if (tokens_ == earlier_)
    std::snprintf(text, sizeof text, "%zu/%zu requests, ETA %s, prefill %.0f %%", answered(), total_, eta.c_str(),
                  100 * prefill);
  else
    std::snprintf(text, sizeof text, "%zu/%zu requests, ETA %s, %.1f tokens/s%s%s", answered(), total_, eta.c_str(),
                  double(tokens_ - earlier_) / elapsed, busy_.empty() ? "" : ", busiest ", busy_.c_str());
  return text;
}

/// Writes each line at once, so that other output is not torn. On a terminal the cursor stays at the beginning of the
/// line, and other output begins by clearing the line.
void Progress::show() {
  std::string text = line();
  if (terminal_)
    text = "\r\033[K" + text.substr(0, std::max<std::size_t>(terminal_columns(STDERR_FILENO), 2) - 1) + "\r";
  else text += "\n";
  std::fputs(text.c_str(), stderr);
  shown_ = terminal_;
}

void Progress::clear() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  if (watcher_.joinable()) watcher_.join();
  if (std::exchange(shown_, false)) std::fputs("\r\033[K", stderr);
}

}  // namespace weft::runtime
