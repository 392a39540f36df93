// runtime/results/run_record.h: the file OUTPUT.run.json, which records what the answers of a run depend on. A resume
// compares itself with it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/file_state.h"

namespace weft::runtime {

/// A weights file with which a run was begun: the file's state and, once it is known, the CRC-32C of all of it.
struct WeightsPin {
  std::string name;
  FileState state;
  std::optional<std::uint32_t> checksum = {};
};

/// OUTPUT.run.json. It is written before the first answer, whole or not at all.
struct RunRecord {
  /// The name and value of everything that must be the same when the run continues, in the order in which it is
  /// compared.
  std::vector<std::pair<std::string, std::string>> fields;
  std::string created;                         ///< time at which the first run began, in UTC
  std::vector<WeightsPin> weights;             ///< empty in the records of earlier versions
  std::vector<std::string> kernels;            ///< kernel_kind() of each run that computed answers, without repetitions
  std::optional<std::uint64_t> durable_bytes;  ///< the bytes of the output on disk for sure, after a flush failed

  void set(const std::string& name, const std::string& value);
  void unset(const std::string& name);
  const std::string* find(const std::string& name) const;  ///< null if there is none
  /// Describes the first field that is not the same in `now`; empty if all are.
  std::string difference(const RunRecord& now) const;

  static std::filesystem::path place(const std::filesystem::path& output);
  /// Reads a record of this user's; returns nothing if there is none. Throws UsageError for a file that is not a record
  /// or is one of a later version, NotOwn or IoError.
  static std::optional<RunRecord> read(const std::filesystem::path& output);
  /// Writes the record, which is on disk when this returns. Only the holder of the output's lock may call it. Throws
  /// IoError.
  void write(const std::filesystem::path& output) const;
};

/// The value of the record's field "requests": their number, and the fingerprint of their lines
/// (RequestFile::fingerprint()).
std::string describe_requests(std::size_t count, std::uint64_t fingerprint);

/// The present time, such as 2026-01-31T12:00:00Z.
std::string utc_time();

}  // namespace weft::runtime
