// offload/disk_io_uring.cc: transfers by io_uring. The only file that uses liburing.
#include <liburing.h>
#include <sched.h>

#include <cerrno>
#include <cstring>

#include "kernels/error.h"
#include "offload/disk_io.h"

namespace weft::offload {
namespace {

class UringIo : public DiskIo {
 public:
  ~UringIo() override {
    if (made_) io_uring_queue_exit(&ring_);
  }
  /// Creates the ring and tries it out. Returns 0 or -errno.
  int make() {
    if (const int status = io_uring_queue_init(kMostInFlight, &ring_, 0); status != 0) return status;
    made_ = true;
    // Some sandboxes allow creating the ring but not using it.
    io_uring_prep_nop(io_uring_get_sqe(&ring_));
    int status = io_uring_submit(&ring_);
    io_uring_cqe* entry = nullptr;
    if (status == 1) do
        status = io_uring_wait_cqe(&ring_, &entry);
      while (status == -EINTR);
    if (entry) io_uring_cqe_seen(&ring_, entry);
    return status;
  }

  void submit(const DiskTransfer& transfer) override {
    // Never null: at most kMostInFlight, the size of the ring, are in flight. reap() hands the entry to the kernel
    // together with its neighbours, in one call.
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    const auto bytes = static_cast<unsigned>(transfer.bytes);
    if (transfer.write) io_uring_prep_write(entry, transfer.fd, transfer.data, bytes, transfer.offset);
    else io_uring_prep_read(entry, transfer.fd, transfer.data, bytes, transfer.offset);
    io_uring_sqe_set_data64(entry, transfer.tag);
  }

  DiskResult reap() override {
    for (;;) {
      const int status = io_uring_submit_and_wait(&ring_, 1);
      io_uring_cqe* entry = nullptr;
      if (io_uring_peek_cqe(&ring_, &entry) == 0) {
        const DiskResult result{static_cast<std::size_t>(entry->user_data), entry->res};
        io_uring_cqe_seen(&ring_, entry);
        return result;
      }
      // A signal interrupts the wait even with SA_RESTART; the other two errors are temporary.
      if (status >= 0 || status == -EINTR) continue;
      if (status != -EAGAIN && status != -EBUSY)
        throw IoError(std::string("io_uring failed: ") + std::strerror(-status) + "; try --disk-engine threads");
      sched_yield();
    }
  }

 private:
  io_uring ring_{};
  bool made_ = false;
};

}  // namespace

std::unique_ptr<DiskIo> make_io_uring(std::string& reason) {
  auto io = std::make_unique<UringIo>();
  const int status = io->make();
  if (status == 0) return io;
  reason = std::strerror(-status);
  if (status == -EPERM) reason += "; Docker's default seccomp profile blocks it";
  return nullptr;
}

}  // namespace weft::offload
