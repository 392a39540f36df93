// runtime/base/files.h: small files, read whole, and files that appear whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace weft::runtime {

/// The bytes of a regular file. Throws IoError if it cannot be read, DataError if it is no regular file (a pipe or a
/// device could block or never end) or holds more than `limit_bytes`; nothing over the limit is kept in memory.
std::string read_file(const std::filesystem::path& path, std::size_t limit_bytes);

/// Throws unless a regular file can be created or replaced at `path`, which `flag` named: UsageError if something else
/// is there, IoError if its folder cannot be written to.
void require_writable(const std::string& flag, const std::filesystem::path& path);

/// Throws CapacityError, which begins with `where`, unless the disk of `folder` has `wanted` bytes free.
void require_space(const std::string& where, const std::filesystem::path& folder, std::uint64_t wanted);

/// Throws UsageError for "-", which `flag` named: only lines go to standard output.
void refuse_pipe(const std::string& flag, const std::filesystem::path& path);
/// Throws UsageError, which `flag` begins, unless nothing is at `path` or a file that Weft itself writes there: a JSON
/// object that has `key`. So a slip of a flag replaces nobody's file.
void require_own(const std::string& flag, const std::filesystem::path& path, const std::string& key);
/// Throws UsageError unless `path` is a file to read from, IoError if it may not be looked at.
void require_input(const std::string& flag, const std::filesystem::path& path);
/// The strict JSON of such a file of at most 1 MiB, which the user named: what is wrong with it is a UsageError.
nlohmann::json read_json(const std::string& flag, const std::filesystem::path& path);
/// Throws UsageError where there is no such folder.
void require_folder(const std::string& flag, const std::filesystem::path& path);

/// A file of any size that appears whole: at `path` a reader, or a crash, sees the old file or the new one and never a
/// part. It has no name until it is committed (O_TMPFILE), so a killed process leaves nothing; where the file system
/// cannot do that, it is written under another name. A file or a link of another user is never replaced. Throws
/// IoError; then, and without commit(), `path` is as before and nothing is left behind. Only where the very last step
/// fails, syncing the folder, is the new file in place and may be gone after a power cut.
class AtomicFile {
 public:
  /// What becomes of a symbolic link at `path`. follow: it stays and its target is replaced.
  enum class Link : std::uint8_t { follow, refuse };
  struct Options {
    unsigned mode = 0600;  ///< of a file that was not there, under the umask; others keep theirs
    Link link = Link::follow;
    bool replace = true;       ///< false: commit() fails if something has the name by then
    bool only_writer = false;  ///< no other process writes this file: what a killed run left under its other name goes
  };
  explicit AtomicFile(const std::filesystem::path& path) : AtomicFile(path, Options{}) {}
  AtomicFile(const std::filesystem::path& path, const Options& options);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view text);
  void commit();                  ///< after this nothing may be appended
  int fd() const { return fd_; }  ///< until commit()

 private:
  void remove_named();

  std::filesystem::path path_, target_;
  std::string temporary_;  // the other name
  int fd_ = -1;
  bool named_ = false;  // it has the other name
  bool replace_ = true;
};

/// Whether a file at `path` with this owner is this process's own: the owner is its user, or the one to whom all files
/// of a file system belong that knows no users. May make a file without a name next to it.
bool is_own_file(const std::filesystem::path& path, unsigned owner);

/// Removes what a killed run left of a file whose only writer it was, if anything.
void remove_half_written(const std::filesystem::path& path);

/// The name of a new file is durable only once its folder is synced. Throws IoError.
void sync_folder_of(const std::filesystem::path& path);

/// Writes `text` to `path` through an AtomicFile.
void write_file_atomically(const std::filesystem::path& path, std::string_view text,
                           const AtomicFile::Options& options);
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace weft::runtime
