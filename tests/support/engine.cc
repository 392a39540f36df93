#include "tests/support/engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/support/files.h"
#include "tests/support/numbers.h"

namespace weft::test {
namespace {

policy::Workload workload_of(const std::vector<Prompt>& prompts, const policy::Retention& retention, bool shares) {
  policy::Workload work{.requests = static_cast<std::int64_t>(prompts.size())};
  for (const Prompt& prompt : prompts) {
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    work.longest_prompt = std::max(work.longest_prompt, length);
    work.longest_generation = std::max(work.longest_generation, prompt.tokens);
    if (shares) work.longest_prefix = std::max(work.longest_prefix, prompt.prefix);
    work.slots.cover(retention.slots(length, prompt.tokens));
    work.cold_slots.cover(retention.cold_slots(length, prompt.tokens));
  }
  return work;
}

bool same_logprobs(const runtime::ChoiceLogprobs& a, const runtime::ChoiceLogprobs& b) {
  const auto same = [](const runtime::TokenLogprob& x, const runtime::TokenLogprob& y) {
    return x.token == y.token && same_bits({x.logprob}, {y.logprob});
  };
  return same_bits(a.chosen, b.chosen) &&
         std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(), [&](const auto& x, const auto& y) {
           return std::equal(x.begin(), x.end(), y.begin(), y.end(), same);
         });
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

std::unique_ptr<runtime::ModelSource> open_sinks(const std::optional<policy::WeightFormat>& format) {
  auto source = std::make_unique<runtime::ModelSource>(runtime::ModelFiles::open(data_path("sinks")));
  source->spec = runtime::read_model_spec(source->files);
  source->spec.sinks = true;
  source->units = policy::model_units(source->spec);
  source->type = source->spec.dtype;
  source->weight_format = format;
  source->checkpoint = std::make_unique<runtime::Checkpoint>(runtime::Checkpoint::open(source->path));
  source->weights =
      std::make_unique<runtime::Weights>(source->spec, source->units, *source->checkpoint, source->type, format);
  return source;
}

std::string difference(const Answer& expected, const Answer& got) {
  for (std::size_t i = 0; i < std::min(expected.logits.size(), got.logits.size()); ++i) {
    if (!same_bits(expected.logits[i], got.logits[i])) return "the logits before token " + std::to_string(i);
    if (i < expected.tokens.size() && (i >= got.tokens.size() || expected.tokens[i] != got.tokens[i]))
      return "token " + std::to_string(i);
  }
  if (expected.tokens != got.tokens || expected.logits.size() != got.logits.size()) return "the number of tokens";
  if (!same_logprobs(expected.token_logprobs, got.token_logprobs)) return "a log-probability that was asked for";
  return same_bits(expected.logprobs, got.logprobs) ? "" : "a log-probability";
}

double largest_logit(const std::vector<float>& logits) {
  double largest = 0;
  for (const float logit : logits) largest = std::max(largest, std::abs(double(logit)));
  return largest;
}

double logit_deviation(const std::vector<float>& expected, const std::vector<float>& got) {
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i)
    worst = larger_error(worst, std::abs(double(expected[i]) - double(got.at(i))));
  return worst / largest_logit(expected);
}

std::string by_layer(const std::string& rule, int layers) {
  std::string text = rule + ":layers=";
  for (int layer = 0; layer + 1 < layers; layer += 2) text += layer == 0 ? "0.5,1.5" : ",0.5,1.5";
  return text + (layers % 2 == 1 ? ",full" : "");
}

std::string by_head(const std::string& rule, int layers, int kv_heads) {
  std::string text = rule + ":layers=";
  for (int layer = 0; layer < layers; ++layer) {
    if (layer > 0) text += ",";
    const int width = 1 + layer % 2, paired = kv_heads / (2 * width) * 2 * width;
    for (int head = 0; head < kv_heads; ++head) {
      if (head > 0) text += "/";
      text += head >= paired ? (layer % 2 == 0 ? "full" : "1") : (head / width + layer) % 2 == 0 ? "0.5" : "1.5";
    }
  }
  return text;
}

Engine::Engine(const runtime::ModelSource& source, const policy::PartialPolicy& policy, std::vector<Prompt> prompts,
               const runtime::MachineOptions& machine, bool shares)
    : prompts_(std::move(prompts)),
      session_(
          source,
          [&](kernels::Backend&, const policy::Budgets&) {
            return runtime::Decision{policy,
                                     workload_of(prompts_, policy.retention.value_or(policy::Retention{}), shares)};
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
  const bool refills = session_.policy().continuous;
  for (std::size_t first = 0; first < order.size(); first += refills ? order.size() : block_size) {
    std::size_t next = std::min(order.size(), first + block_size);
    const auto begin = [&](std::size_t index) {
      const Prompt& prompt = prompts_[index];
      runtime::Sequence sequence;
      sequence.request = index;
      sequence.tokens = prompt.ids;
      sequence.prompt_tokens = static_cast<std::int64_t>(prompt.ids.size());
      sequence.max_tokens = prompt.tokens;
      sequence.forced = prompt.forced;
      sequence.min_tokens = prompt.min_tokens;
      sequence.suppressed_until_min = prompt.suppressed_until_min;
      sequence.alternatives = prompt.alternatives;
      sequence.prefix_tokens = prompt.prefix;
      sequence.rules = prompt.rules;
      sequence.keep = session_.keep(sequence.prompt_tokens, sequence.max_tokens);
      return sequence;
    };
    std::vector<runtime::Sequence> block;
    for (const std::size_t index : order.subspan(first, next - first)) block.push_back(begin(index));
    const runtime::Waiting waiting{
        .count = refills ? static_cast<std::int64_t>(order.size() - next) : 0,
        .next = [&](runtime::Sequence& place) { place = begin(order[next++]); },
        .next_has_begun = {},
        .next_shares = [&](const runtime::Sequence& place) { return prompts_[order[next]].ids == place.tokens; }};
    const auto on_token = [&](runtime::Sequence& sequence) {
      const auto place = static_cast<std::size_t>(&sequence - block.data());
      const auto batch = static_cast<int>(place / batch_size);
      const auto& places = session_.executor().rows(batch).sequence;
      const auto row =
          std::find(places.begin(), places.end(), static_cast<std::int32_t>(place % batch_size)) - places.begin();
      Answer& answer = answers[sequence.request];
      answer.logits.push_back(numbers_of(session_.storage().logits(batch).slice(row, 1), session_.backend()));
      if (sequence.finish == runtime::Finish::none) return;
      answer.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
      answer.logprobs = sequence.logprobs;
      answer.token_logprobs = sequence.token_logprobs;
    };
    session_.executor().run(block, on_token, waiting);
  }
  return answers;
}

}  // namespace weft::test
