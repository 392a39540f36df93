// runtime/planning/published.h: compares published figures of other systems with FlexGen's arithmetic.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policy/model/model.h"
#include "policy/planner/flexgen.h"

namespace weft::runtime {

/// A row of a table or a log. Files of configs/published have a list of them under "rows".
struct PublishedRow {
  std::string system;                ///< Accelerate, DeepSpeed, FlexGen or H2O
  std::string model;                 ///< "opt-30b"
  std::filesystem::path model_file;  ///< its config.json
  policy::ModelSpec spec;
  policy::FlexGenRun run;
  double tokens_per_second = 0;  ///< generated tokens over prefill and decode
  std::optional<double> prefill_seconds, decode_seconds;
  std::string kind;    ///< measured; projected from a part of the run; or unknown
  std::string source;  ///< the table or log
};

struct PublishedResult {
  PublishedRow row;
  policy::FlexGenTimes simulated;
};

/// Throws UsageError, in one line that names the place; also if there is no such file.
policy::FlexGenMachine read_flexgen_machine(const std::filesystem::path& file);

/// Reads the rows of a file, or of all *.json in a folder in the order of their names. "model": "opt-30b" is
/// opt-30b.json in `models_folder`. A row's "percent" is FlexGen's. Its weights count as what FlexGen really places on
/// the device for that percentage (flexgen_weights_on_device). Decode of H2O's three logs at 20 percent then comes out
/// at 0.99, 0.90 and 0.95 of what was logged; with 20 % taken literally it would be 0.97, 0.88 and 0.93. "hh_ratio" is
/// the share of the prompt that H2O keeps as heavy hitters, and again as recent tokens. Throws UsageError as above.
std::vector<PublishedRow> read_published(const std::filesystem::path& folder_or_file,
                                         const std::filesystem::path& models_folder);

std::vector<PublishedResult> simulate_published(const std::filesystem::path& folder_or_file,
                                                const policy::FlexGenMachine& machine,
                                                const std::filesystem::path& models_folder);

/// A table for people. Every ratio is simulated over published. A second table does the same for the seconds of logs.
std::string published_table(const std::vector<PublishedResult>& results);

}  // namespace weft::runtime
