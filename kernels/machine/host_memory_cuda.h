// kernels/machine/host_memory_cuda.h: host memory that a GPU reads and writes without staging.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kernels/error.h"
#include "kernels/machine/cuda.h"
#include "kernels/machine/host_machine.h"
#include "kernels/machine/mapped_memory.h"

namespace weft::kernels::cuda {

/// Host memory that needs care when it is copied. Memory that could not be pinned goes through a ring of pinned pieces,
/// and ops cannot use it. Memory that the driver pinned in several registrations must be copied in parts, because a
/// copy that spans two of them fails (cudaErrorInvalidValue).
class HostRanges {
 public:
  void add(const std::byte* begin, std::size_t bytes, bool pageable) {
    const std::lock_guard lock(mutex_);
    ranges_[begin] = {begin + bytes, pageable};
    any_ = true;
  }
  void remove(const std::byte* begin) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(begin);
    any_ = !ranges_.empty();
  }
  bool pageable(const void* address) const {
    const Range range = find(address);
    return range.end && range.pageable;
  }
  /// The number of bytes, of `bytes` from `address` on, that one copy may take.
  std::size_t together(const void* address, std::size_t bytes) const {
    const Range range = find(address);
    if (!range.end) return bytes;
    return std::min(bytes, static_cast<std::size_t>(range.end - static_cast<const std::byte*>(address)));
  }
  /// The reason why memory stayed pageable the last time that some did; empty if all is pinned.
  std::string trouble() const {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }
  void set_trouble(std::string text) {
    const std::lock_guard lock(mutex_);
    trouble_ = std::move(text);
  }

 private:
  struct Range {
    const std::byte* end = nullptr;
    bool pageable = false;
  };
  Range find(const void* address) const {
    if (!any_) return {};
    const std::lock_guard lock(mutex_);
    const auto* const p = static_cast<const std::byte*>(address);
    const auto after = ranges_.upper_bound(p);
    if (after == ranges_.begin() || p >= std::prev(after)->second.end) return {};
    return std::prev(after)->second;
  }

  mutable std::mutex mutex_;
  std::map<const std::byte*, Range> ranges_;  // keyed by their beginnings
  std::atomic<bool> any_{false};
  std::string trouble_;
};

/// The properties of the device's system that decide how host memory is pinned.
struct HostPinning {
  bool registers = true;  ///< memory can be registered; the device reaches it by the host's addresses
  int node = -1;          ///< the memory node next to the device, or -1
};

/// Pages that several threads touch at once and that are then registered: cudaHostAlloc would take a minute for 100 GB.
/// The device reaches them by the same addresses. They are one registration, or several if the driver takes no larger
/// ones. If it takes none at all, for whatever reason, large memory stays pageable; small memory, which results and
/// staging need, must be pinned (CapacityError).
class CudaHostMemory final : public MappedMemory {
 public:
  CudaHostMemory(std::size_t bytes, const HostPinning& pinning, HostRanges& ranges)
      : MappedMemory(bytes), ranges_(ranges) {
    prefer_node(data_, bytes_, pinning.node);
    touch();
    try {
      std::string refusal = "the device does not register host memory";
      if (!pinning.registers || !pin(refusal)) stay_pageable(refusal);
    } catch (...) {
      unpin();
      throw;
    }
    if (pieces_.size() > 1)
      for (const Piece& piece : pieces_) ranges_.add(piece.begin, piece.bytes, false);
  }
  ~CudaHostMemory() override {
    if (pageable_) ranges_.remove(data_);
    if (pieces_.size() > 1)
      for (const Piece& piece : pieces_) ranges_.remove(piece.begin);
    unpin();
  }

 private:
  static constexpr std::size_t kSmall = 64 << 20, kLeastPiece = 16 << 20;
  static constexpr std::size_t kWorthAThread = 64 << 20, kPage = 4096;
  struct Piece {
    std::byte* begin;
    std::size_t bytes;
  };

  void touch() const {
    const std::size_t most = std::min<std::size_t>(std::max(1u, std::thread::hardware_concurrency()), 16);
    const std::size_t count = std::min(most, bytes_ / kWorthAThread + 1);
    std::vector<std::jthread> threads;
    for (std::size_t t = 0; t < count; ++t)
      threads.emplace_back([this, t, count] {
        const std::size_t begin = bytes_ * t / count, end = bytes_ * (t + 1) / count;
        for (std::size_t i = begin; i < end; i += kPage) static_cast<volatile std::byte*>(data_)[i] = std::byte{};
      });
  }
  /// Pins in pieces that are halved whenever one is refused. Returns false, with CUDA's message, if the smallest is
  /// refused.
  bool pin(std::string& refusal) {
    std::size_t done = 0;
    for (std::size_t most = bytes_; done < bytes_;) {
      const std::size_t size = std::min(most, bytes_ - done);
      const cudaError_t error = cudaHostRegister(data_ + done, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
      if (error == cudaSuccess) {
        pieces_.push_back({data_ + done, size});
        done += size;
        continue;
      }
      cudaGetLastError();
      check(cudaPeekAtLastError(), "cudaHostRegister");  // a broken device's error stays
      refusal = std::string("cudaHostRegister: ") + cudaGetErrorName(error);
      if (size <= kLeastPiece) return false;
      most = (size / 2 + kPage - 1) / kPage * kPage;
    }
    return true;
  }
  void unpin() noexcept {
    for (const Piece& piece : pieces_) cudaHostUnregister(piece.begin);
    pieces_.clear();
  }
  void stay_pageable(const std::string& refusal) {
    unpin();
    if (bytes_ <= kSmall)
      throw CapacityError("host memory: " + std::to_string(bytes_) + " bytes were to be pinned for the GPU, the " +
                          "system refuses (" + refusal + "); raise the limit (ulimit -l)");
    ranges_.add(data_, bytes_, true);
    pageable_ = true;
    ranges_.set_trouble(mebibytes(bytes_) + " of host memory are not pinned (" + refusal +
                        "), so copies go by a ring, slower than the link allows; raise the limit (ulimit -l) or lower "
                        "--host-memory");
  }

  HostRanges& ranges_;
  std::vector<Piece> pieces_;  // registrations, in order
  bool pageable_ = false;
};

}  // namespace weft::kernels::cuda
