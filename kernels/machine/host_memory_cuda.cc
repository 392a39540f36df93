#include "kernels/machine/host_memory_cuda.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <iterator>
#include <utility>

#include "kernels/error.h"
#include "kernels/machine/host_machine.h"

namespace weft::kernels::cuda {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kLeastPiece = 16 << 20;  // the smallest registration that is worth a try

void note(std::string& why, const std::string& reason) {
  if (why.find(reason) == std::string::npos) why += (why.empty() ? "" : "; ") + reason;
}

/// Notes a refusal and forgets its error. Returns false. Throws DeviceError if the device is broken, whose error stays.
bool refused(std::string& why, const char* call, cudaError_t error) {
  cudaGetLastError();
  check(cudaPeekAtLastError(), call);
  note(why, std::string(call) + ": " + cudaGetErrorName(error));
  return false;
}

}  // namespace

void HostRanges::add(const std::byte* begin, std::size_t bytes, bool pageable) {
  const std::lock_guard lock(mutex_);
  ranges_[begin] = {begin + bytes, pageable};
  any_ = true;
}

void HostRanges::remove(const std::byte* begin) {
  const std::lock_guard lock(mutex_);
  ranges_.erase(begin);
  any_ = !ranges_.empty();
}

HostRanges::Part HostRanges::part(const void* address, std::size_t bytes) const {
  if (!any_) return {bytes, false};
  const std::lock_guard lock(mutex_);
  const auto* const p = static_cast<const std::byte*>(address);
  const auto after = ranges_.upper_bound(p);
  if (after == ranges_.begin() || p >= std::prev(after)->second.end) return {bytes, false};
  const Range& range = std::prev(after)->second;
  return {std::min(bytes, static_cast<std::size_t>(range.end - p)), range.pageable};
}

bool HostRanges::pageable(const void* address, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(address);
  do {
    const Part next = part(at, bytes);
    if (next.pageable) return true;
    at += next.bytes, bytes -= next.bytes;
  } while (bytes > 0);
  return false;
}

std::string HostRanges::trouble() const {
  const std::lock_guard lock(mutex_);
  return trouble_;
}

void HostRanges::set_trouble(std::string text) {
  const std::lock_guard lock(mutex_);
  trouble_ = std::move(text);
}

CudaHostMemory::CudaHostMemory(std::size_t bytes, const HostPinning& pinning, HostRanges& ranges)
    : pinning_(pinning), ranges_(ranges) {
  bytes_ = bytes;
  require_available(bytes);
  try {
    bytes <= kPinned ? pin_all() : pin_large();
  } catch (...) {
    give_back();
    throw;
  }
}

CudaHostMemory::~CudaHostMemory() { give_back(); }

void CudaHostMemory::pin_all() {
  std::string why;
  if (bytes_ <= kSmall && allocate(why)) return;
  if (map_and_register(why)) return add_ranges();
  give_back();
  if (bytes_ > kSmall && allocate(why)) return;
  throw CapacityError("host memory: " + std::to_string(bytes_) + " bytes were to be pinned for the GPU, the system " +
                      "refuses (" + why + "); raise the limit (ulimit -l)");
}

void CudaHostMemory::pin_large() {
  std::string why;
  if (pinning_.registers && map_and_register(why) && leaves_room(why)) return add_ranges();
  give_back();
  if (allocate(why) && leaves_room(why)) return;
  give_back();
  map_and_register(why);
  while (!pieces_.empty() && !leaves_room(why)) {
    cudaHostUnregister(pieces_.back().begin);
    pieces_.pop_back();
  }
  add_ranges();
  ranges_.set_trouble(mebibytes(bytes_ - registered()) + " of host memory are not pinned (" + why +
                      "), so copies go by a ring, slower than the link allows; raise the limit (ulimit -l) or lower "
                      "--host-memory");
}

bool CudaHostMemory::allocate(std::string& why) {
  void* memory = nullptr;
  // The driver may align to less than a disk's direct reads need.
  const cudaError_t error = cudaHostAlloc(&memory, bytes_ + kPage, cudaHostAllocPortable | cudaHostAllocMapped);
  if (error != cudaSuccess) return refused(why, "cudaHostAlloc", error);
  allocated_ = HostMemory(memory);
  data_ = static_cast<std::byte*>(memory) + (kPage - reinterpret_cast<std::uintptr_t>(memory) % kPage) % kPage;
  return true;
}

/// Makes the pages, and registers them if the device can. Returns whether all are registered.
bool CudaHostMemory::map_and_register(std::string& why) {
  mapped_ = std::make_unique<MappedMemory>(bytes_);
  data_ = mapped_->data();
  prefer_node(data_, bytes_, pinning_.node);
  if (!pinning_.registers) note(why, "the device does not register host memory");
  std::exception_ptr broken;
  mapped_->in_slices([&](std::byte* begin, std::size_t bytes) noexcept {
    try {
      register_slice(begin, bytes, why);
    } catch (...) {
      const std::lock_guard lock(mutex_);
      broken = std::current_exception();
    }
  });
  if (broken) std::rethrow_exception(broken);
  const auto by_place = [](const Piece& a, const Piece& b) { return a.begin < b.begin; };
  std::sort(pieces_.begin(), pieces_.end(), by_place);
  return registered() == bytes_;
}

std::size_t CudaHostMemory::registered() const {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces_) bytes += piece.bytes;
  return bytes;
}

/// Touches pages and registers them in pieces that are halved whenever one is refused, until the smallest is.
void CudaHostMemory::register_slice(std::byte* begin, std::size_t bytes, std::string& why) {
  for (std::size_t i = 0; i < bytes; i += kPage) static_cast<volatile std::byte*>(begin)[i] = std::byte{};
  if (!pinning_.registers) return;
  std::size_t done = 0;
  for (std::size_t most = bytes; done < bytes;) {
    const std::size_t size = std::min(most, bytes - done);
    const cudaError_t error = cudaHostRegister(begin + done, size, cudaHostRegisterPortable | cudaHostRegisterMapped);
    const std::lock_guard lock(mutex_);
    if (error == cudaSuccess) {
      pieces_.push_back({begin + done, size});
      done += size;
      continue;
    }
    std::string refusal;
    refused(refusal, "cudaHostRegister", error);
    if (size <= kLeastPiece) return note(why, refusal);
    most = (size / 2 + kPage - 1) / kPage * kPage;
  }
}

/// Whether small memory can still be pinned. Streams and results ask for it later.
bool CudaHostMemory::leaves_room(std::string& why) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, kPinned, cudaHostAllocPortable);
  if (error != cudaSuccess) return refused(why, "cudaHostAlloc", error);
  cudaFreeHost(memory);
  return true;
}

/// Notes where copies must be cut, and what must go by the ring.
void CudaHostMemory::add_ranges() {
  if (pieces_.size() == 1 && pieces_.front().bytes == bytes_) return;
  const auto add = [this](const std::byte* begin, std::size_t bytes, bool pageable) {
    if (bytes == 0) return;
    ranges_.add(begin, bytes, pageable);
    in_ranges_.push_back(begin);
  };
  const std::byte* at = data_;
  for (const Piece& piece : pieces_) {
    add(at, static_cast<std::size_t>(piece.begin - at), true);
    add(piece.begin, piece.bytes, false);
    at = piece.begin + piece.bytes;
  }
  add(at, static_cast<std::size_t>(data_ + bytes_ - at), true);
}

/// Several threads give back what several threads have taken: the driver lets go of each page by itself.
void CudaHostMemory::give_back() noexcept {
  for (const std::byte* begin : in_ranges_) ranges_.remove(begin);
  in_ranges_.clear();
  allocated_ = HostMemory();
  if (mapped_)
    mapped_->in_slices([this](const std::byte* begin, std::size_t bytes) noexcept {
      for (const Piece& piece : pieces_)
        if (piece.begin >= begin && piece.begin < begin + bytes) cudaHostUnregister(piece.begin);
    });
  pieces_.clear();
  mapped_.reset();
}

}  // namespace weft::kernels::cuda
