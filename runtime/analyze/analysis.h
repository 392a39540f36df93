// runtime/analyze/analysis.h: weft analyze: measures what a model's attention looks like on given text.
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
  std::optional<std::int64_t> queries;  ///< looked at in each window's second half; by default at most 64
  std::int64_t most_tokens = 0;         ///< 0: all of the input
  std::optional<double> budget;         ///< a share of all tokens to be divided (layer_budgets())
  enum class Divide : std::uint8_t { layers, heads, both } divide = Divide::layers;  ///< heads: of a layer
  MachineOptions machine;                                                            ///< its backend must be the CPU's
};

/// Called after each window with the number of tokens that were read.
using AnalysisProgress = std::function<void(std::int64_t tokens)>;

/// Runs the texts of `input` ({"text": ...} or {"ids": [...]}, one object a line) through the model in windows of one
/// length. Reports the figures of AttentionProfile and, under "by_layer", how a budget is best divided. Memory does not
/// grow with the input. Throws UsageError, DataError, CapacityError, IoError, Interrupted.
nlohmann::ordered_json run_analysis(const AnalysisOptions& options, const std::atomic<bool>& stop,
                                    const AnalysisProgress& progress = {});

/// A table for a terminal: a line per layer, and three more lines if a budget was divided.
std::string analysis_table(const nlohmann::ordered_json& report);
/// One HTML page that draws the figures. It loads nothing.
std::string analysis_page(const nlohmann::ordered_json& report);

}  // namespace weft::runtime
