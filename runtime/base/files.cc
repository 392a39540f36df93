// runtime/base/files.cc: files over POSIX calls.
#include "runtime/base/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"
#include "runtime/base/own_file.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void fail(const fs::path& path, const std::string& what, int error) {
  throw IoError(path.string() + ": cannot " + what + ": " + std::generic_category().message(error));
}

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

const char* kind_name(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

/// How the other name of `target` begins, which it has while it is written. With only one writer, that is all of it.
std::string temporary_name(const fs::path& target) {
  return (target.parent_path() / ("." + target.filename().string() + ".weft-part")).string();
}

/// Removes the file if it is a regular file of this user.
void remove_own(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode) && status.st_uid == ::geteuid())
    ::unlink(path.c_str());
}

/// Opens a file without a name in the folder of `target`. Returns -1 if the system has no such files, or no /proc
/// through which to name them.
int open_nameless(const fs::path& target, unsigned mode) {
  if (::access("/proc/self/fd", X_OK) != 0) return -1;
  const fs::path folder = folder_of(target);
  return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, mode);
}

/// Removes what killed processes have left under other names of `target`. A writer that lives keeps a lock.
void remove_leftovers(const fs::path& target) {
  const fs::path folder = folder_of(target);
  const std::string begin = fs::path(temporary_name(target)).filename().string() + "-";
  std::error_code ignored;
  for (const fs::path& path : entries_of(folder, ignored)) {
    if (!path.filename().string().starts_with(begin)) continue;
    try {
      const File left(open_own(path, O_RDWR));
      if (left.fd() >= 0 && lock_file(path, left.fd()) == Lock::held) ::unlink(path.c_str());
    } catch (const Error&) {  // another user's, or a link
    }
  }
}

/// Throws unless the file at `path` may be replaced. Returns whether there is one, and sets `mode` to its mode.
bool may_replace(const fs::path& path, const fs::path& target, AtomicFile::Link link, mode_t& mode) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0) return false;
  const auto refuse = [&](const std::string& what) {
    throw NotOwn(path.string() + ": is " + what + "; remove it or give another name");
  };
  if (S_ISLNK(status.st_mode)) {
    if (link == AtomicFile::Link::refuse) refuse("a symbolic link and will not be followed");
    if (!is_own_file(path, status.st_uid)) refuse("another user's symbolic link and will not be followed");
    if (::stat(target.c_str(), &status) != 0) return false;
  }
  if (!S_ISREG(status.st_mode))
    throw NotOwn(path.string() + ": is " + kind_name(status.st_mode) + " and will not be replaced by a file");
  if (!is_own_file(target, status.st_uid)) refuse("another user's file and will not be replaced");
  mode = status.st_mode & 07777;
  return true;
}

}  // namespace

std::vector<fs::path> entries_of(const fs::path& folder, std::error_code& error) {
  struct Close {
    void operator()(DIR* open) const { ::closedir(open); }
  };
  const std::unique_ptr<DIR, Close> open(::opendir(folder.c_str()));
  std::vector<fs::path> paths;
  errno = open ? 0 : errno;
  while (const dirent* entry = open ? ::readdir(open.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") paths.push_back(folder / name);
    errno = 0;  // readdir() sets it where it fails, and returns null at the end too
  }
  if (errno == 0) return paths;
  error.assign(errno, std::generic_category());
  return {};
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

std::string read_file(const fs::path& path, std::size_t limit_bytes) {
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  const File file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.fd() < 0) fail(path, "open", errno);
  return read_file(path, file.fd(), limit_bytes);
}

std::string read_file(const fs::path& path, int fd, std::size_t limit_bytes) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail(path, "look at", errno);
  if (!S_ISREG(status.st_mode))
    throw DataError(path.string() + ": is " + kind_name(status.st_mode) + ", wanted a regular file");

  // The size is only a hint: the file may grow while it is read, and files of /proc have size 0.
  const auto too_large = [&] {
    return DataError(path.string() + ": is larger than " + std::to_string(limit_bytes) +
                     " bytes, the most for such a file");
  };
  if (static_cast<std::uint64_t>(status.st_size) > limit_bytes) throw too_large();
  std::string text;
  std::size_t filled = 0;
  text.resize(std::min(static_cast<std::size_t>(status.st_size) + 1, limit_bytes + 1));
  while (true) {
    if (filled == text.size()) text.resize(std::min(filled * 2, limit_bytes + 1));
    const ssize_t count = ::read(fd, text.data() + filled, text.size() - filled);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path, "read", errno);
    if (count == 0) break;
    filled += static_cast<std::size_t>(count);
    if (filled > limit_bytes) throw too_large();
  }
  text.resize(filled);
  return text;
}

void require_writable(const std::string& flag, const fs::path& path) {
  struct stat status {};
  const bool there = ::stat(path.c_str(), &status) == 0;
  if (!there && (errno == ELOOP || errno == ENAMETOOLONG)) fail(flag + " " + path.string(), "look at", errno);
  if (there && !S_ISREG(status.st_mode))
    throw UsageError(flag + " " + path.string() + ": is " + kind_name(status.st_mode) +
                     "; give the name of a file to write");
  const fs::path folder = folder_of(path);
  if (::access(folder.c_str(), W_OK | X_OK) != 0) fail(flag + " " + path.string(), "write to its folder", errno);
}

void require_different(const std::vector<NamedFile>& files) {
  std::vector<std::pair<const char*, fs::path>> seen;
  for (const auto& [flag, path] : files) {
    if (path.empty()) continue;
    std::error_code unknown;  // set where links lead round, or to no file, such as a pipe
    fs::path place = fs::weakly_canonical(path, unknown);
    if (unknown) place = path;
    for (const auto& [other, taken] : seen)
      if (taken == place || fs::equivalent(taken, place, unknown))
        throw UsageError(std::string(flag) + " " + path.string() + ": is also the file of " + other +
                         "; give another name");
    seen.emplace_back(flag, std::move(place));
  }
}

void refuse_pipe(const std::string& flag, const fs::path& path) {
  if (path == "-") throw UsageError(flag + " -: this is not written to standard output; give the name of a file");
}

void require_own(const std::string& flag, const fs::path& path, const std::string& key) {
  constexpr std::size_t most = std::size_t{64} << 20;
  refuse_pipe(flag, path);
  require_writable(flag, path);
  if (!fs::exists(path)) return;
  bool own = false;
  try {
    const std::string text = read_file(path, most);
    const auto json = text.empty() ? nlohmann::json{{key, 0}}
                                   : policy::parse_json(text, path.string(), policy::Blame::usage, {.depth = 32});
    own = json.is_object() && json.contains(key);
  } catch (const Error&) {  // then it is another file
  }
  if (!own) throw UsageError(flag + " " + path.string() + ": is another file than this would write; give another name");
}

nlohmann::json read_json(const std::string& flag, const fs::path& path) {
  constexpr std::size_t largest = 1 << 20;
  require_input(flag, path);
  return policy::parse_json(read_file(path, largest), path.string(), policy::Blame::usage, {.depth = 32});
}

void require_space(const std::string& where, const fs::path& folder, std::uint64_t wanted) {
  if (const std::uint64_t free = fs::space(folder).available; free < wanted)
    throw CapacityError(where + ": wants " + policy::bytes_to_text(wanted) + ", the disk has " +
                        policy::bytes_to_text(free) + " free");
}

std::string dangling_link(const fs::path& path) {
  std::error_code unknown;
  if (fs::exists(path, unknown) || !fs::is_symlink(fs::symlink_status(path, unknown))) return {};
  return path.string() + ": is a link to " + fs::read_symlink(path, unknown).string() +
         ", which is not there; give this program the folder to which it leads too, or a copy without links (cp -rL)";
}

void require_folder(const std::string& flag, const std::filesystem::path& path) {
  if (!std::filesystem::is_directory(path)) throw UsageError(flag + " " + path.string() + ": there is no such folder");
}

void require_input(const std::string& flag, const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw UsageError(flag + " " + path.string() + ": there is no such file");
    fail(flag + " " + path.string(), "look at", errno);
  }
  if (!S_ISREG(status.st_mode))
    throw UsageError(flag + " " + path.string() + ": is " + kind_name(status.st_mode) + ", wanted a regular file" +
                     (S_ISFIFO(status.st_mode) && flag == "--input" ? "; a pipe is read by --input -" : ""));
}

AtomicFile::AtomicFile(const fs::path& path, const Options& options)
    : path_(path), target_(path), replace_(options.replace) {
  std::error_code absent;
  if (fs::path real = fs::canonical(path, absent); !absent && options.link == Link::follow) target_ = std::move(real);
  mode_t mode = 0;
  const bool exists = options.replace && may_replace(path, target_, options.link, mode);
  create(options.mode, options.only_writer);
  // What a file system without permissions gives a new file is what it gave the old one.
  if (!exists || ::fchmod(fd_, mode) == 0 || errno == EPERM || errno == ENOSYS || errno == EOPNOTSUPP) return;
  const int error = errno;
  remove_named();
  ::close(fd_);
  fail(path, "set the mode of", error);
}

/// Creates the file, if it can without a name. Its other name is locked while this lives, unless there is but one
/// writer.
void AtomicFile::create(unsigned mode, bool only_writer) {
  static std::atomic<unsigned> counter{0};
  temporary_ = temporary_name(target_);
  if (only_writer) remove_own(temporary_);
  else remove_leftovers(target_);
  if (!only_writer) temporary_ += "-" + std::to_string(::getpid()) + "-" + std::to_string(counter++);
  // Without locks, leftovers stay.
  const auto lock = [&] { return !only_writer && ::flock(fd_, LOCK_EX | LOCK_NB) == 0; };
  fd_ = open_nameless(target_, mode);
  if (fd_ >= 0) {
    lock();
    return;
  }
  for (named_ = true;; ::close(fd_)) {
    fd_ = ::open(temporary_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd_ < 0) {
      const int error = errno;
      named_ = false;
      fail(path_, "create", error);
    }
    struct stat status {};
    if (!lock() || ::fstat(fd_, &status) != 0 || status.st_nlink > 0) return;  // else it was taken for a leftover
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  remove_named();
  ::close(fd_);
}

void AtomicFile::remove_named() {
  if (std::exchange(named_, false)) ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail(path_, "write", errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail(path_, "sync", errno);
  if (!named_) {
    const std::string open = "/proc/self/fd/" + std::to_string(fd_);
    if (::linkat(AT_FDCWD, open.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
      fail(path_, "name", errno);
    named_ = true;
  }
  if (replace_) {
    if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(path_, "replace", errno);
    named_ = false;
  } else if (::link(temporary_.c_str(), target_.c_str()) != 0) {
    fail(path_, "create", errno);
  }
  remove_named();
  if (::close(std::exchange(fd_, -1)) != 0) fail(path_, "close", errno);
  sync_folder_of(target_);
}

int AtomicFile::keep_nameless() {
  remove_named();
  return std::exchange(fd_, -1);
}

void remove_half_written(const fs::path& path) { remove_own(temporary_name(path)); }

void sync_folder_of(const fs::path& path) {
  // A folder that may be written to but not read cannot be opened, and some file systems cannot sync a folder.
  const fs::path parent = folder_of(path);
  const File folder(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd() < 0 && errno != EACCES) fail(path, "open the folder of", errno);
  if (folder.fd() >= 0 && ::fsync(folder.fd()) != 0 && errno != EINVAL) fail(path, "sync the folder of", errno);
}

void write_file_atomically(const fs::path& path, std::string_view text, const AtomicFile::Options& options) {
  AtomicFile file(path, options);
  file.append(text);
  file.commit();
}

void write_file_atomically(const fs::path& path, std::string_view text) { write_file_atomically(path, text, {}); }

}  // namespace weft::runtime
