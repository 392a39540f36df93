#include "runtime/analyze/layer_losses.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "kernels/error.h"
#include "policy/layout/retention.h"
#include "runtime/analyze/layer_budgets.h"

namespace weft::runtime {
namespace {

constexpr int kTogether = 8;  // sequences of a block, which share a prefill

}  // namespace

Decision LayerLosses::decision(std::int64_t window, const policy::ModelSpec& model) {
  const int layers = model.layers;
  Decision decision;
  decision.policy.gpu_batch_size = std::min(kTogether, layers + 1);
  decision.policy.num_gpu_batches = 1;
  decision.policy.continuous = false;
  decision.policy.max_batched_tokens = window;  // the observer sees whole windows
  policy::Retention retention = policy::Retention::from_text("h2o:" + std::to_string(window) + ":1");
  retention.layers.assign(static_cast<std::size_t>(layers), {policy::Retention::kOnce});  // each layer has its own
  decision.work = policy::alike(*decision.policy.gpu_batch_size, window, 1, retention, model.windows);
  decision.work.longest_generation = window - window / 2;
  decision.policy.retention = std::move(retention);
  return decision;
}

void LayerLosses::see(std::span<const std::int32_t> tokens) {
  const int count = 1 + session_.source().spec.layers;
  sums_.resize(static_cast<std::size_t>(count));
  for (int first = 0; first < count; first += session_.policy().gpu_batch_size) {
    const int some = std::min(session_.policy().gpu_batch_size, count - first);
    const std::vector<double> found = likelihoods(tokens, first - 1, some);
    std::transform(found.begin(), found.end(), sums_.begin() + first, sums_.begin() + first, std::plus<>());
  }
  ++windows_;
}

std::vector<double> LayerLosses::likelihoods(std::span<const std::int32_t> tokens, int first, int count) {
  const std::int64_t prompt = std::ssize(tokens) / 2, rest = std::ssize(tokens) - prompt;
  std::vector<Sequence> block(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    Sequence& sequence = block[static_cast<std::size_t>(i)];
    sequence.tokens.assign(tokens.begin(), tokens.begin() + prompt);
    sequence.forced.assign(tokens.begin() + prompt, tokens.end());
    sequence.prompt_tokens = prompt, sequence.max_tokens = rest;
    sequence.keep = session_.keep(prompt, rest);
    if (const int layer = first + i; layer >= 0)
      sequence.keep[static_cast<std::size_t>(layer)] = {
          h2o_of(budget_).kept(prompt, rest, 0, 0, session_.source().spec.window(layer))};
  }
  session_.executor().run(block, [](const Sequence& sequence) {
    if (sequence.finish == Finish::failed)
      throw DataError("a row of logits has no finite number; the weights or --dtype do not fit the model");
  });
  std::vector<double> found;
  for (const Sequence& sequence : block)
    found.push_back(-std::accumulate(sequence.logprobs.begin(), sequence.logprobs.end(), 0.0) / double(rest));
  return found;
}

std::vector<double> LayerLosses::losses() const {
  std::vector<double> losses;
  for (std::size_t layer = 1; layer < sums_.size(); ++layer)
    losses.push_back((sums_[layer] - sums_[0]) / double(windows_));
  return losses;
}

}  // namespace weft::runtime
