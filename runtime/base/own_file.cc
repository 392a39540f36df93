#include "runtime/base/own_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "runtime/base/files.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail_on(const fs::path& path, const std::string& what, int error) {
  throw IoError(path.string() + ": cannot be " + what + ": " + std::generic_category().message(error));
}

[[noreturn]] void refuse_use(const fs::path& path, const std::string& what) {
  throw NotOwn(path.string() + ": is " + what + "; remove it or give another name");
}

/// Creates a file without a name in the folder of `path`, or one that loses its name at once. Returns -1 if it cannot.
int make_probe(const fs::path& path) {
  static std::atomic<unsigned> counter{0};
  const fs::path folder = folder_of(path);
  const int nameless = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (nameless >= 0) return nameless;
  const std::string name =
      (folder / (".weft-probe-" + std::to_string(::getpid()) + "-" + std::to_string(counter++))).string();
  const int fd = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (fd >= 0) ::unlink(name.c_str());
  return fd;
}

/// Whether such an error of chmod() means that the file system has no permissions to change.
bool has_no_modes(int error) {
  return error == EPERM || error == EACCES || error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace

bool is_own_file(const fs::path& path, unsigned owner) {
  if (owner == ::geteuid()) return true;
  const int probe = make_probe(path);
  if (probe < 0) return false;
  struct stat status {};
  const bool known = ::fstat(probe, &status) == 0;
  ::close(probe);
  return known && status.st_uid == owner;
}

void check_own(const fs::path& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_on(path, "examined", errno);
  if (!S_ISREG(status.st_mode)) refuse_use(path, "no regular file");
  if (!is_own_file(path, status.st_uid)) refuse_use(path, "another user's file and will not be used");
  if (status.st_nlink > 1) refuse_use(path, "a file with several names (hard links) and will not be used");
}

int open_own(const fs::path& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return -1;
    if (errno == ELOOP) refuse_use(path, "a symbolic link and will not be followed");
    if (errno == ENXIO || errno == EISDIR) refuse_use(path, "no regular file");
    fail_on(path, "opened", errno);
  }
  try {
    check_own(path, fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  return fd;
}

fs::path own_target(const fs::path& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return path;
  if (!is_own_file(path, status.st_uid)) refuse_use(path, "another user's symbolic link and will not be followed");
  std::error_code unknown;
  fs::path target = fs::canonical(path, unknown);
  if (unknown) fail_on(path, "followed", unknown.value());
  return target;
}

std::optional<std::string> read_own_file(const fs::path& path, std::size_t limit_bytes) {
  const int fd = open_own(path, O_RDONLY);
  if (fd < 0) return {};
  struct Close {
    const int fd;
    ~Close() { ::close(fd); }
  } const close{fd};
  return read_file(path, fd, limit_bytes);
}

bool make_private(const fs::path& path, int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_on(path, "examined", errno);
  if ((status.st_mode & 077) == 0) return true;
  if (::fchmod(fd, 0600) == 0) return true;
  if (!has_no_modes(errno)) fail_on(path, "made private", errno);
  return false;
}

Lock lock_file(const fs::path& path, int fd) {
  while (::flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno == EWOULDBLOCK || errno == EACCES) return Lock::taken;
    if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL || errno == EBADF)
      return Lock::unknown;
    fail_on(path, "locked", errno);
  }
  return Lock::held;
}

}  // namespace weft::runtime
