// offload/disk_store.cc
#include "offload/disk_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include "kernels/error.h"
#include "offload/disk_channel.h"

namespace weft::offload {
namespace {

constexpr int kThreads = 16;

[[noreturn]] void fail(const std::string& path, const std::string& what, int code, const std::string& hint) {
  throw IoError(path + ": " + what + ": " + std::strerror(code) + "; " + hint);
}

/// Opens a file without a name, or one that loses its name at once.
int open_nameless(int directory) {
  const int fd = openat(directory, ".", O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL && errno != ENOENT)) return fd;
  std::random_device random;
  const std::string name = ".weft-spill-" + std::to_string(random()) + "-" + std::to_string(random());
  const int named = openat(directory, name.c_str(), O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, 0600);
  if (named >= 0) unlinkat(directory, name.c_str(), 0);
  return named;
}

/// Returns 0 or an errno. Tries again for a while, because the space of a process that was just killed becomes free
/// within about a second.
int reserve(DiskIo& io, int fd, std::uint64_t bytes) {
  constexpr int kTries = 8;
  for (int attempt = 1;; ++attempt) {
    int code = bytes == 0 ? 0 : io.allocate(fd, bytes);
    // If space cannot be reserved, a full disk shows only when it is written.
    if (code == EOPNOTSUPP) code = ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (code == 0) return 0;
    // ext4 keeps what a failed attempt reserved until the file is truncated.
    const bool cut = ftruncate(fd, 0) == 0;
    if (!cut || (code != ENOSPC && code != EDQUOT) || attempt == kTries) return code;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
  }
}

}  // namespace

DiskStore::DiskStore(DiskEngine engine, Decorate decorate, OnFullDisk on_full)
    : engine_(engine), decorate_(std::move(decorate)), on_full_(std::move(on_full)) {
  if (engine == DiskEngine::threads || engine == DiskEngine::buffered) return;
  if (auto io = make_io_uring(why_)) {
    engine_ = DiskEngine::io_uring;
    if (decorate_) io = decorate_(std::move(io));
    idle_.push_back(std::make_unique<DiskChannel>(std::move(io), on_full_));
  } else {
    if (engine == DiskEngine::io_uring)
      throw IoError("io_uring is not available: " + why_ + "; use --disk-engine auto or threads");
    engine_ = DiskEngine::threads;
  }
}

DiskStore::~DiskStore() = default;

std::string DiskStore::engine_line() const {
  std::string line = "disk: ";
  if (engine_ == DiskEngine::io_uring) line += "io_uring";
  else {
    if (!why_.empty()) line += "io_uring not available (" + why_ + "): ";
    line += std::to_string(kThreads) + " I/O threads";
  }
  line += engine_ == DiskEngine::buffered ? ", page cache" : ", O_DIRECT";
  line += ", 1 MiB x " + std::to_string(DiskChannel::kLarge);
  const std::lock_guard lock(mutex_);
  if (engine_ != DiskEngine::buffered)
    for (const auto& file : files_)
      if (!file->direct) return line + "; page cache for " + file->path + ", whose file system has no O_DIRECT";
  return line;
}

std::unique_ptr<DiskIo> DiskStore::make_io() const {
  std::string reason;
  auto io = engine_ == DiskEngine::io_uring ? make_io_uring(reason) : make_io_threads(kThreads);
  if (!io) throw IoError("io_uring is not available any more: " + reason + "; use --disk-engine threads");
  return decorate_ ? decorate_(std::move(io)) : std::move(io);
}

template <class Use> auto DiskStore::with_channel(const Use& use) {
  std::unique_ptr<DiskChannel> channel;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      channel = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!channel) {
    channel = std::make_unique<DiskChannel>(make_io(), on_full_);
    const std::lock_guard lock(mutex_);
    idle_.reserve(++channels_);  // so that giving it back cannot fail
  }
  struct Return {
    DiskStore& store;
    std::unique_ptr<DiskChannel>& channel;
    ~Return() {
      store.bytes_read_ += channel->take_bytes_read();
      store.bytes_written_ += channel->take_bytes_written();
      channel->forget();
      if (!channel->usable()) return;
      const std::lock_guard lock(store.mutex_);
      store.idle_.push_back(std::move(channel));
    }
  } give_back{*this, channel};
  return use(*channel);
}

DiskFile& DiskStore::file(FileId id) const {
  const std::lock_guard lock(mutex_);
  const auto index = static_cast<std::size_t>(id);
  if (index >= files_.size()) throw UsageError("disk store: there is no file " + std::to_string(index));
  return *files_[index];
}

FileId DiskStore::keep(std::unique_ptr<DiskFile> file) {
  if (engine_ == DiskEngine::buffered) file->set_direct(false);
  else file->try_direct();
  const std::lock_guard lock(mutex_);
  files_.push_back(std::move(file));
  return static_cast<FileId>(files_.size() - 1);
}

std::uint64_t DiskStore::size(FileId id) const { return file(id).size; }
const std::string& DiskStore::path(FileId id) const { return file(id).path; }

FileId DiskStore::open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO of that name must not block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail(path, "cannot be opened for reading", errno, "check the path and its permissions");
  return adopt(fd, path);
}

FileId DiskStore::adopt(int fd, const std::string& path) {
  auto file = std::make_unique<DiskFile>(path, fd);
  struct stat status {};
  if (fstat(fd, &status) != 0) fail(path, "cannot be examined", errno, "check the file system");
  if (!S_ISREG(status.st_mode)) throw IoError(path + ": is not a regular file; name a checkpoint file");
  file->size = static_cast<std::uint64_t>(status.st_size);
  return keep(std::move(file));
}

FileId DiskStore::create_spill(const std::string& directory, std::uint64_t bytes) {
  const int directory_fd = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) fail(directory, "cannot be used for spilling", errno, "name a directory with --disk-dir");
  const int fd = open_nameless(directory_fd);
  const int code = errno;
  close(directory_fd);
  if (fd < 0) fail(directory, "no spill file can be made here", code, "name another directory with --disk-dir");

  auto file = std::make_unique<DiskFile>(directory + " (spill)", fd);
  bytes = round_up(bytes, kSpillPage);
  if (const int failed = with_channel([&](DiskChannel& channel) { return reserve(channel.io(), fd, bytes); })) {
    struct statvfs space {};
    const bool known = fstatvfs(fd, &space) == 0;
    const std::string free = known ? std::to_string(std::uint64_t{space.f_bavail} * space.f_frsize) : "?";
    if (failed != ENOSPC && failed != EDQUOT && failed != EFBIG)
      fail(directory, "no space can be reserved", failed, "name another directory with --disk-dir");
    throw CapacityError(directory + ": the spill file needs " + std::to_string(bytes) + " bytes, " + free +
                        " are free (" + std::strerror(failed) +
                        "); free space, name another directory with --disk-dir, or place less on disk");
  }
  file->size = bytes;
  file->spill = true;
  file->pages.resize(bytes / kSpillPage);
  return keep(std::move(file));
}

void DiskStore::read(const Extent& extent, std::byte* to) {
  const ReadRequest request{extent, to};
  read({&request, 1});
}

void DiskStore::write(const Extent& extent, const std::byte* from) {
  const WriteRequest request{extent, from};
  write({&request, 1});
}

namespace {

void check_range(const DiskFile& file, const Extent& extent, const char* verb) {
  const std::uint64_t limit = round_up(file.size, kPage);
  if (extent.offset > limit || extent.bytes > limit - extent.offset)
    throw IoError(file.path + ": cannot " + verb + " " + std::to_string(extent.bytes) + " bytes at offset " +
                  std::to_string(extent.offset) + ": the file has " + std::to_string(file.size) +
                  " bytes; is it cut off?");
  if (file.spill && extent.offset % kSpillPage != 0)
    throw UsageError(file.path + ": offset " + std::to_string(extent.offset) + " is not at the start of a page of " +
                     std::to_string(kSpillPage) + " bytes");
}

void check_written(const DiskFile& file, const Extent& extent) {
  for (std::uint64_t at = 0; at < extent.bytes; at += kSpillPage) {
    const DiskFile::Page& page = file.pages[(extent.offset + at) / kSpillPage];
    const std::uint64_t wanted = std::min<std::uint64_t>(kSpillPage, extent.bytes - at);
    if (page.bytes != wanted)
      throw IoError(file.path + ": page " + std::to_string((extent.offset + at) / kSpillPage) + " holds " +
                    std::to_string(page.bytes) + " bytes, " + std::to_string(wanted) +
                    " are wanted; read just what was written");
  }
}

}  // namespace

void DiskStore::read(std::span<const ReadRequest> requests) {
  for (const ReadRequest& request : requests) {
    const DiskFile& from = file(request.extent.file);
    check_range(from, request.extent, "read");
    if (from.spill) check_written(from, request.extent);
  }
  with_channel([&](DiskChannel& channel) {
    for (const auto& [extent, to] : requests) channel.add(file(extent.file), false, extent.offset, extent.bytes, to);
    channel.run();
  });
}

void DiskStore::write(std::span<const WriteRequest> requests) {
  for (const WriteRequest& request : requests) {
    const DiskFile& to = file(request.extent.file);
    check_range(to, request.extent, "write");
    if (!to.spill) throw UsageError(to.path + ": is open for reading only");
  }
  with_channel([&](DiskChannel& channel) {
    // Nothing is written through the pointer; the type serves transfers in both directions.
    for (const auto& [extent, from] : requests)
      channel.add(file(extent.file), true, extent.offset, extent.bytes, const_cast<std::byte*>(from));
    channel.run();
  });
}

}  // namespace weft::offload
