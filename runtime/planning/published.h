// runtime/planning/published.h: compares figures that others published with FlexGen's arithmetic for the same runs.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "policy/flexgen.h"
#include "policy/model.h"

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

/// Throws UsageError, also where there is no such file, in one line that names the place.
policy::FlexGenMachine read_flexgen_machine(const std::filesystem::path& file);

/// The rows of a file, or of a folder's *.json by name, in order. "model": "opt-30b" is opt-30b.json of
/// `models_folder`. A row's "percent" is FlexGen's; its weights count as what that really places on the device
/// (flexgen_weights_on_device): decode of H2O's three logs at 20 percent then comes out at 0.99, 0.90 and 0.95 of what
/// was logged, with 20 % taken literally at 0.97, 0.88 and 0.93. "hh_ratio": share of the prompt that H2O keeps as
/// heavy hitters, and again as recent tokens. Throws UsageError as above.
std::vector<PublishedRow> read_published(const std::filesystem::path& folder_or_file,
                                         const std::filesystem::path& models_folder);

std::vector<PublishedResult> simulate_published(const std::filesystem::path& folder_or_file,
                                                const policy::FlexGenMachine& machine,
                                                const std::filesystem::path& models_folder);

/// For people. Every ratio is simulated over published; below, the same for the seconds of logs.
std::string published_table(const std::vector<PublishedResult>& results);

}  // namespace weft::runtime
