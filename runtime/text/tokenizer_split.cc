#include "runtime/text/tokenizer_split.h"

#include <utility>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_files.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace {

/// A part of a piece, and whether it is a match.
struct Range {
  std::size_t begin, end;
  bool match;
};

bool is_punctuation(std::string_view text, const Utf8Char& c) {
  const char ascii = text.front();
  if (c.bytes == 1)
    return (ascii >= '!' && ascii <= '/') || (ascii >= ':' && ascii <= '@') || (ascii >= '[' && ascii <= '`') ||
           (ascii >= '{' && ascii <= '~');
  return c.state == Utf8::valid && char_kind(c.code) == CharKind::punctuation;
}

/// The end of a match of the step at text[at], or npos.
std::size_t match_end(const SplitStep& step, std::string_view text, std::size_t at, Regex::Scratch& scratch) {
  constexpr auto npos = std::string_view::npos;
  switch (step.kind) {
    case SplitStep::Kind::pattern: return step.regex->match(text, at, scratch);
    case SplitStep::Kind::text: return text.substr(at).starts_with(step.text) ? at + step.text.size() : npos;
    case SplitStep::Kind::digit: {
      const Utf8Char c = utf8_at(text, at);
      return c.state == Utf8::valid && char_kind(c.code) == CharKind::number ? at + c.bytes : npos;
    }
    case SplitStep::Kind::punctuation: {
      const Utf8Char c = utf8_at(text, at);
      return is_punctuation(text.substr(at), c) ? at + c.bytes : npos;
    }
    case SplitStep::Kind::bytes:
    case SplitStep::Kind::gpt2_bytes: break;
  }
  return npos;
}

std::vector<Range> ranges_of(const SplitStep& step, std::string_view text, Regex::Scratch& scratch) {
  std::vector<Range> ranges;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = match_end(step, text, at, scratch);
    if (end == std::string_view::npos) {
      at += utf8_at(text, at).bytes;
      continue;
    }
    if (at > done) ranges.push_back({done, at, step.invert});
    ranges.push_back({at, end, !step.invert});
    done = at = end;
  }
  if (done < text.size()) ranges.push_back({done, text.size(), step.invert});
  return ranges;
}

/// Adds the pieces that a step makes of one.
void cut(const SplitStep& step, const std::string& piece, std::vector<std::string>& out, Regex::Scratch& scratch) {
  std::vector<Range> kept;
  bool joins = false;  // the next range belongs to the last one
  for (const Range& range : ranges_of(step, piece, scratch)) {
    const bool more = !kept.empty() &&
                      ((joins && !range.match) || (step.cut == Cut::to_previous && range.match && !kept.back().match) ||
                       (step.cut == Cut::contiguous && range.match == kept.back().match));
    joins = step.cut == Cut::to_next && range.match;
    if (step.cut == Cut::removed && range.match) continue;
    if (more) kept.back() = {kept.back().begin, range.end, range.match};
    else kept.push_back(range);
  }
  for (const Range& range : kept) out.push_back(piece.substr(range.begin, range.end - range.begin));
}

std::string in_alphabet(std::string_view bytes) {
  std::string name;
  for (const char c : bytes) name += alphabet_of_byte(static_cast<unsigned char>(c));
  return name;
}

}  // namespace

std::vector<std::string> split_by(const std::vector<SplitStep>& steps, std::string_view text, Regex::Scratch& scratch) {
  std::vector<std::string> pieces{std::string(text)};
  bool alphabet = false;
  for (const SplitStep& step : steps) {
    std::vector<std::string> next;
    for (const std::string& piece : pieces) {
      if (step.kind == SplitStep::Kind::bytes) {
        next.push_back(in_alphabet(piece));
      } else if (step.kind == SplitStep::Kind::gpt2_bytes) {
        for (std::size_t at = 0, length = 0; at < piece.size(); at += length) {
          length = word_length(Pattern::gpt2, piece, at);
          next.push_back(in_alphabet(std::string_view(piece).substr(at, length)));
        }
      } else {
        cut(step, piece, next, scratch);
      }
    }
    alphabet = alphabet || step.kind == SplitStep::Kind::bytes || step.kind == SplitStep::Kind::gpt2_bytes;
    pieces = std::move(next);
  }
  if (alphabet)
    for (std::string& piece : pieces) piece = bytes_of_name(piece);
  return pieces;
}

}  // namespace weft::runtime
