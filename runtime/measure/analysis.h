// runtime/measure/analysis.h: weft analyze: what a model's attention looks like on given text.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "runtime/engine/machine_options.h"

namespace weft::runtime {

struct AnalysisOptions {
  std::string model, input, dtype = "auto", weights;
  std::optional<std::int64_t> window;   ///< tokens; by default 2048, or as many as the context holds
  std::optional<std::int64_t> queries;  ///< of each window's second half, that are looked at; by default at most 64
  std::int64_t most_tokens = 0;         ///< 0: all of the input
  std::optional<double> budget;         ///< a share of all tokens, to be divided (layer_budgets())
  enum class Divide : std::uint8_t { layers, heads, both } divide = Divide::layers;  ///< among what; heads: of a layer
  MachineOptions machine;  ///< whose backend must be the CPU's
};

/// Told after each window how many tokens were read.
using AnalysisProgress = std::function<void(std::int64_t tokens)>;

/// Runs the texts of `input` ({"text": ...} or {"ids": [...]}, one object a line) through the model in windows of one
/// length, and reports what AttentionProfile holds, and under "by_layer" how a budget is best divided. Memory does not
/// grow with the input. Throws UsageError, DataError, CapacityError, IoError, Interrupted.
nlohmann::ordered_json run_analysis(const AnalysisOptions& options, const std::atomic<bool>& stop,
                                    const AnalysisProgress& progress = {});

/// A line per layer, for a terminal; three more of a budget that was divided.
std::string analysis_table(const nlohmann::ordered_json& report);
/// One HTML page with the figures as pictures, which loads nothing.
std::string analysis_page(const nlohmann::ordered_json& report);

}  // namespace weft::runtime
