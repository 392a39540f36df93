// runtime/base/standard_streams.cc: pipes by poll, read and write, with a file in the temporary folder.
#include "runtime/base/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "kernels/error.h"
#include "runtime/base/stop.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr int kLookForStop = 200;  // milliseconds
constexpr std::chrono::seconds kGrace{5};
constexpr std::size_t kReadBytes = 1 << 20;
constexpr char kInputName[] = "standard input";

[[noreturn]] void fail(const std::string& what, int error) {
  throw IoError(what + ": " + std::generic_category().message(error));
}

fs::path temporary_folder(const std::string& flag) {
  std::error_code unknown;
  fs::path folder = fs::temp_directory_path(unknown);
  if (unknown) throw IoError("TMPDIR: there is no such folder; " + flag + " puts the requests there");
  return folder;
}

[[noreturn]] void fail_to_hold(const fs::path& folder, const std::string& flag) {
  throw IoError(folder.string() + ": cannot hold the requests of " + flag +
                " (TMPDIR names another folder): " + std::generic_category().message(errno));
}

/// Opens a file without a name.
int open_unnamed(const fs::path& folder, const std::string& flag) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return fd;
  std::string name = (folder / "weft-XXXXXX").string();  // for a file system that has no such files
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) fail_to_hold(folder, flag);
  ::unlink(name.c_str());
  return named;
}

}  // namespace

Spool::Spool(fs::path name, std::string flag)
    : flag_(std::move(flag)), folder_(temporary_folder(flag_)), fd_(open_unnamed(folder_, flag_)),
      file_(fd_, std::move(name)) {}

void Spool::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd_, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail_to_hold(folder_, flag_);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

InputFile Spool::finish() && {
  file_.refresh_size();
  return std::move(file_);
}

InputFile spool_standard_input(const std::atomic<bool>& stop) {
  Spool spool(kInputName, "--input -");
  std::vector<char> piece(kReadBytes);
  while (true) {
    if (stop) throw Interrupted{};
    pollfd ready{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, kLookForStop) == 0) continue;
    const ssize_t count = ::read(STDIN_FILENO, piece.data(), piece.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0) fail(std::string(kInputName) + ": cannot be read", errno);
    if (count == 0) break;
    spool.append({piece.data(), static_cast<std::size_t>(count)});
  }
  return std::move(spool).finish();
}

InputFile open_input(const fs::path& path, const std::atomic<bool>& stop) {
  return path == kPipe ? spool_standard_input(stop) : InputFile(path);
}

/// Waits until a pipe takes PIPE_BUF bytes at once. A file always does.
void StandardOutput::wait() const {
  auto give_up = std::chrono::steady_clock::time_point::max();
  while (true) {
    pollfd ready{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&ready, 1, kLookForStop) != 0) return;
    if (!stop_ || !*stop_) continue;
    const auto now = std::chrono::steady_clock::now();
    give_up = std::min(give_up, now + kGrace);
    if (now >= give_up) throw Interrupted{};
  }
}

void StandardOutput::append(std::string_view text) {
  while (!text.empty()) {
    wait();
    const ssize_t count = ::write(STDOUT_FILENO, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count < 0 && errno == EPIPE) throw IoError("standard output: its reader has gone; not all answers are written");
    if (count < 0) fail("standard output cannot be written; not all answers are there", errno);
    text.remove_prefix(static_cast<std::size_t>(count));
  }
}

}  // namespace weft::runtime
