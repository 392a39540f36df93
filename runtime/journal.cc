#include "runtime/journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>

#include "kernels/error.h"
#include "policy/json.h"
#include "runtime/files.h"
#include "runtime/result_line.h"

namespace weft::runtime {
namespace {

constexpr std::string_view kLineBegin = "{\"id\":";
constexpr std::chrono::seconds kLockPatience{5};  // a killed run's lock can outlive it for a moment

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& what) {
  throw IoError(path.string() + ": " + what + ": " + std::strerror(errno));
}

}  // namespace

Journal::Journal(const std::filesystem::path& path, bool resume) : path_(path) {
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (exists && S_ISREG(status.st_mode) && !resume)
    throw UsageError("--output " + path.string() +
                     ": exists; give another name, remove it, or continue it with --resume");
  require_writable("--output", path);
  if (!exists) return;
  fd_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CLOEXEC);
  if (fd_ < 0) fail(path, "cannot be opened for writing");
  lock();
}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
  if (lock_fd_ >= 0) ::close(lock_fd_);
}

void Journal::lock() {
  lock_fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (lock_fd_ < 0) fail(path_, "cannot be opened");
  const auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (flock(lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail(path_, "cannot be locked");
    if (std::chrono::steady_clock::now() > give_up)
      throw IoError(path_.string() + ": another run is writing this file; wait for it or choose another output");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

std::vector<bool> Journal::recover(const RequestFile& requests) {
  std::vector<bool> done(requests.size(), false);
  if (fd_ < 0) return done;
  struct stat status {};
  if (fstat(fd_, &status) != 0) fail(path_, "cannot be examined");
  std::uint64_t whole = 0;  // bytes up to and with the last newline
  for_each_line(path_, [&](std::string_view line, std::uint64_t offset, std::size_t number) {
    char after = 0;
    const auto end = static_cast<off_t>(offset + line.size());
    const std::string where = path_.string() + ":" + std::to_string(number);
    if (pread(fd_, &after, 1, end) != 1) {  // the torn tail
      if (line.substr(0, kLineBegin.size()) != kLineBegin.substr(0, line.size()))
        throw UsageError(where + ": not the beginning of a result; --resume needs the output of an earlier run");
      return;
    }
    if (after != '\n') throw UsageError(where + ": lines end in \\r\\n; something rewrote this file, undo that first");
    const auto json = policy::parse_json(line, where, policy::Blame::usage);
    const std::size_t request = answered_request(json, requests, where);
    if (done[request])
      throw UsageError(where + ": answers a request a second time; the file was changed by something else");
    done[request] = true;
    whole = offset + line.size() + 1;
  });
  torn_bytes_ = static_cast<std::uint64_t>(status.st_size) - whole;
  if (torn_bytes_ > 0 && ftruncate(fd_, static_cast<off_t>(whole)) != 0)
    fail(path_, "the torn last line cannot be cut");
  return done;
}

void Journal::open() {
  if (fd_ >= 0) return;
  fd_ = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd_ < 0 && errno == EEXIST)
    throw IoError(path_.string() + ": another run has just created this file; choose another output");
  if (fd_ < 0) fail(path_, "cannot be created");
  lock();
}

void Journal::append(std::string_view line) {
  std::string text(line);
  text += '\n';
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      struct stat status {};
      // Leave only whole lines behind; if even that fails, --resume cuts the rest.
      if (fstat(fd_, &status) == 0 && ftruncate(fd_, status.st_size - static_cast<off_t>(written)) != 0) errno = error;
      errno = error;
      fail(path_, "a result cannot be written (all earlier ones are whole; free space and continue with --resume)");
    }
    written += static_cast<std::size_t>(count);
  }
}

void Journal::finish() {
  if (fd_ >= 0 && fdatasync(fd_) != 0 && errno != EINVAL) fail(path_, "cannot be flushed to disk");
}

}  // namespace weft::runtime
