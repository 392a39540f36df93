#include "runtime/engine/token_choice.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/machine/host_machine.h"

namespace weft::runtime {
namespace {

constexpr int kMostMaskThreads = 8;

}  // namespace

TokenChoice::TokenChoice(kernels::Backend& backend, int rows)
    : backend_(backend), rows_(rows), done_(backend.make_event()) {
  const auto count = static_cast<std::size_t>(rows);
  const auto each = sizeof(double) + 2 * sizeof(std::int32_t) + 2 * sizeof(float) + sizeof(std::uint8_t) +
                    kMostLogprobs * (sizeof(std::int32_t) + sizeof(float));
  memory_ = backend.allocate_host(count * each);
  std::byte* next = memory_->data();
  const auto place = [&next]<class T>(std::span<T>& span, std::size_t size) {
    span = {reinterpret_cast<T*>(next), size};
    next += span.size_bytes();
  };
  place(log_sum_, count);
  for (auto* ids : {&token_, &sampled_}) place(*ids, count);
  for (auto* numbers : {&logprob_, &logit_}) place(*numbers, count);
  place(top_token_, count * kMostLogprobs);
  place(top_logprob_, count * kMostLogprobs);
  place(greedy_, count);
}

std::uint64_t TokenChoice::prepare(std::span<Sequence> batch, const BatchRows& rows, std::int64_t vocab) {
  request_ = logit_request_of(batch, rows);
  if (request_.masks > 0 && !masks_)
    masks_ =
        backend_.allocate_host(static_cast<std::size_t>(rows_ * kernels::mask_words(vocab)) * sizeof(std::uint32_t));
  return request_.signature(rows);
}

void TokenChoice::queue_sampling(std::span<Sequence> batch, const BatchRows& rows, const View& logits,
                                 kernels::Stream& stream) {
  const auto live = static_cast<std::size_t>(rows.live());
  const std::span<std::int32_t> token = token_.first(live);
  std::vector<kernels::SampleParams> params(live);
  for (std::size_t r = 0; r < live; ++r) {
    const Sequence& sequence = batch[rows.sequence[r]];
    params[r] = sequence.sampling;
    token[r] = sequence.is_forced() ? sequence.forced[sequence.generated()] : 0;
  }
  // If some rows score and others sample, each takes its own result.
  const kernels::Ops& ops = backend_.ops();
  if (request_.scores) ops.run(kernels::LogProbs{logits, token, logprob_.first(live), greedy_.first(live)}, stream);
  if (const std::size_t count = request_.logprob_rows.size(); count > 0) {  // before any logit changes
    const std::size_t top = count * static_cast<std::size_t>(request_.alternatives);
    ops.run(kernels::TopLogProbs{logits, request_.logprob_rows, request_.alternatives, top_token_.first(top),
                                 top_logprob_.first(top), log_sum_.first(count)},
            stream);
  }
  if (!request_.samples) return;
  const auto words = static_cast<std::size_t>(kernels::mask_words(logits.cols));
  const std::span masks(masks_ ? reinterpret_cast<std::uint32_t*>(masks_->data()) : nullptr,
                        static_cast<std::size_t>(request_.masks) * words);
  if (request_.masks > 0 && backend_.device_is_host_memory()) begin_masks(batch, rows);
  // The last one first: mask threads begin at the other end, so nobody waits for them before the two meet.
  for (std::size_t r = request_.mask.size(); r-- > 0;)
    if (const std::int32_t mask = request_.mask[r]; mask >= 0)
      write_mask(batch[rows.sequence[r]], masks.subspan(static_cast<std::size_t>(mask) * words, words));
  ops.run(
      kernels::Sample{logits, params, sampled_.first(live), logit_.first(live), request_.changes, request_.mask, masks},
      stream);
}

void TokenChoice::collect_tokens(std::span<Sequence> batch, const BatchRows& rows, kernels::Stream& stream) {
  const auto live = static_cast<std::size_t>(rows.live());
  backend_.record(*done_, stream);
  backend_.synchronize(*done_);
  for (std::size_t r = 0, next = 0; r < live; ++r) {  // next: index into logprob_rows
    Sequence& sequence = batch[rows.sequence[r]];
    const bool reported =
        next < request_.logprob_rows.size() && request_.logprob_rows[next] == static_cast<std::int32_t>(r);
    const std::size_t logprob_row = next;
    next += reported ? 1 : 0;
    const bool forced = sequence.is_forced();
    const std::int32_t token = forced ? token_[r] : sampled_[r];
    if (token < 0 || (forced && std::isnan(logprob_[r]))) {
      sequence.finish = Finish::failed;
      continue;
    }
    sequence.tokens.push_back(token);
    if (reported) {
      const double chosen = forced ? double(logprob_[r]) : double(logit_[r]) - log_sum_[logprob_row];
      append_logprobs(sequence, static_cast<float>(chosen), logprob_row);
    }
    if (!forced) ++sequence.sampling.counter;
    if (!forced || sequence.prompt_tail > 0) continue;
    sequence.logprobs.push_back(logprob_[r]);
    sequence.greedy.push_back(greedy_[r]);
  }
}

void TokenChoice::look_ahead(std::span<Sequence> batch, const BatchRows& rows) {
  if (!backend_.device_is_host_memory()) begin_masks(batch, rows);
}

void TokenChoice::begin_masks(std::span<Sequence> batch, const BatchRows& rows) {
  for (const std::int32_t place : rows.sequence) {
    Sequence& sequence = batch[place];
    if (!sequence.matcher || sequence.finish != Finish::none) continue;
    if (!mask_threads_) mask_threads_.emplace(std::clamp(kernels::processors() / 2, 1, kMostMaskThreads));
    sequence.matcher->look_ahead(*mask_threads_);
  }
}

/// `logprob_row`: its index in LogitRequest::logprob_rows.
void TokenChoice::append_logprobs(Sequence& sequence, float chosen, std::size_t logprob_row) const {
  sequence.token_logprobs.chosen.push_back(chosen);
  std::vector<TokenLogprob>& top = sequence.token_logprobs.top.emplace_back();
  const std::size_t first = logprob_row * static_cast<std::size_t>(request_.alternatives);
  for (std::size_t i = first; i < first + static_cast<std::size_t>(sequence.alternatives); ++i)
    if (top_token_[i] >= 0) top.push_back({top_token_[i], top_logprob_[i]});
}

}  // namespace weft::runtime
