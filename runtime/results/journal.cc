#include "runtime/results/journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "kernels/error.h"
#include "runtime/base/files.h"
#include "runtime/base/own_file.h"
#include "runtime/base/stop.h"
#include "runtime/results/result_lines.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kReadBytes = 1 << 20;

bool is_full(int error) { return error == ENOSPC || error == EDQUOT; }

}  // namespace

Durability durability_from_text(std::string_view text) {
  if (text == "process") return Durability::process;
  if (text == "power") return Durability::power;
  throw UsageError("--durability must be process or power, got '" + std::string(text.substr(0, 40)) + "'");
}

void Journal::fail(const std::string& what, int error) const {
  throw IoError(path_.string() + ": " + what + ": " + std::generic_category().message(error));
}

Journal::Journal(const std::filesystem::path& path, bool resume, JournalOptions options)
    : path_(path), options_(std::move(options)) {
  if (!options_.write) options_.write = ::write;
  if (!options_.fdatasync) options_.fdatasync = ::fdatasync;
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (const int error = errno; !exists && error != ENOENT && error != ENOTDIR) fail("cannot be looked at", error);
  if (exists && S_ISREG(status.st_mode) && !resume)
    throw UsageError("--output " + path.string() +
                     ": exists; give another name, remove it, or continue it with --resume");
  if (!exists && lstat(path.c_str(), &status) == 0)
    throw UsageError("--output " + path.string() + ": is a symbolic link to nothing; remove it or give another name");
  require_writable("--output", path);
  if (exists) attach();
}

Journal::~Journal() {
  groups_.reset();  // its last flush needs the file
  if (fd_ >= 0) ::close(fd_);
}

std::unique_ptr<SumFile> Journal::lock() const {
  auto sums = std::make_unique<SumFile>(path_, options_.stop ? *options_.stop : kNeverStopped);
  if (options_.warn && !sums->warning().empty()) options_.warn(sums->warning());
  return sums;
}

/// Locks the output, and then opens the file of its name, because the run before may have replaced it.
void Journal::attach() {
  if (!sums_) sums_ = lock();
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  fd_ = open_own(own_target(path_), O_RDWR | O_APPEND);
  if (fd_ < 0) fail("cannot be opened for writing", ENOENT);
  struct stat status {};
  if (fstat(fd_, &status) != 0) fail("cannot be examined", errno);
  end_ = static_cast<std::uint64_t>(status.st_size);
}

void Journal::cut(std::uint64_t end) {
  if (end >= end_) return;
  if (ftruncate(fd_, static_cast<off_t>(end)) != 0) fail("what may not be on disk cannot be cut", errno);
  end_ = end;
}

std::vector<bool> Journal::recover(const RequestFile& requests, bool repair, bool retry) {
  if (fd_ < 0) return std::vector<bool>(requests.size(), false);
  if (end_ == 0) sums_->clear();
  ResultScan scan = scan_results(path_, requests, {.sums = &sums_->sums(), .retry = retry, .stop = options_.stop});
  if (!scan.damaged.empty() && !repair)
    throw UsageError(scan.first_damage + "; --resume needs the output of an earlier run; --resume=repair moves " +
                     (scan.damaged.size() > 1 ? std::to_string(scan.damaged.size()) + " such lines" : "that line") +
                     " to " + path_.filename().string() + ".bad and goes on");
  torn_bytes_ = end_ - scan.whole;
  set_aside_ = scan.damaged.size();
  retried_ = scan.failed.size();
  if (set_aside_ + retried_ > 0) {
    runtime::set_aside(path_, scan);
    attach();
  } else {
    if (torn_bytes_ > 0 && ftruncate(fd_, static_cast<off_t>(scan.whole)) != 0)
      fail("the torn last line cannot be cut", errno);
    end_ = scan.whole;
  }
  for (const std::uint64_t sum : scan.unsummed)
    if (const int error = sums_->add(sum)) fail("its checksums cannot be written", error);
  return std::move(scan.done);
}

void Journal::create(const std::function<void()>& first) {
  auto sums = lock();
  sums->clear();
  if (first) first();
  const int created = ::open(path_.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (created < 0 && errno == EEXIST)
    throw IoError(path_.string() + ": another run has just created this file; choose another output");
  if (created < 0) fail("cannot be created", errno);
  fd_ = created;
  sums_ = std::move(sums);
}

void Journal::open(const std::function<void()>& first, std::function<void(std::uint64_t)> on_lost) {
  on_lost_ = std::move(on_lost);
  if (fd_ < 0) create(first);
  else if (first) first();
  if (options_.durability != Durability::power) return;
  if (options_.fdatasync(fd_) != 0) lost(errno, 0);  // the earlier run may have flushed nothing
  durable_ = end_;
  sync_folder_of(path_);
  groups_ = std::make_unique<GroupSync>([this] { return ::fdatasync(sums_->fd()) != 0 ? -1 : options_.fdatasync(fd_); },
                                        durable_);
}

void Journal::lost(int error, std::uint64_t durable) {
  if (on_lost_) on_lost_(durable);
  fail("cannot be flushed to disk (its first " + std::to_string(durable) +
           " bytes are there for sure; --resume --durability=power goes on from them)",
       error);
}

void Journal::append(std::string_view line) {
  require_there();
  if (groups_ && groups_->error() != 0) lost(groups_->error(), groups_->durable());
  const auto give_up = std::chrono::steady_clock::now() + options_.patience;
  while (const int error = sums_->add(LineSum::of(line))) wait_for_space(error, give_up);
  while (const int error = write_or_cut(line)) wait_for_space(error, give_up);
  end_ += line.size() + 1;
  if (groups_) groups_->wrote(end_);
}

/// Writes a line. Returns 0, or the error; then only whole lines are left behind, or `broken_` is set and --resume cuts
/// the rest.
int Journal::write_or_cut(std::string_view line) {
  // The end of the line and its newline go in one write. The rest of a long line is not copied.
  const std::size_t end = line.size() - std::min(line.size(), kReadBytes);
  const std::string last = std::string(line.substr(end)) + '\n';
  std::size_t written = 0;
  while (written < line.size() + 1) {
    const std::string_view rest =
        written < end ? line.substr(written, end - written) : std::string_view(last).substr(written - end);
    const ssize_t count = options_.write(fd_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int error = count < 0 ? errno : ENOSPC;
      broken_ = written > 0 && ftruncate(fd_, static_cast<off_t>(end_)) != 0;
      return error;
    }
    written += static_cast<std::size_t>(count);
  }
  return 0;
}

void Journal::wait_for_space(int error, std::chrono::steady_clock::time_point give_up) {
  const auto now = std::chrono::steady_clock::now();
  if (broken_ || !is_full(error) || now >= give_up)
    fail("a result cannot be written (all earlier ones are whole; " +
             std::string(is_full(error) ? "free space and " : "") + "continue with --resume)",
         error);
  const auto left = std::chrono::ceil<std::chrono::seconds>(give_up - now).count();
  if (options_.warn)
    options_.warn(path_.string() + ": no space for a result; trying again for " + std::to_string(left) + " s");
  const auto again = now + options_.pause;
  while (std::chrono::steady_clock::now() < again) {
    if (options_.stop && *options_.stop) throw Interrupted{};
    std::this_thread::sleep_for(std::min(options_.pause, std::chrono::milliseconds(50)));
  }
}

void Journal::require_there() const {
  struct stat status {};
  if (broken_) throw IoError(path_.string() + ": ends in a torn line; continue with --resume");
  if (fstat(fd_, &status) != 0) fail("cannot be examined", errno);
  if (status.st_nlink == 0) copy_deleted();
}

void Journal::copy_deleted() const {
  std::string place = path_.string() + ".recovered";
  for (int i = 2; std::filesystem::exists(std::filesystem::symlink_status(place)); ++i)
    place = path_.string() + ".recovered." + std::to_string(i);
  AtomicFile copy(place, {.link = AtomicFile::Link::refuse, .replace = false});
  std::string piece;
  for (std::uint64_t offset = 0; offset < end_; offset += piece.size()) {
    piece.resize(std::min<std::uint64_t>(end_ - offset, kReadBytes));
    const ssize_t count = pread(fd_, piece.data(), piece.size(), static_cast<off_t>(offset));
    if (count <= 0) fail("was deleted, and its answers cannot be read back", count < 0 ? errno : EIO);
    piece.resize(static_cast<std::size_t>(count));
    copy.append(piece);
  }
  copy.commit();
  throw IoError(path_.string() + ": was deleted while the run was writing it; its answers are in " + place +
                ", move that back and continue with --resume");
}

void Journal::require_named() const {
  struct stat own {
  }, named{};
  if (fstat(fd_, &own) != 0) fail("cannot be examined", errno);
  if (stat(path_.c_str(), &named) == 0 && named.st_ino == own.st_ino && named.st_dev == own.st_dev) return;
  std::error_code unknown;
  const auto now = std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd_), unknown);
  throw IoError(path_.string() + ": was moved or replaced while the run was writing it; its answers are in " +
                (unknown ? "a file of another name" : now.string()) + ", move that back and continue with --resume");
}

void Journal::flush() {
  require_there();
  if (groups_) {
    groups_->stop();
    if (groups_->error() != 0) lost(groups_->error(), groups_->durable());
    groups_.reset();
  } else if (options_.fdatasync(fd_) != 0 && errno != EINVAL) {
    lost(errno, durable_);
  }
  durable_ = end_;
}

void Journal::finish() {
  if (fd_ < 0) return;
  flush();
  if (::close(std::exchange(fd_, -1)) != 0) lost(errno, durable_);
}

std::size_t Journal::finish(const RequestFile& requests, std::size_t count) {
  flush();
  require_named();
  const ResultScan scan = scan_results(path_, requests, {.sums = &sums_->sums(), .stop = options_.stop});
  const std::string remedy = "; something else has written to it; --resume=repair runs what is lost again";
  if (!scan.damaged.empty()) throw IoError(scan.first_damage + remedy);
  if (!scan.unsummed.empty() || scan.whole != end_)
    throw IoError(path_.string() + ": is not what this run has written" + remedy);
  const auto found = static_cast<std::size_t>(std::count(scan.done.begin(), scan.done.end(), true));
  if (found != count)
    throw IoError(path_.string() + ": has " + std::to_string(found) + " lines, wanted an answer to each of " +
                  std::to_string(count) + " requests" + remedy);
  require_named();
  if (::close(std::exchange(fd_, -1)) != 0) lost(errno, durable_);
  return scan.refused;
}

}  // namespace weft::runtime
