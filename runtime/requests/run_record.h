// runtime/requests/run_record.h: the file OUTPUT.run.json, which records what the answers of a run depend on. A resume
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

/// A weights file that a run was begun with: which file it was, and once it is known the CRC-32C of all of it.
struct WeightsPin {
  std::string name;
  FileState state;
  std::optional<std::uint32_t> checksum = {};
};

/// OUTPUT.run.json. Written before the first answer, whole or not at all.
struct RunRecord {
  /// Name and value of everything that must be the same when the run goes on, in the order in which it is compared.
  std::vector<std::pair<std::string, std::string>> fields;
  std::string created;                         ///< UTC; of the first run
  std::vector<WeightsPin> weights;             ///< none in the records of earlier versions
  std::vector<std::string> kernels;            ///< kernel_kind() of each run that computed answers, once
  std::optional<std::uint64_t> durable_bytes;  ///< so much of the output is on disk for sure: a flush after it failed

  void set(const std::string& name, const std::string& value);
  void unset(const std::string& name);
  const std::string* find(const std::string& name) const;  ///< null if there is none
  /// The first field that is not the same in `now`, in words; empty if all are.
  std::string difference(const RunRecord& now) const;

  static std::filesystem::path place(const std::filesystem::path& output);
  /// Empty if there is none. Throws UsageError for a file that is no record or one of a later version, IoError.
  static std::optional<RunRecord> read(const std::filesystem::path& output);
  /// On disk when it returns. Only the holder of the output's lock may call it. Throws IoError.
  void write(const std::filesystem::path& output) const;
};

/// Now, such as 2026-01-31T12:00:00Z.
std::string utc_time();

}  // namespace weft::runtime
