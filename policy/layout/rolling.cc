#include "policy/layout/rolling.h"

#include "kernels/error.h"

namespace weft::policy {

Rolling rolling_of(const ModelSpec& model, const Retention& retention) {
  return {retention.rolled() ? model.positions : 0};
}

void check_positions(const Retention& retention, const ModelSpec& model, const std::string& where) {
  if (!model.windows.empty() && (retention.rolled() || retention.rest))
    throw UsageError(where + ": " + (retention.rolled() ? "'positions' is 'rolled'" : "'rest' is true") + ", but " +
                     model.architecture +
                     " has layers with a sliding window, which tokens leave by their position; leave it out");
  if (retention.rolled() && model.late_head_norm)
    throw UsageError(where + ": 'positions' is 'rolled', but " + model.architecture +
                     " norms keys after their rotation, so that stored keys cannot be moved to others; leave it out");
  if (!retention.rolled() || !model.rotary.empty()) return;
  throw UsageError(where + ": 'positions' is 'rolled', but " + model.architecture +
                   " adds learned positions to the embeddings, so that stored keys cannot be moved to others; leave it "
                   "out, or take a model with rotary embedding");
}

std::optional<std::string> too_long(const ModelSpec& model, const Retention& retention, std::int64_t prompt,
                                    std::int64_t generation) {
  if (generation <= model.positions - prompt) return {};  // a sum could be too large for 64 bits
  if (!retention.rolled() || prompt > model.positions) return "";
  const kernels::Keep kept = retention.kept(prompt, generation);
  const std::int64_t budget = std::int64_t{kept.heavy} + kept.recent;
  if (budget < model.positions) return {};
  return ", and rolled positions need a budget below it, but the retention keeps " + std::to_string(budget) +
         " of so many tokens; give it as a number of tokens";
}

}  // namespace weft::policy
