#include "runtime/answers.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "policy/json.h"
#include "runtime/utf8.h"

namespace weft::runtime {

using nlohmann::ordered_json;

Sequence Answers::begin(std::size_t index, const Request& request, const Session& session) const {
  Sequence sequence;
  sequence.request = index;
  sequence.tokens = request.prompt;
  sequence.prompt_tokens = static_cast<std::int64_t>(request.prompt.size());
  sequence.max_tokens = request.max_tokens;
  sequence.keep = session.keep(sequence.prompt_tokens, sequence.max_tokens);
  sequence.sampling = request.sampling;
  sequence.forced = request.continuation;
  sequence.stop_strings = request.stop_strings;
  sequence.stop_ids = request.stop_ids;
  sequence.stop_ids.insert(sequence.stop_ids.end(), source_.spec.eos.begin(), source_.spec.eos.end());
  return sequence;
}

void Answers::token(Sequence& sequence, const Recipient& to) {
  progress_.token();
  if (sequence.forced.empty()) look_for_end(sequence);
  if (sequence.finish == Finish::none) return;
  journal_.append(sequence.forced.empty() ? generated(sequence, to) : scored(sequence, to.id));
  progress_.finished();
}

void Answers::look_for_end(Sequence& sequence) const {
  const std::int32_t last = sequence.tokens.back();
  if (std::find(sequence.stop_ids.begin(), sequence.stop_ids.end(), last) != sequence.stop_ids.end()) {
    sequence.finish = Finish::stop;
    sequence.ended_by_token = true;
    return;
  }
  if (sequence.stop_strings.empty()) return;
  const std::string_view piece = source_.tokenizer->piece(last);
  sequence.text += piece;
  for (const std::string& stop : sequence.stop_strings) {
    const std::size_t reach = piece.size() + stop.size();  // a new match ends in the new piece
    const std::size_t from = sequence.text.size() > reach ? sequence.text.size() - reach : 0;
    sequence.text_end = std::min(sequence.text_end, sequence.text.find(stop, from));
  }
  if (sequence.text_end != std::string::npos) sequence.finish = Finish::stop;
}

std::string Answers::generated(const Sequence& sequence, const Recipient& to) const {
  Choice choice;
  choice.tokens.assign(sequence.tokens.begin() + sequence.prompt_tokens, sequence.tokens.end());
  choice.has_text = source_.tokenizer != nullptr;
  if (choice.has_text) {
    const std::span<const std::int32_t> shown =
        std::span(choice.tokens).first(choice.tokens.size() - (sequence.ended_by_token ? 1 : 0));
    choice.text = sequence.text_end != std::string::npos ? with_replacements(sequence.text.substr(0, sequence.text_end))
                                                         : source_.tokenizer->decode(shown);
  }
  choice.finish = sequence.finish == Finish::stop ? "stop" : "length";
  return result_line(to, sequence.prompt_tokens, {&choice, 1}, source_.tokenizer.get());
}

std::string Answers::scored(const Sequence& sequence, const std::string& id) {
  double sum = 0;
  ordered_json logprobs = ordered_json::array(), greedy = ordered_json::array();
  for (std::size_t i = 0; i < sequence.logprobs.size(); ++i) {
    sum += sequence.logprobs[i];
    logprobs.push_back(double(sequence.logprobs[i]));
    greedy.push_back(sequence.greedy[i] != 0);
  }
  return policy::to_line(ordered_json{{"id", ordered_json::parse(id)},
                                      {"logprobs", std::move(logprobs)},
                                      {"logprob", sum},
                                      {"greedy", std::move(greedy)}});
}

}  // namespace weft::runtime
