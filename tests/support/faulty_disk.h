// tests/support/faulty_disk.h: a disk that fails as a test tells it to.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "offload/disk_io.h"

namespace weft::test {

/// The faults to inject. The functions are called from any thread, one at a time.
struct DiskFaults {
  /// Called before each transfer. It may shorten the transfer, or return a result in its place.
  std::function<std::optional<std::int64_t>(offload::DiskTransfer&)> before;
  /// Called after each read. It may spoil the data.
  std::function<void(const offload::DiskTransfer&)> after_read;
  /// Called before space is reserved. It may return 0 or an errno in place of the reservation.
  std::function<std::optional<int>(std::uint64_t bytes)> allocate;
  std::atomic<int> in_flight{0}, most_in_flight{0};
  std::mutex mutex;
};

class FaultyDiskIo : public offload::DiskIo {
 public:
  FaultyDiskIo(std::unique_ptr<offload::DiskIo> io, DiskFaults& faults) : io_(std::move(io)), faults_(faults) {}

  void submit(const offload::DiskTransfer& transfer) override {
    offload::DiskTransfer changed = transfer;
    const std::lock_guard lock(faults_.mutex);
    const int in_flight = ++faults_.in_flight;
    if (in_flight > faults_.most_in_flight) faults_.most_in_flight = in_flight;
    if (faults_.before)
      if (const auto result = faults_.before(changed)) {
        made_up_.push_back({transfer.tag, *result});
        return;
      }
    real_[transfer.tag] = changed;
    io_->submit(changed);
  }

  offload::DiskResult reap() override {
    offload::DiskResult result;
    // Real results come first, so that made-up ones do not hide that real transfers are still in flight.
    if (!real_.empty()) {
      result = io_->reap();
      const auto transfer = real_.extract(result.tag).mapped();
      const std::lock_guard lock(faults_.mutex);
      if (!transfer.write && result.result > 0 && faults_.after_read) faults_.after_read(transfer);
    } else {
      result = made_up_.front();
      made_up_.pop_front();
    }
    --faults_.in_flight;
    return result;
  }

  int allocate(int fd, std::uint64_t bytes) override {
    if (faults_.allocate)
      if (const auto code = faults_.allocate(bytes)) return *code;
    return io_->allocate(fd, bytes);
  }

 private:
  std::unique_ptr<offload::DiskIo> io_;
  DiskFaults& faults_;
  std::map<std::size_t, offload::DiskTransfer> real_;
  std::deque<offload::DiskResult> made_up_;
};

/// Makes the argument of DiskStore that injects `faults`, which must outlive the store.
inline auto with_faults(DiskFaults& faults) {
  return [&faults](std::unique_ptr<offload::DiskIo> io) -> std::unique_ptr<offload::DiskIo> {
    return std::make_unique<FaultyDiskIo>(std::move(io), faults);
  };
}

}  // namespace weft::test
