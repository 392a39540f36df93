// kernels/machine/host_memory_cuda.h: host memory that a GPU reads and writes without staging.
#pragma once

#include <atomic>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/machine/cuda.h"
#include "kernels/machine/mapped_memory.h"

namespace weft::kernels::cuda {

/// Host memory that needs care when it is copied. Memory that could not be pinned goes through a ring of pinned pieces,
/// and ops cannot use it. Memory that the driver pinned in several registrations must be copied in parts, because a
/// copy that spans two of them fails (cudaErrorInvalidValue).
class HostRanges {
 public:
  void add(const std::byte* begin, std::size_t bytes, bool pageable);
  void remove(const std::byte* begin);

  /// The beginning of [address, address + bytes) that one copy may take.
  struct Part {
    std::size_t bytes = 0;
    bool pageable = false;
  };
  Part part(const void* address, std::size_t bytes) const;
  /// Whether any byte of the range could not be pinned.
  bool pageable(const void* address, std::size_t bytes) const;

  /// The reason why memory stayed pageable the last time that some did; empty if all is pinned.
  std::string trouble() const;
  void set_trouble(std::string text);

 private:
  struct Range {
    const std::byte* end = nullptr;
    bool pageable = false;
  };
  mutable std::mutex mutex_;
  std::map<const std::byte*, Range> ranges_;  // keyed by their beginnings
  std::atomic<bool> any_{false};
  std::string trouble_;
};

/// The properties of the device's system that decide how host memory is pinned.
struct HostPinning {
  bool registers = true;  ///< memory can be registered, and the device reaches it by the host's addresses
  int node = -1;          ///< the memory node next to the device, or -1
};

/// Host memory that the device reaches by the host's addresses, as far as the system allows. Up to kSmall bytes come
/// from cudaHostAlloc, more are pages that several threads touch and register at once, because cudaHostAlloc takes 0.4
/// s a GiB. If the system refuses one way, the other is tried: some virtual machines register nothing, and under
/// Windows (WSL2) the device does not reach registered memory by the host's addresses. If it refuses both, memory of
/// more than kPinned bytes stays pageable but for what could be registered; less throws CapacityError, because results
/// and staging need it. Memory of more than kPinned bytes leaves room for kPinned bytes more under the system's limit.
class CudaHostMemory final : public Memory {
 public:
  CudaHostMemory(std::size_t bytes, const HostPinning& pinning, HostRanges& ranges);
  ~CudaHostMemory() override;

  static constexpr std::size_t kSmall = 1 << 20, kPinned = 64 << 20;

 private:
  struct Piece {
    std::byte* begin;
    std::size_t bytes;
  };

  void pin_all();
  void pin_large();
  bool allocate(std::string& why);
  bool map_and_register(std::string& why);
  std::size_t registered() const;  // bytes
  void register_slice(std::byte* begin, std::size_t bytes, std::string& why);
  static bool leaves_room(std::string& why);
  void add_ranges();
  void give_back() noexcept;

  const HostPinning pinning_;
  HostRanges& ranges_;
  HostMemory allocated_;                  // by cudaHostAlloc, or
  std::unique_ptr<MappedMemory> mapped_;  // pages, and
  std::mutex mutex_;                      // while several threads register them
  std::vector<Piece> pieces_;             // their registrations, in order
  std::vector<const std::byte*> in_ranges_;
};

}  // namespace weft::kernels::cuda
