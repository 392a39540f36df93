// runtime/base/fill_ahead.h: two buffers, of which one is filled while the other's contents are carried away.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <future>
#include <memory>
#include <utility>

#include "kernels/backend.h"

namespace weft::runtime {

/// Two buffers for one thread, which fills them. Another thread carries their contents away, one after the other.
class FillAhead {
 public:
  using Allocate = std::function<std::unique_ptr<kernels::Memory>(std::size_t bytes)>;
  explicit FillAhead(Allocate allocate) : allocate_(std::move(allocate)) {}

  /// The buffer to fill next. Valid until the second carry() from now has returned.
  std::byte* next(std::size_t bytes) {
    auto& memory = buffers_[at_];
    if (!memory || memory->bytes() < bytes) memory.reset(), memory = allocate_(bytes);
    return memory->data();
  }
  /// Waits for what is under way, and throws what it threw. Then calls take() on another thread, which may read the
  /// buffer of the last next().
  template <class Take> void carry(Take take) {
    finish();
    at_ = 1 - at_;
    under_way_ = std::async(std::launch::async, std::move(take));
  }
  void finish() {
    if (under_way_.valid()) under_way_.get();
  }

 private:
  Allocate allocate_;
  std::array<std::unique_ptr<kernels::Memory>, 2> buffers_;
  std::size_t at_ = 0;
  std::future<void> under_way_;  // its destructor waits, so it is the last member
};

}  // namespace weft::runtime
