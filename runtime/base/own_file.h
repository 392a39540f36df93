// runtime/base/own_file.h: files that this user has made earlier, in folders that others may write to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "kernels/error.h"

namespace weft::runtime {

/// Whether a file at `path` with this owner belongs to this process: the owner is its user, or the one user to whom the
/// file system assigns all files, as a mount with uid= does. May create a file next to `path` for a moment.
bool is_own_file(const std::filesystem::path& path, unsigned owner);

/// Thrown if a name that Weft uses leads to something that Weft has not made for this user. Nothing changes that but
/// the user.
struct NotOwn : UsageError {
  using UsageError::UsageError;
};

/// Opens a file that Weft has made for this user: a regular file of this user's, with one name, which is `path` itself
/// and no link to it. Never waits for a pipe. Returns -1 if nothing is there. Throws NotOwn, IoError.
int open_own(const std::filesystem::path& path, int flags);
/// Throws NotOwn unless `fd`, which was opened at `path`, is such a file.
void check_own(const std::filesystem::path& path, int fd);

/// Follows `path` if it is a link of this user's own. Throws NotOwn if it is another user's.
std::filesystem::path own_target(const std::filesystem::path& path);

/// Reads such a file whole; nothing if there is none. Throws NotOwn, IoError, or DataError beyond `limit_bytes`.
std::optional<std::string> read_own_file(const std::filesystem::path& path, std::size_t limit_bytes);

/// Withdraws a file from all other users. Returns false if the file system has no permissions to change. Throws
/// IoError.
bool make_private(const std::filesystem::path& path, int fd);

enum class Lock : std::uint8_t {
  held,     ///< this process has it until `fd` is closed
  taken,    ///< another process has it
  unknown,  ///< the file system has no locks
};
/// Tries to lock a file for this process alone. `fd` must be open for writing, as NFS demands, and the file must be
/// read and written through it alone, as SMB demands. Throws IoError.
Lock lock_file(const std::filesystem::path& path, int fd);

}  // namespace weft::runtime
