#include "runtime/job/answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <utility>

#include "policy/base/json.h"
#include "runtime/base/hash.h"
#include "runtime/requests/reasoning.h"

namespace weft::runtime {

using nlohmann::ordered_json;

namespace {

std::string failure_line(const Recipient& to) {
  return refusal_line(
      {.id = to.id,
       .code = kNotFinite,
       .param = "",
       .reason = "the model gives no finite logits for this request: its weights are broken, --dtype is too narrow for "
                 "them, or 'bad_words', 'allowed_token_ids' and the form of the answer forbid all tokens",
       .metadata = to.metadata},
      to.endpoint == Endpoint::native ? Dialect::native : Dialect::openai);
}

SpecialTokens special_of(bool shown) { return shown ? SpecialTokens::shown : SpecialTokens::skipped; }

void keep_likeliest(ChoiceLogprobs& logprobs, std::int32_t count) {
  for (auto& top : logprobs.top)
    if (std::ssize(top) > count) top.resize(static_cast<std::size_t>(count));
}

/// Gives a choice the log-probabilities that its sequence collected: those of the prompt, and those of the answer.
void share_logprobs(Sequence& sequence, Choice& choice) {
  ChoiceLogprobs all = std::move(sequence.token_logprobs);
  if (sequence.prompt_logprobs >= 0) {
    const auto whole = sequence.tokens.begin() + sequence.whole_prompt();
    choice.prompt.assign(sequence.tokens.begin(), whole);
    const auto tail = static_cast<std::ptrdiff_t>(sequence.prompt_tail);
    choice.prompt_logprobs.chosen.assign(all.chosen.begin(), all.chosen.begin() + tail);
    choice.prompt_logprobs.top.assign(all.top.begin(), all.top.begin() + tail);
    keep_likeliest(choice.prompt_logprobs, sequence.prompt_logprobs);
    all.chosen.erase(all.chosen.begin(), all.chosen.begin() + tail);
    all.top.erase(all.top.begin(), all.top.begin() + tail);
  }
  if (sequence.answer_logprobs < 0) return;
  keep_likeliest(all, sequence.answer_logprobs);
  choice.logprobs = std::move(all);
}

}  // namespace

Answers::Answers(const Session& session, ResultSink& results, Progress& progress, std::size_t capacity)
    : session_(session), source_(session.source()), results_(results), progress_(progress), ended_(capacity),
      writer_([this] { write_ended(); }) {}

Answers::~Answers() {
  ended_.close();
  if (writer_.joinable()) writer_.join();
}

void Answers::finish() {
  ended_.close();
  writer_.join();
  if (error_) std::rethrow_exception(error_);
}

Sequence Answers::begin(std::size_t index, std::int32_t choice, const Request& request) {
  {
    const std::lock_guard lock(mutex_);
    Pending& pending = pending_[index];
    pending.to = Recipient::of(request);
    pending.choices.resize(static_cast<std::size_t>(request.n));
  }
  Sequence sequence;
  sequence.request = index;
  sequence.choice = choice;
  sequence.tokens = request.prompt;
  sequence.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  sequence.min_tokens = request.min_tokens;
  sequence.max_tokens = request.max_tokens;
  sequence.keep = session_.keep(sequence.prompt_tokens, sequence.max_tokens);
  sequence.sampling = request.sampling;
  if (choice > 0) sequence.sampling.key = mix(sequence.sampling.key ^ mix(static_cast<std::uint64_t>(choice)));
  sequence.forced = request.continuation;
  std::vector<std::int32_t> prompt = request.prompt;
  if (request.prompt_logprobs >= 0) {
    sequence.prompt_tail = std::ssize(request.continuation);
    prompt.insert(prompt.end(), request.continuation.begin(), request.continuation.end());
  }
  if (!request.stop_strings.empty())
    sequence.stop_search.emplace(*source_.tokenizer, prompt, request.stop_strings, special_of(request.show_special));
  sequence.stop_ids = request.stop_ids;
  const std::vector<std::int32_t>& eos = source_.spec.eos;
  if (!request.ignore_eos) sequence.stop_ids.insert(sequence.stop_ids.end(), eos.begin(), eos.end());
  if (request.min_tokens > 0) {  // as in vLLM, eos tokens are forbidden until then even if they are ignored
    sequence.suppressed_until_min = request.stop_ids;
    sequence.suppressed_until_min.insert(sequence.suppressed_until_min.end(), eos.begin(), eos.end());
  }
  sequence.rules = request.rules;
  if (request.grammar) sequence.matcher.emplace(*request.grammar, request.ignore_eos);
  sequence.reasoning = request.reasoning;
  sequence.include_stop = request.include_stop;
  sequence.show_special = request.show_special;
  sequence.alternatives = std::max(request.logprobs, request.prompt_logprobs);
  sequence.prompt_logprobs = request.prompt_logprobs;
  sequence.answer_logprobs = request.logprobs;
  sequence.hides_first = request.first_added;
  if (request.echo)
    sequence.echo = request.prompt_text ? *request.prompt_text : source_.tokenizer->decode_shown(prompt);
  return sequence;
}

void Answers::token(Sequence& sequence) {
  if (sequence.finish != Finish::failed) {
    progress_.token();
    if (sequence.sampled() > 0) look_for_end(sequence);
  }
  if (sequence.finish == Finish::none) return;
  if (const std::int64_t never = sequence.max_tokens - sequence.generated(); never > 0)
    progress_.ended_early(static_cast<std::uint64_t>(never));
  {
    const std::lock_guard lock(mutex_);
    ++handed_;
  }
  if (!ended_.push(std::move(sequence))) std::rethrow_exception(error_);
}

void Answers::write_ended() try {
  while (std::optional<Sequence> sequence = ended_.pop()) {
    write(*sequence);
    const std::lock_guard lock(mutex_);
    --handed_;
    done_.notify_one();
  }
} catch (...) {
  const std::lock_guard lock(mutex_);
  error_ = std::current_exception();
  done_.notify_one();
  ended_.close();
}

void Answers::drain() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return handed_ == 0 || error_; });
  if (error_) std::rethrow_exception(error_);
}

/// Gives a sequence that has just begun the tokens of a choice. Returns false if it does not end with them.
bool Answers::replay(Sequence& sequence, const Choice& choice) const {
  const std::int64_t vocab = source_.spec.vocab;
  if (!are_ids(choice.tokens, vocab) || std::ssize(choice.tokens) > sequence.max_tokens) return false;
  for (const std::int32_t token : choice.tokens) {
    if (sequence.finish != Finish::none) return false;
    sequence.tokens.push_back(token);
    look_for_end(sequence);
  }
  if (sequence.finish == Finish::failed) return false;
  if (sequence.finish == Finish::none && sequence.generated() == sequence.max_tokens) sequence.finish = Finish::length;
  const char* const finish = sequence.finish == Finish::stop ? "stop" : "length";
  if (sequence.finish == Finish::none || std::string_view(choice.finish) != finish) return false;
  if (choice.logprobs.has_value() != (sequence.alternatives >= 0)) return false;
  if (choice.logprobs) sequence.token_logprobs = *choice.logprobs;
  return fits(sequence.token_logprobs, choice.tokens.size(), sequence.alternatives, vocab);
}

bool Answers::take_up(const Request& request, const SavedChoice& saved) {
  Sequence sequence = begin(static_cast<std::size_t>(saved.request), saved.index, request);
  if (!sequence.forced.empty() || !replay(sequence, saved.choice)) return false;
  const std::lock_guard lock(mutex_);
  Pending& pending = pending_.at(static_cast<std::size_t>(saved.request));
  pending.choices[static_cast<std::size_t>(saved.index)] = choice_of(sequence);
  ++pending.ended;
  return true;
}

std::vector<SavedChoice> Answers::ended_choices() const {
  std::vector<SavedChoice> all;
  const std::lock_guard lock(mutex_);
  for (const auto& [request, pending] : pending_)
    for (std::size_t i = 0; i < pending.choices.size(); ++i)
      if (!pending.choices[i].tokens.empty())
        all.push_back({.request = request, .choice = pending.choices[i], .index = static_cast<std::int32_t>(i)});
  return all;
}

void Answers::write(Sequence& sequence) {
  const bool generated = sequence.forced.empty() || sequence.prompt_tail > 0,
             failed = sequence.finish == Finish::failed;
  std::optional<Choice> choice;
  if (generated && !failed) choice = choice_of(sequence);
  std::optional<Pending> whole;
  {
    const std::lock_guard lock(mutex_);
    Pending& pending = pending_.at(sequence.request);
    if (choice) pending.choices[static_cast<std::size_t>(sequence.choice)] = *std::move(choice);
    pending.failed |= failed;
    if (++pending.ended < pending.choices.size()) return;
    whole = std::move(pending);
    pending_.erase(sequence.request);
  }
  session_.require_weights();
  results_.append(whole->failed ? failure_line(whole->to)
                  : generated ? result_line(whole->to, sequence.whole_prompt(), whole->choices, source_.tokenizer.get())
                              : scored(sequence, whole->to));
  progress_.finished();
}

void Answers::look_for_end(Sequence& sequence) const {
  const std::int32_t last = sequence.tokens.back();
  if (std::find(sequence.stop_ids.begin(), sequence.stop_ids.end(), last) != sequence.stop_ids.end()) {
    sequence.finish = Finish::stop;
    sequence.ended_by_token = true;
    return;
  }
  if (sequence.stop_search && sequence.stop_search->push(last, sequence.answered() > sequence.min_tokens))
    sequence.finish = Finish::stop;
  if (!sequence.matcher || sequence.finish == Finish::stop || sequence.finish == Finish::failed) return;
  if (!sequence.matcher->accept(last)) sequence.finish = Finish::failed;
  else if (sequence.matcher->complete()) sequence.finish = Finish::stop;
}

Choice Answers::choice_of(Sequence& sequence) const {
  Choice choice;
  choice.tokens.assign(sequence.tokens.begin() + sequence.whole_prompt(), sequence.tokens.end());
  choice.finish = sequence.finish == Finish::stop ? "stop" : "length";
  if (sequence.alternatives >= 0) share_logprobs(sequence, choice);
  if (!source_.tokenizer) return choice;
  choice.has_text = true;
  const bool without_last = sequence.ended_by_token && !sequence.include_stop;
  const std::span<const std::int32_t> all(sequence.tokens.data(), sequence.tokens.size() - (without_last ? 1 : 0));
  const auto prompt = all.first(static_cast<std::size_t>(sequence.whole_prompt())), answer = all.subspan(prompt.size());
  choice.shows_special = sequence.show_special;
  const SpecialTokens special = special_of(sequence.show_special);
  choice.text = sequence.stop_search && sequence.stop_search->found()
                    ? sequence.stop_search->text_before(prompt, answer, sequence.include_stop)
                    : source_.tokenizer->decode_after(prompt, answer, special);
  std::tie(choice.reasoning, choice.text) = split_reasoning(sequence.reasoning, std::move(choice.text));
  IncrementalDecoder after(*source_.tokenizer, special);
  after.follow(prompt);
  choice.follows_text = after.begun();
  choice.echoes = sequence.echo.has_value();
  choice.hides_first = sequence.hides_first;
  if (choice.echoes) choice.text.insert(0, *sequence.echo);
  return choice;
}

std::string Answers::scored(const Sequence& sequence, const Recipient& to) {
  double sum = 0;
  ordered_json logprobs = ordered_json::array(), greedy = ordered_json::array();
  for (std::size_t i = 0; i < sequence.logprobs.size(); ++i) {
    sum += sequence.logprobs[i];
    logprobs.push_back(double(sequence.logprobs[i]));
    greedy.push_back(sequence.greedy[i] != 0);
  }
  ordered_json line = native_line(to.id, to.metadata);
  line["logprobs"] = std::move(logprobs);
  line["logprob"] = sum;
  line["greedy"] = std::move(greedy);
  return policy::to_line(line);
}

}  // namespace weft::runtime
