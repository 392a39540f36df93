// runtime/base/files.h: reads small files whole, and writes files that appear whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace weft::runtime {

/// Reads a regular file. Throws IoError if it cannot be read, DataError if it is not a regular file (a pipe or a device
/// could block or never end) or holds more than `limit_bytes`. Nothing over the limit is kept in memory.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes);

/// Reads one that is open already.
std::string read_file(const std::filesystem::path& path, int fd, std::size_t limit_bytes);

/// The folder in which a file lies: "." for a name alone.
std::filesystem::path folder_of(const std::filesystem::path& file);

/// The paths in a folder, in no order. Sets `error` if the folder cannot be read. Throws where memory is short, while
/// libstdc++'s directory_iterator then ends the process: it allocates within noexcept.
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder, std::error_code& error);

/// Throws unless a regular file can be created or replaced at `path`, which the user gave with `flag`: UsageError if
/// something else is there, IoError if links lead round, a name is too long or its folder cannot be written to.
void require_writable(const std::string& flag, const std::filesystem::path& path);

/// Throws CapacityError, whose message begins with `where`, unless the disk of `folder` has `wanted` bytes free.
void require_space(const std::string& where, const std::filesystem::path& folder, std::uint64_t wanted);

/// A file that a command reads or writes, and the flag that named it. An empty path is none.
struct NamedFile {
  const char* flag;
  std::filesystem::path path;
};
/// Throws UsageError if two of these are one file, by whatever names.
void require_different(const std::vector<NamedFile>& files);

/// Throws UsageError if `path`, which the user gave with `flag`, is "-": only lines go to standard output.
void refuse_pipe(const std::string& flag, const std::filesystem::path& path);
/// Throws UsageError, whose message begins with `flag`, unless `path` is free or holds a file that Weft itself writes
/// there: a JSON object that has `key`. A mistyped flag thus never replaces another file.
void require_own(const std::string& flag, const std::filesystem::path& path, const std::string& key);
/// Throws UsageError unless `path` is a regular file, IoError if it cannot be examined.
void require_input(const std::string& flag, const std::filesystem::path& path);
/// Reads the strict JSON of such a file, which holds at most 1 MiB. Throws UsageError if the JSON is wrong, since the
/// user named the file.
nlohmann::json read_json(const std::string& flag, const std::filesystem::path& path);
/// "PATH: is a link to TARGET, which is not there", and what to do, if that is so; else empty.
std::string dangling_link(const std::filesystem::path& path);
/// Throws UsageError if there is no such folder.
void require_folder(const std::string& flag, const std::filesystem::path& path);

/// A file of any size that appears whole: a reader of `path`, even after a crash, sees the old file or the new one and
/// never a part. The file has no name until it is committed (O_TMPFILE), so a killed process leaves nothing. If the
/// file system cannot do that, it is written under another name, and the next AtomicFile of `path` removes what a
/// killed process has left there. A file or a link of another user is never replaced: that throws NotOwn. Throws
/// IoError; then, and without commit(), `path` is unchanged and nothing is left behind. There is one exception: if the
/// very last action fails, syncing the folder, the new file is in place and may be gone after a power cut.
class AtomicFile {
 public:
  /// The treatment of a symbolic link at `path`. follow: the link stays and its target is replaced. refuse: it is an
  /// error.
  enum class Link : std::uint8_t { follow, refuse };
  struct Options {
    unsigned mode = 0600;  ///< mode of a new file, under the umask; an existing file keeps its own
    Link link = Link::follow;
    bool replace = true;  ///< if false, what has the name does not matter, but commit() fails if something has it then
    /// No other process writes this file, so whatever a killed run left under its other name is removed.
    bool only_writer = false;
  };
  explicit AtomicFile(const std::filesystem::path& path) : AtomicFile(path, Options{}) {}
  AtomicFile(const std::filesystem::path& path, const Options& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view text);
  void commit();  ///< nothing may be appended afterwards
  /// Gives the file up without a name: it is gone once the returned descriptor is closed, which the caller must do.
  int keep_nameless();
  int fd() const { return fd_; }  ///< valid until commit()

 private:
  void create(unsigned mode, bool only_writer);
  void remove_named();

  std::filesystem::path path_, target_;
  std::string temporary_;  // the other name
  int fd_ = -1;
  bool named_ = false;  // it has the other name
  bool replace_ = true;
};

/// Removes the unfinished file that a killed run may have left for `path`, which has only one writer.
void remove_half_written(const std::filesystem::path& path);

/// Syncs the folder of `path`: only then is the name of a new file durable. Throws IoError.
void sync_folder_of(const std::filesystem::path& path);

/// Writes `text` to `path` through an AtomicFile.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           const AtomicFile::Options& options);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace weft::runtime
