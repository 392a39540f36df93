#include "runtime/results/line_sums.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "runtime/base/files.h"
#include "runtime/base/input_file.h"
#include "runtime/base/line_stream.h"
#include "runtime/base/own_file.h"

namespace weft::runtime {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHeader = "weft sums 1\n";
constexpr std::size_t kLineBytes = 17;            // 16 hexadecimal digits and a newline
constexpr std::chrono::seconds kLockPatience{5};  // a killed run's lock can outlive it for a moment

/// Returns " (process 4711)" if the kernel shows who holds the lock. It does not for another machine or container.
std::string holder_of_lock(int fd) {
  struct stat status {};
  if (fstat(fd, &status) != 0) return "";
  std::array<char, 64> file{};  // as /proc/locks names it
  std::snprintf(file.data(), file.size(), "%02x:%02x:%lu", major(status.st_dev), minor(status.st_dev), status.st_ino);
  std::ifstream locks("/proc/locks");
  for (std::string line; std::getline(locks, line);) {
    std::istringstream fields(line);
    std::string number, kind, advisory, access, process, place;
    fields >> number >> kind >> advisory >> access >> process >> place;
    if (kind == "FLOCK" && place == file.data() && process.find_first_not_of('0') != std::string::npos)
      return " (process " + process + ")";
  }
  return "";
}

/// Reads the checksums of the whole lines of `file`, and the offset at which these end. Leaves out a line that is not a
/// checksum. Returns false if the file does not begin as such a file does.
bool read_sums(const InputFile& file, SumSet& sums, std::uint64_t& end) {
  LineStream lines(file);
  end = 0;
  while (lines.next()) {
    std::string text;
    for (std::string_view piece = lines.piece(); !piece.empty() && text.size() < kLineBytes; piece = lines.piece())
      text += piece.substr(0, kLineBytes);
    lines.skip_rest();
    if (!lines.whole()) return lines.number() > 1 || kHeader.starts_with(text);
    end = lines.end();
    if (lines.number() == 1) {
      if (text + "\n" != kHeader) return false;
      continue;
    }
    std::uint64_t sum = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), sum, 16);
    if (error == std::errc() && stop == text.data() + text.size()) sums.add(sum);
  }
  return true;
}

}  // namespace

void LineSum::add(std::string_view piece) {
  crc_ = offload::crc32c(reinterpret_cast<const std::byte*>(piece.data()), piece.size(), crc_);
  bytes_ += piece.size();
}

std::uint64_t LineSum::of(std::string_view line) {
  LineSum sum;
  sum.add(line);
  sum.add("\n");
  return sum.value();
}

void SumSet::sort() const {
  if (sorted_ == sums_.size()) return;
  std::sort(sums_.begin(), sums_.end());
  sums_.erase(std::unique(sums_.begin(), sums_.end()), sums_.end());
  sorted_ = sums_.size();
}

bool SumSet::contains(std::uint64_t sum) const {
  sort();
  return std::binary_search(sums_.begin(), sums_.end(), sum);
}

std::size_t SumSet::size() const {
  sort();
  return sums_.size();
}

fs::path SumFile::place(const fs::path& output) {
  std::error_code unknown;
  const fs::path real = fs::weakly_canonical(output, unknown);
  return (unknown ? output : real).string() + ".sums";
}

SumSet SumFile::read(const fs::path& output) {
  SumSet sums;
  std::uint64_t end = 0;
  try {
    const InputFile file(place(output));
    if (!read_sums(file, sums, end))
      throw UsageError(file.path().string() + ": holds no checksums of Weft's; remove it or give it another name");
  } catch (const NotAFile& none) {
    if (!none.missing) throw;
  }
  return sums;
}

SumFile::SumFile(const fs::path& output, const std::atomic<bool>& stop) : path_(place(output)) {
  try {
    open_and_lock(output, stop);
    const int same = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    if (same < 0) fail("cannot be read", errno);
    const InputFile file(same, path_);
    if (!read_sums(file, sums_, end_))
      throw NotOwn(path_.string() + ": holds no checksums of Weft's; remove it or give it another name");
    if (file.size() > end_ && ftruncate(fd_, static_cast<off_t>(end_)) != 0) fail("cannot be cut", errno);
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    throw;
  }
}

SumFile::~SumFile() {
  if (created_ && end_ == 0) ::unlink(path_.c_str());
  if (fd_ >= 0) ::close(fd_);
}

void SumFile::fail(const std::string& what, int error) const {
  throw IoError(path_.string() + ": " + what + ": " + std::generic_category().message(error));
}

/// Opens the file, or creates it. Returns false if the run before has just removed it.
bool SumFile::open_named() {
  constexpr int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW;
  fd_ = ::open(path_.c_str(), flags | O_CREAT | O_EXCL, 0600);
  created_ = fd_ >= 0;
  if (created_) check_own(path_, fd_);
  else if (errno != EEXIST) fail("cannot be created", errno);
  else fd_ = open_own(path_, flags);
  return fd_ >= 0;
}

void SumFile::note_lacks(bool locks, bool modes) {
  if (locks && modes) return;
  warning_ = folder_of(path_).string() + ": this file system has no " +
             (locks   ? "permissions, so others may be able to read the answers"
              : modes ? "locks: see to it that no other run writes this output"
                      : "permissions and no locks: others may be able to read the answers, and no other run may write "
                        "this output");
}

/// Tries until the locked file is the one of that name, because the run before may remove it while this one waits.
void SumFile::open_and_lock(const fs::path& output, const std::atomic<bool>& stop) {
  const auto give_up = std::chrono::steady_clock::now() + kLockPatience;
  while (true) {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    const bool opened = open_named();
    const bool modes = !opened || make_private(path_, fd_);
    const Lock lock = opened ? lock_file(path_, fd_) : Lock::taken;
    struct stat own {
    }, named{};
    if (lock != Lock::taken && fstat(fd_, &own) == 0 && lstat(path_.c_str(), &named) == 0 &&
        named.st_ino == own.st_ino && named.st_dev == own.st_dev)
      return note_lacks(lock == Lock::held, modes);
    if (stop) throw Interrupted{};
    if (std::chrono::steady_clock::now() > give_up)
      throw IoError(output.string() + ": another run" + holder_of_lock(fd_) +
                    " is writing this file; wait for it or choose another output");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

void SumFile::clear() {
  if (ftruncate(fd_, 0) != 0) fail("cannot be emptied", errno);
  sums_.clear();
  end_ = 0;
}

int SumFile::add(std::uint64_t sum) {
  std::string text(end_ == 0 ? kHeader : "");
  char digits[kLineBytes + 1];
  std::snprintf(digits, sizeof digits, "%016lx\n", static_cast<unsigned long>(sum));
  text += digits;
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(fd_, text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      if (written > 0 && ftruncate(fd_, static_cast<off_t>(end_)) != 0) return errno;
      return error;
    }
    written += static_cast<std::size_t>(count);
  }
  end_ += text.size();
  sums_.add(sum);
  return 0;
}

}  // namespace weft::runtime
