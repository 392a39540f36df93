#include "runtime/base/file_state.h"

#include <sys/stat.h>

#include <sstream>

namespace weft::runtime {
namespace {

std::int64_t nanoseconds(const timespec& time) { return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

FileState state_of(const struct stat& status) {
  return {.device = status.st_dev,
          .inode = status.st_ino,
          .size = static_cast<std::uint64_t>(status.st_size),
          .modified = nanoseconds(status.st_mtim),
          .changed = nanoseconds(status.st_ctim)};
}

}  // namespace

std::optional<FileState> FileState::of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) return {};
  return state_of(status);
}

std::optional<FileState> FileState::of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return {};
  return state_of(status);
}

std::string FileState::text() const {
  std::ostringstream out;
  out << device << ' ' << inode << ' ' << size << ' ' << modified << ' ' << changed;
  return out.str();
}

std::optional<FileState> FileState::from_text(const std::string& text) {
  std::istringstream in(text);
  FileState state;
  in >> state.device >> state.inode >> state.size >> state.modified >> state.changed;
  if (in.fail() || in.peek() != std::istringstream::traits_type::eof()) return {};
  return state;
}

}  // namespace weft::runtime
