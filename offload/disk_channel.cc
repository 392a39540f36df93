// offload/disk_channel.cc
#include "offload/disk_channel.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "offload/disk_store.h"

namespace weft::offload {
namespace {

constexpr int kAttempts = 3;
static_assert(DiskChannel::kPiece % kSpillPage == 0);

std::string place(const DiskFile& file, bool write, std::size_t bytes, std::uint64_t offset) {
  return file.path + ": " + (write ? "write" : "read") + " of " + std::to_string(bytes) + " bytes at offset " +
         std::to_string(offset);
}

}  // namespace

DiskFile::~DiskFile() { close(fd); }

void DiskFile::set_direct(bool on) {
  direct = false;
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0) return;
  // O_NONBLOCK was needed only for opening; io_uring would obey it.
  const bool done = fcntl(fd, F_SETFL, (on ? flags | O_DIRECT : flags & ~O_DIRECT) & ~O_NONBLOCK) == 0;
  if (!done && on) fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
  direct = on && done;
}

void DiskFile::try_direct() {
  set_direct(true);
  if (!direct) return;
  alignas(kPage) std::byte page[kPage];
  if (pread(fd, page, kPage, 0) < 0 && errno == EINVAL) set_direct(false);
}

void DiskChannel::FreeAligned::operator()(std::byte* memory) const { std::free(memory); }

void DiskChannel::add(DiskFile& file, bool write, std::uint64_t offset, std::uint64_t bytes, std::byte* memory) {
  const bool direct = file.direct;
  const std::uint64_t end = offset + bytes;
  const bool congruent = (reinterpret_cast<std::uintptr_t>(memory) - offset) % kPage == 0;
  while (offset < end) {
    std::uint64_t stop = std::min(end, offset + kPiece);
    if (direct && !congruent)
      stop = std::min(end, round_down(offset, kPiece) + kPiece);  // an aligned superset fits kPiece
    else if (direct && offset % kPage != 0) stop = std::min(end, round_up(offset, kPage));
    else if (direct && !file.spill && stop - offset >= kPage) stop = round_down(stop, kPage);

    Piece piece;
    piece.file = &file;
    piece.write = write;
    piece.direct = direct;
    piece.offset = offset;
    piece.bytes = stop - offset;
    piece.memory = memory;
    piece.bounce = direct && !(congruent && offset % kPage == 0 && stop % kPage == 0);
    piece.begin = piece.bounce ? round_down(offset, kPage) : offset;
    piece.length = (piece.bounce ? round_up(stop, kPage) : stop) - piece.begin;
    piece.required = write ? piece.length : std::min(stop, std::max(file.size, offset)) - piece.begin;
    if (write)
      for (std::uint64_t page = offset / kSpillPage; page * kSpillPage < stop; ++page) file.pages[page].bytes = 0;
    // The whole piece may be padding past the end.
    if (write || offset < file.size) pieces_.push_back(piece);
    memory += stop - offset;
    offset = stop;
  }
}

std::vector<std::size_t>& DiskChannel::slots_for(const Piece& piece) {
  return piece.length <= kSmallPiece ? small_ : large_;
}

void DiskChannel::run() {
  const std::size_t pieces = pieces_.size();
  large_.clear();
  small_.clear();
  for (std::size_t slot = 0; slot < kLarge + kSmall; ++slot) (slot < kLarge ? large_ : small_).push_back(slot);

  std::exception_ptr error;
  std::size_t next = 0, in_flight = 0;
  for (;;) {
    try {
      for (; !error && next < pieces && !slots_for(pieces_[next]).empty(); ++next) {
        start(pieces_[next]);
        ++in_flight;
      }
    } catch (...) {
      error = std::current_exception();
    }
    if (in_flight == 0) break;  // even after a failure nothing may be written to the caller's memory once this returns

    DiskResult result;
    try {
      result = io_->reap();
    } catch (...) {
      usable_ = false;
      pieces_.clear();
      throw;
    }
    Piece& piece = pieces_[result.tag];
    try {
      if (!settle(piece, result.result)) {
        if (!error) {
          submit(piece);
          continue;
        }
      }
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    --in_flight;
    slots_for(piece).push_back(piece.slot);
  }
  pieces_.clear();
  if (error) std::rethrow_exception(error);
}

void DiskChannel::start(Piece& piece) {
  auto& slots = slots_for(piece);
  piece.slot = slots.back();
  piece.data = piece.memory;
  if (piece.bounce) {
    constexpr std::size_t kBounce = kLarge * kPiece + kSmall * kSmallPiece;
    if (!bounce_) bounce_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, kBounce)));
    if (!bounce_) throw std::bad_alloc();
    piece.data = bounce_.get() +
                 (piece.slot < kLarge ? piece.slot * kPiece : kLarge * kPiece + (piece.slot - kLarge) * kSmallPiece);
    if (piece.write) {
      std::memcpy(piece.data, piece.memory, piece.bytes);
      std::memset(piece.data + piece.bytes, 0, piece.length - piece.bytes);
    }
  }
  if (piece.write) write_checksums(piece);
  submit(piece);
  slots.pop_back();
}

void DiskChannel::submit(Piece& piece) {
  io_->submit({piece.file->fd, piece.write, piece.begin + piece.moved, piece.length - piece.moved,
               piece.data + piece.moved, static_cast<std::size_t>(&piece - pieces_.data())});
}

/// Returns true if the piece is done, false if the rest of it must be submitted.
bool DiskChannel::settle(Piece& piece, std::int64_t result) {
  DiskFile& file = *piece.file;
  if (result < 0) {
    const int code = static_cast<int>(-result);
    if (code == EAGAIN || code == EINTR) return false;
    if ((code == EINVAL || code == EFAULT) && piece.direct) {
      // Some file systems accept O_DIRECT at open and refuse it here; others cannot reach memory that a driver made.
      file.set_direct(false);
      piece.direct = false;
      return false;
    }
    const std::string where = place(file, piece.write, piece.bytes, piece.offset);
    if (piece.write && (code == ENOSPC || code == EDQUOT)) {
      const std::string full = where + " failed: " + std::strerror(code);
      if (on_full_ && on_full_(full)) return false;
      throw FullDisk(full + "; free space there, or name another directory with --disk-dir");
    }
    const std::string what = where + " failed: " + std::strerror(code) + "; check the disk";
    if (code != EIO || piece.write) throw IoError(what);
    retry(piece, what);
    return false;
  }
  (piece.write ? bytes_written_ : bytes_read_) += static_cast<std::uint64_t>(result);
  const std::size_t reached = piece.moved + static_cast<std::size_t>(result);
  if (reached >= piece.required) return finish(piece);

  // The rest of a direct transfer must start aligned, or the kernel refuses it.
  const std::size_t moved = piece.direct ? round_down(reached, kPage) : reached;
  if (moved == piece.moved) {
    struct stat now {};
    if (!piece.write && !file.spill && fstat(file.fd, &now) == 0 && static_cast<std::uint64_t>(now.st_size) < file.size)
      throw IoError(file.path + ": changed size while in use (was " + std::to_string(file.size) + " bytes, is " +
                    std::to_string(now.st_size) + "); restore the file and run again");
    retry(piece, place(file, piece.write, piece.bytes, piece.offset) + " stopped after " + std::to_string(reached) +
                     " bytes; check the disk");
  }
  piece.moved = moved;
  return false;
}

void DiskChannel::retry(Piece& piece, const std::string& reason) {
  if (++piece.failures < kAttempts) return;
  if (piece.file->spill && !piece.write) throw LostPage(reason);
  throw IoError(reason);
}

bool DiskChannel::finish(Piece& piece) {
  DiskFile& file = *piece.file;
  if (piece.write) {
    for (std::uint64_t at = 0; at < piece.bytes; at += kSpillPage) {
      DiskFile::Page& page = file.pages[(piece.offset + at) / kSpillPage];
      page.bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(kSpillPage, piece.bytes - at));
    }
    return true;
  }
  if (file.spill) {
    if (const auto page = bad_page(piece)) {
      if (piece.reread)
        throw LostPage(file.path + ": page " + std::to_string(*page) + " (offset " +
                       std::to_string(*page * kSpillPage) + ", write " + std::to_string(file.pages[*page].generation) +
                       ") is not what was written to it, twice; the disk is not to be trusted");
      piece.reread = true;
      piece.moved = 0;
      return false;
    }
  }
  if (piece.bounce)
    std::memcpy(piece.memory, piece.data + (piece.offset - piece.begin), piece.required - (piece.offset - piece.begin));
  return true;
}

void DiskChannel::write_checksums(Piece& piece) {
  for (std::uint64_t at = 0; at < piece.bytes; at += kSpillPage) {
    DiskFile::Page& page = piece.file->pages[(piece.offset + at) / kSpillPage];
    page.crc = crc32c(piece.data + at, std::min<std::size_t>(kSpillPage, piece.bytes - at));
    ++page.generation;
  }
}

std::optional<std::size_t> DiskChannel::bad_page(const Piece& piece) const {
  for (std::uint64_t at = 0; at < piece.bytes; at += kSpillPage) {
    const std::size_t page = (piece.offset + at) / kSpillPage;
    const std::size_t bytes = std::min<std::size_t>(kSpillPage, piece.bytes - at);
    if (crc32c(piece.data + at, bytes) != piece.file->pages[page].crc) return page;
  }
  return std::nullopt;
}

}  // namespace weft::offload
