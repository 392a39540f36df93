// tests/support/array.h: matrices in the memory of a place, with guard bytes around them.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <stdexcept>
#include <vector>

#include "kernels/tensor.h"
#include "tests/support/backends.h"

namespace weft::test {

/// A matrix in the memory of a place, with guard bytes right before and after it. It converts to a view of itself.
class Array {
 public:
  /// Every byte begins as 0xFF: NaN as a float, -1 as an int32.
  Array(const Place& place, std::int64_t rows, std::int64_t cols, DType dtype = DType::f32)
      : place_(&place), rows_(rows), cols_(cols), dtype_(dtype), bytes_(count() * size_of(dtype)) {
    if (place.on_host) host_.reset(new (std::align_val_t{64}) std::byte[bytes_ + 2 * kGuard]);
    else device_ = place.backend.allocate_device(bytes_ + 2 * kGuard);
    std::vector<std::byte> image(bytes_ + 2 * kGuard, kGuardByte);
    for (std::size_t i = 0; i < bytes_; ++i) image[kGuard + i] = std::byte{0xFF};
    put(base(), image.data(), image.size());
  }
  Array(const Place& place, const std::vector<float>& numbers, std::int64_t rows, std::int64_t cols,
        DType dtype = DType::f32)
      : Array(place, rows, cols, dtype) {
    set(numbers);
  }
  Array(const Place& place, const std::vector<std::int32_t>& numbers, std::int64_t rows, std::int64_t cols)
      : Array(place, rows, cols, DType::i32) {
    set(numbers);
  }

  void set(const std::vector<float>& numbers) {
    require(numbers.size() == count(), "wrong number of floats");
    std::vector<std::byte> image(bytes_);
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const auto put = [&](const auto& number) {
        std::memcpy(image.data() + i * sizeof number, &number, sizeof number);
      };
      if (dtype_ == DType::f32) put(numbers[i]);
      else if (dtype_ == DType::f16) put(f16(numbers[i]));
      else put(bf16(numbers[i]));
    }
    put(base() + kGuard, image.data(), bytes_);
  }
  void set(const std::vector<std::int32_t>& numbers) {
    require(numbers.size() == count() && dtype_ == DType::i32, "wrong number of integers");
    put(base() + kGuard, numbers.data(), bytes_);
  }

  /// Copies the bytes of an array of the same shape and type.
  void set(const Array& other) {
    const std::vector<std::byte> bytes = other.fetch();
    require(bytes.size() == bytes_, "another shape");
    put(base() + kGuard, bytes.data(), bytes_);
  }

  /// Returns the contents as floats. Throws if a guard byte has changed.
  std::vector<float> host() const {
    const std::vector<std::byte> image = fetch();
    std::vector<float> numbers(count());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      const std::byte* p = image.data() + i * size_of(dtype_);
      if (dtype_ == DType::f32) std::memcpy(&numbers[i], p, 4);
      else if (dtype_ == DType::f16) numbers[i] = static_cast<float>(read<f16>(p));
      else if (dtype_ == DType::bf16) numbers[i] = static_cast<float>(read<bf16>(p));
      else throw std::logic_error("integers are read with ints()");
    }
    return numbers;
  }
  std::vector<std::int32_t> ints() const {
    const std::vector<std::byte> image = fetch();
    std::vector<std::int32_t> numbers(count());
    std::memcpy(numbers.data(), image.data(), bytes_);
    return numbers;
  }
  /// Returns the bytes, for comparisons of bits. Throws if a guard byte has changed.
  std::vector<std::byte> fetch() const {
    std::vector<std::byte> image(bytes_ + 2 * kGuard);
    get(image.data(), base(), image.size());
    for (std::size_t i = 0; i < kGuard; ++i)
      require(image[i] == kGuardByte && image[kGuard + bytes_ + i] == kGuardByte,
              "a kernel wrote outside of its array");
    return {image.begin() + kGuard, image.begin() + static_cast<std::ptrdiff_t>(kGuard + bytes_)};
  }

  void* data() const { return base() + kGuard; }
  operator View() const { return {data(), dtype_, rows_, cols_}; }
  operator ConstView() const { return View(*this); }
  /// Columns [first, first + cols) of the matrix.
  View columns(std::int64_t first, std::int64_t cols) const {
    return {static_cast<std::byte*>(data()) + static_cast<std::size_t>(first) * size_of(dtype_), dtype_, rows_, cols,
            cols_};
  }

 private:
  static constexpr std::size_t kGuard = 64;
  static constexpr std::byte kGuardByte{0xA5};

  std::byte* base() const { return host_ ? host_.get() : device_->data(); }
  std::size_t count() const { return static_cast<std::size_t>(rows_ * cols_); }
  static void require(bool condition, const char* otherwise) {
    if (!condition) throw std::logic_error(otherwise);
  }
  template <class T> static T read(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  void put(std::byte* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    if (place_->on_host) {
      std::memcpy(to, from, bytes);
      return;
    }
    std::memcpy(place_->staging(bytes), from, bytes);
    place_->copy(to, place_->staging(bytes), bytes);
  }
  void get(std::byte* to, const std::byte* from, std::size_t bytes) const {
    if (place_->on_host) {
      std::memcpy(to, from, bytes);
      return;
    }
    place_->copy(place_->staging(bytes), from, bytes);
    std::memcpy(to, place_->staging(bytes), bytes);
  }

  const Place* place_;
  std::int64_t rows_, cols_;
  DType dtype_;
  std::size_t bytes_;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t{64}); }
  };
  std::unique_ptr<std::byte, Free> host_;  // a page of its own for each small array would cost more than the tests
  std::unique_ptr<kernels::Memory> device_;
};

/// Host memory (of allocate_host()) for results of an op. Every byte begins as 0xFF.
template <class T> class HostSpan {
 public:
  HostSpan(const Place& place, std::size_t count)
      : memory_(place.backend.allocate_host(count * sizeof(T))), span_(reinterpret_cast<T*>(memory_->data()), count) {
    std::memset(span_.data(), 0xFF, span_.size_bytes());
  }
  std::span<T> span() const { return span_; }
  std::vector<T> copy() const { return {span_.begin(), span_.end()}; }

 private:
  std::unique_ptr<kernels::Memory> memory_;
  std::span<T> span_;
};

}  // namespace weft::test
