#include "runtime/job/progress.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace weft::runtime {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kOnTerminal{200};
constexpr std::chrono::seconds kInLog{10};

std::string duration(double seconds) {
  char text[32];
  const long s = std::lround(seconds);
  if (s < 3600) std::snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
  else std::snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
  return text;
}

}  // namespace

Progress::Progress(std::size_t total, std::size_t already, bool quiet)
    : total_(total), already_(already), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1), start_(Clock::now()),
      last_(start_) {}

double Progress::seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void Progress::token() {
  ++tokens_;
  if (quiet_) return;
  const auto now = Clock::now();
  if (now - last_ < (terminal_ ? std::chrono::duration_cast<Clock::duration>(kOnTerminal)
                               : std::chrono::duration_cast<Clock::duration>(kInLog)))
    return;
  last_ = now;
  show();
}

void Progress::finished() { ++finished_; }

void Progress::show() {
  const double elapsed = seconds();
  const std::size_t left = total_ - answered();
  const std::string eta = finished_ == 0 ? "?" : duration(elapsed / double(finished_) * double(left));
  std::fprintf(stderr, "%s%zu/%zu requests, %.1f tokens/s, ETA %s%s%s%s", terminal_ ? "\r\033[K" : "", answered(),
               total_, double(tokens_) / elapsed, eta.c_str(), busiest_ ? ", busiest " : "",
               busiest_ ? busiest_().c_str() : "", terminal_ ? "" : "\n");
  shown_ = terminal_;
}

void Progress::clear() {
  if (shown_) std::fputs("\r\033[K", stderr);
  shown_ = false;
}

}  // namespace weft::runtime
