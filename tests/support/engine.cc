#include "tests/support/engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace weft::test {
namespace {

policy::Workload workload_of(const std::vector<Prompt>& prompts, const policy::Retention& retention) {
  policy::Workload work{.requests = static_cast<std::int64_t>(prompts.size())};
  for (const Prompt& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    work.longest_prompt = std::max(work.longest_prompt, length);
    work.longest_generation = std::max(work.longest_generation, prompt.tokens);
    work.slots = std::max(work.slots, retention.slots(length, prompt.tokens));
  }
  return work;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// One row of fp32, wherever it is.
std::vector<float> numbers_of(const View& row, kernels::Backend& backend) {
  std::vector<float> numbers(static_cast<std::size_t>(row.cols));
  const auto staging = backend.allocate_host(numbers.size() * sizeof(float));
  const auto stream = backend.make_stream();
  const auto copied = backend.make_event();
  backend.copy(staging->data(), row.data, staging->bytes(), *stream);
  backend.record(*copied, *stream);
  backend.synchronize(*copied);
  std::memcpy(numbers.data(), staging->data(), staging->bytes());
  return numbers;
}

}  // namespace

std::string difference(const Answer& expected, const Answer& got) {
  for (std::size_t i = 0; i < std::min(expected.logits.size(), got.logits.size()); ++i) {
    if (!same_bits(expected.logits[i], got.logits[i])) return "the logits before token " + std::to_string(i);
    if (i < expected.tokens.size() && (i >= got.tokens.size() || expected.tokens[i] != got.tokens[i]))
      return "token " + std::to_string(i);
  }
  if (expected.tokens != got.tokens || expected.logits.size() != got.logits.size()) return "the number of tokens";
  return same_bits(expected.logprobs, got.logprobs) ? "" : "a log-probability";
}

Engine::Engine(const runtime::ModelSource& source, const policy::PartialPolicy& policy, std::vector<Prompt> prompts,
               const runtime::MachineOptions& machine)
    : prompts_(std::move(prompts)),
      session_(
          source,
          [&](kernels::Backend&, const policy::Budgets&) {
            return runtime::Decision{policy, workload_of(prompts_, policy.retention.value_or(policy::Retention{}))};
          },
          machine, stop_) {}

std::vector<Answer> Engine::run() {
  std::vector<std::size_t> order(prompts_.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  return run(order);
}

std::vector<Answer> Engine::run(std::span<const std::size_t> order) {
  std::vector<Answer> answers(prompts_.size());
  const auto block_size = static_cast<std::size_t>(session_.policy().block_size());
  const auto batch_size = static_cast<std::size_t>(session_.policy().gpu_batch_size);
  for (std::size_t first = 0; first < order.size(); first += block_size) {
    std::vector<runtime::Sequence> block;
    for (const std::size_t index : order.subspan(first, std::min(block_size, order.size() - first))) {
      const Prompt& prompt = prompts_[index];
      runtime::Sequence& sequence = block.emplace_back();
      sequence.request = index;
      sequence.tokens = prompt.ids;
      sequence.prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
      sequence.max_tokens = prompt.tokens;
      sequence.forced = prompt.forced;
      sequence.keep = session_.keep(sequence.prompt_tokens, sequence.max_tokens);
    }
    session_.executor().run(block, [&](runtime::Sequence& sequence) {
      // The rows of the logits are the batch's sequences that have come as far as this one.
      const auto place = static_cast<std::size_t>(&sequence - block.data()), begin = place / batch_size * batch_size;
      const auto row = std::count_if(
          block.begin() + static_cast<std::ptrdiff_t>(begin), block.begin() + static_cast<std::ptrdiff_t>(place),
          [&](const runtime::Sequence& other) { return other.generated() >= sequence.generated(); });
      const View all = session_.storage().logits(static_cast<int>(place / batch_size));
      answers[sequence.request].logits.push_back(numbers_of(all.slice(row, 1), session_.backend()));
    });
    for (const runtime::Sequence& sequence : block) {
      Answer& answer = answers[sequence.request];
      answer.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
      answer.logprobs = sequence.logprobs;
    }
  }
  return answers;
}

}  // namespace weft::test
