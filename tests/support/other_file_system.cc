// A library to preload (LD_PRELOAD) that lets every file system be one that lacks something. OTHER_FILE_SYSTEM names
// what, in words separated by commas:
//
//   nfs        flock() wants a descriptor that is open for writing, as NFSv4 does
//   smb        a lock is mandatory: other descriptors of the file can neither read nor write, as on SMB
//   nolocks    flock() fails with the errno FLOCK_ERRNO
//   owner      all files belong to another user, as on a mount with uid=
//   nochmod    no mode can be changed
//   nameless   there are no files without a name (O_TMPFILE)
//   direct     O_DIRECT can be set, and transfers with it are refused, as on an overlay over squashfs
//   full       what is written at an offset finds the disk full while the file OTHER_FILE_SYSTEM_FULL is there
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <cstring>

namespace {

bool has(const char* word) {
  const char* const all = std::getenv("OTHER_FILE_SYSTEM");
  return all && std::strstr(all, word);
}

template <class Function> Function next(const char* name) { return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name)); }

std::atomic<int> locked{-1};
dev_t locked_device;
ino_t locked_inode;

using Fstat = int (*)(int, struct stat*);
using Stat = int (*)(const char*, struct stat*);

/// Whether another descriptor keeps a lock on the file of `fd`. A copy of a descriptor counts as the same.
bool is_kept_out(int fd) {
  static const auto real = next<Fstat>("fstat");
  struct stat status {};
  if (locked < 0 || fd == locked || real(fd, &status) != 0) return false;
  if (status.st_dev != locked_device || status.st_ino != locked_inode) return false;
  const off_t here = lseek(fd, 0, SEEK_CUR);  // copies share their offset
  lseek(fd, here + 1, SEEK_SET);
  const bool copy = lseek(locked, 0, SEEK_CUR) == here + 1;
  lseek(fd, here, SEEK_SET);
  return !copy;
}

bool is_refused_direct(int fd) { return has("direct") && (fcntl(fd, F_GETFL) & O_DIRECT) != 0; }

int disown(int result, struct stat* status) {
  if (result == 0 && has("owner") && (S_ISREG(status->st_mode) || S_ISLNK(status->st_mode))) status->st_uid = 4711;
  return result;
}

bool wants_nameless(int flags) { return (flags & O_TMPFILE) == O_TMPFILE && has("nameless"); }

}  // namespace

extern "C" {

int flock(int fd, int operation) {
  static const auto real = next<int (*)(int, int)>("flock");
  if (has("nolocks")) {
    errno = std::atoi(std::getenv("FLOCK_ERRNO"));
    return -1;
  }
  if (has("nfs") && (operation & LOCK_EX) != 0 && (fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDONLY) {
    errno = EBADF;
    return -1;
  }
  const int result = real(fd, operation);
  struct stat status {};
  if (result == 0 && has("smb") && next<Fstat>("fstat")(fd, &status) == 0) {
    locked_device = status.st_dev, locked_inode = status.st_ino;
    locked = fd;
  }
  return result;
}

int close(int fd) {
  static const auto real = next<int (*)(int)>("close");
  if (fd == locked) locked = -1;
  return real(fd);
}

ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t)>("write");
  if (is_kept_out(fd)) return errno = EACCES, -1;
  return real(fd, data, bytes);
}

ssize_t read(int fd, void* data, size_t bytes) {
  static const auto real = next<ssize_t (*)(int, void*, size_t)>("read");
  if (is_kept_out(fd)) return errno = EACCES, -1;
  return real(fd, data, bytes);
}

ssize_t pread64(int fd, void* data, size_t bytes, off_t offset) {
  static const auto real = next<ssize_t (*)(int, void*, size_t, off_t)>("pread64");
  if (is_refused_direct(fd)) return errno = EINVAL, -1;
  if (is_kept_out(fd)) return errno = EACCES, -1;
  return real(fd, data, bytes, offset);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) { return pread64(fd, data, bytes, offset); }

ssize_t pwrite64(int fd, const void* data, size_t bytes, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite64");
  if (is_refused_direct(fd)) return errno = EINVAL, -1;
  if (has("full") && access(std::getenv("OTHER_FILE_SYSTEM_FULL"), F_OK) == 0) return errno = ENOSPC, -1;
  return real(fd, data, bytes, offset);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) { return pwrite64(fd, data, bytes, offset); }

int fstat(int fd, struct stat* status) noexcept { return disown(next<Fstat>("fstat")(fd, status), status); }
int stat(const char* path, struct stat* status) noexcept { return disown(next<Stat>("stat")(path, status), status); }
int lstat(const char* path, struct stat* status) noexcept { return disown(next<Stat>("lstat")(path, status), status); }

int fchmod(int fd, mode_t mode) noexcept {
  if (has("nochmod")) return errno = EPERM, -1;
  return next<int (*)(int, mode_t)>("fchmod")(fd, mode);
}

int open64(const char* path, int flags, ...) {
  static const auto real = next<int (*)(const char*, int, mode_t)>("open64");
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (wants_nameless(flags)) return errno = EOPNOTSUPP, -1;
  return real(path, flags, has("nochmod") && (flags & O_CREAT) != 0 ? 0666 : mode);
}
int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return open64(path, flags, mode);
}

int openat64(int folder, const char* path, int flags, ...) {
  static const auto real = next<int (*)(int, const char*, int, mode_t)>("openat64");
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  if (wants_nameless(flags)) return errno = EOPNOTSUPP, -1;
  return real(folder, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const mode_t mode = va_arg(more, mode_t);
  va_end(more);
  return openat64(folder, path, flags, mode);
}

}  // extern "C"
