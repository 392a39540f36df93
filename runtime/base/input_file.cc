// runtime/base/input_file.cc: reads through loops over pread.
#include "runtime/base/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace weft::runtime {

namespace {

constexpr std::size_t kLargestRead = std::size_t{1} << 30;  // the kernel itself cuts a read at 2 GiB

[[noreturn]] void fail_reading(const std::filesystem::path& path, const std::string& what, int error) {
  throw IoError(path.string() + ": cannot " + what + ": " + std::generic_category().message(error));
}

std::string kind(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path) {
  // Opening a pipe or a terminal must not wait for its other end.
  fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd_ < 0) {
    if (errno == ENOENT || errno == ENOTDIR) throw NotAFile(path.string() + ": no such file", true);
    if (errno == ENXIO) throw NotAFile(path.string() + ": is a socket or a device, wanted a regular file", false);
    fail_reading(path, "open", errno);
  }
  struct stat status {};
  const bool known = ::fstat(fd_, &status) == 0;
  if (known && S_ISREG(status.st_mode)) {
    size_ = static_cast<std::uint64_t>(status.st_size);
    return;
  }
  const int error = errno;
  ::close(std::exchange(fd_, -1));
  if (!known) fail_reading(path, "look at", error);
  throw NotAFile(path.string() + ": is " + kind(status.st_mode) + ", wanted a regular file", false);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(std::exchange(other.size_, 0)) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void InputFile::refresh_size() {
  struct stat status {};
  if (::fstat(fd_, &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
}

void InputFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(fd_, out.data(), std::min(out.size(), kLargestRead), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail_reading(path_, "read " + std::to_string(out.size()) + " bytes at " + std::to_string(offset), errno);
    if (count == 0) {
      struct stat status {};
      const bool known = ::fstat(fd_, &status) == 0;
      throw IoError(path_.string() + ": ends before byte " + std::to_string(offset + out.size()) + "; it had " +
                    std::to_string(size_) + " bytes when it was opened" +
                    (known ? " and has " + std::to_string(status.st_size) + " now" : "") +
                    "; do not change it during a run");
    }
    offset += static_cast<std::uint64_t>(count);
    out = out.subspan(static_cast<std::size_t>(count));
  }
}

FileState InputFile::state() const {
  const auto state = FileState::of(fd_);
  if (!state) fail_reading(path_, "look at", errno);
  return *state;
}

}  // namespace weft::runtime
