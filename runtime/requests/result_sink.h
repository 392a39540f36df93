// runtime/requests/result_sink.h: where the lines of answers go: a journal, or standard output.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string_view>

#include "runtime/base/standard_streams.h"
#include "runtime/requests/requests.h"

namespace weft::runtime {

/// Takes lines in the order in which answers are ready. One thread at a time.
class ResultSink {
 public:
  virtual ~ResultSink() = default;

  /// An earlier run's lines are there, or are being continued.
  virtual bool held() const = 0;
  /// Call it before append(). `first` is called before anything is created; where it throws, nothing is. `on_lost` is
  /// called when a flush fails, with the number of bytes that are on disk for sure.
  virtual void open(const std::function<void()>& first, std::function<void(std::uint64_t durable)> on_lost) = 0;
  /// One line, newline added. Throws IoError; then all earlier lines are whole.
  virtual void append(std::string_view line) = 0;
  /// All is written when it returns. Throws IoError.
  virtual void finish() = 0;
  /// The same, and there are `count` lines, each for another one of the requests. Throws IoError where that is not so,
  /// Interrupted. Returns how many of the lines say why there is no answer.
  virtual std::size_t finish(const RequestFile& requests, std::size_t count) = 0;
};

/// Standard output: what was written cannot be read back, so there is no resume, and lines are only counted.
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
