// runtime/results/result_sink.h: the destination of the lines of answers: a journal, or standard output.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "runtime/base/standard_streams.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// Takes lines in the order in which answers are ready. Used by one thread at a time.
class ResultSink {
 public:
  virtual ~ResultSink() = default;

  /// True if an earlier run's lines are there, or are being continued.
  virtual bool held() const = 0;
  /// Call it before append(). `first` is called before anything is created; if it throws, nothing is created. `on_lost`
  /// is called when a flush fails, with the number of bytes that are on disk for sure.
  virtual void open(const std::function<void()>& first, std::function<void(std::uint64_t durable)> on_lost) = 0;
  /// Appends one line and a newline. Throws IoError; then all earlier lines are whole.
  virtual void append(std::string_view line) = 0;
  /// Ends the output. All lines are written when it returns. Throws IoError.
  virtual void finish() = 0;
  /// Does the same, and checks that there are `count` lines, each for a different request. Throws IoError if that is
  /// not so, or Interrupted. Returns how many of the lines are refusals.
  virtual std::size_t finish(const RequestFile& requests, std::size_t count) = 0;
};

/// Standard output. Its lines cannot be read back, so there is no resume, and they are only counted.
class ResultPipe : public ResultSink {
 public:
  explicit ResultPipe(const std::atomic<bool>* stop = nullptr) : out_(stop) {}

  bool held() const override { return false; }
  void open(const std::function<void()>&, std::function<void(std::uint64_t)>) override {}
  void append(std::string_view line) override;
  void finish() override {}
  std::size_t finish(const RequestFile& requests, std::size_t count) override;

 private:
  StandardOutput out_;
  std::size_t lines_ = 0, refused_ = 0;
};

}  // namespace weft::runtime
