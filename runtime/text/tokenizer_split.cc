#include "runtime/text/tokenizer_split.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_files.h"
#include "runtime/text/tokenizer_normalize.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace {

/// A part of a piece, and whether it is a match. Only matches may be empty, such as those of looks ahead; they part
/// what is on their sides.
struct Range {
  std::size_t begin, end;
  bool match;
};

/// Characters that Hugging Face's Punctuation sees otherwise than \p{P} of its patterns, which is of a later Unicode.
constexpr std::array kOtherPunctuation = std::to_array<std::pair<char32_t, char32_t>>(
    {{0x61D, 0x61D},     {0x9FD, 0x9FD},     {0xA76, 0xA76},     {0xC77, 0xC77},     {0xC84, 0xC84},
     {0x166D, 0x166D},   {0x1B4E, 0x1B4F},   {0x1B7D, 0x1B7F},   {0x2E43, 0x2E4F},   {0x2E52, 0x2E5D},
     {0x10D6E, 0x10D6E}, {0x10EAD, 0x10EAD}, {0x10F55, 0x10F59}, {0x10F86, 0x10F89}, {0x111C9, 0x111C9},
     {0x113D4, 0x113D5}, {0x113D7, 0x113D8}, {0x1144B, 0x1144F}, {0x1145A, 0x1145B}, {0x1145D, 0x1145D},
     {0x11660, 0x1166C}, {0x116B9, 0x116B9}, {0x1183B, 0x1183B}, {0x11944, 0x11946}, {0x119E2, 0x119E2},
     {0x11A3F, 0x11A46}, {0x11A9A, 0x11A9C}, {0x11A9E, 0x11AA2}, {0x11B00, 0x11B09}, {0x11BE1, 0x11BE1},
     {0x11C41, 0x11C45}, {0x11C70, 0x11C71}, {0x11EF7, 0x11EF8}, {0x11F43, 0x11F4F}, {0x11FFF, 0x11FFF},
     {0x12FF1, 0x12FF2}, {0x16D6D, 0x16D6F}, {0x16E97, 0x16E9A}, {0x16FE2, 0x16FE2}, {0x1E5FF, 0x1E5FF},
     {0x1E95E, 0x1E95F}});

bool is_other_punctuation(char32_t code) {
  return std::any_of(kOtherPunctuation.begin(), kOtherPunctuation.end(),
                     [code](const auto& range) { return code >= range.first && code <= range.second; });
}

bool is_punctuation(std::string_view text, const Utf8Char& c) {
  const char ascii = text.front();
  if (c.bytes == 1)
    return (ascii >= '!' && ascii <= '/') || (ascii >= ':' && ascii <= '@') || (ascii >= '[' && ascii <= '`') ||
           (ascii >= '{' && ascii <= '~');
  return c.state == Utf8::valid && (char_kind(c.code) == CharKind::punctuation) != is_other_punctuation(c.code);
}

/// The end of a match of the step at text[at], or npos; `goes_on` is that of Regex::match().
std::size_t match_end(const SplitStep& step, std::string_view text, std::size_t at, Regex::Scratch& scratch,
                      bool goes_on) {
  constexpr auto npos = std::string_view::npos;
  switch (step.kind) {
    case SplitStep::Kind::pattern: return step.regex->match(text, at, scratch, goes_on);
    case SplitStep::Kind::text: return text.substr(at).starts_with(step.text) ? at + step.text.size() : npos;
    case SplitStep::Kind::digit: {
      const Utf8Char c = utf8_at(text, at);
      return c.state == Utf8::valid && char_kind(c.code) == CharKind::number ? at + c.bytes : npos;
    }
    case SplitStep::Kind::punctuation: {
      const Utf8Char c = utf8_at(text, at);
      return is_punctuation(text.substr(at), c) ? at + c.bytes : npos;
    }
    case SplitStep::Kind::words: {
      const std::size_t end = space_end(text, at);
      return end > at ? end : npos;
    }
    case SplitStep::Kind::pieces: {
      const std::size_t bytes = step.pieces->longest_prefix(text.substr(at)).second;
      return bytes > 0 ? at + bytes : npos;
    }
    case SplitStep::Kind::spaces: return text.substr(at).starts_with(step.text) ? at + step.text.size() : npos;
    case SplitStep::Kind::bytes:
    case SplitStep::Kind::gpt2_bytes: break;
  }
  return npos;
}

std::vector<Range> ranges_of(const SplitStep& step, std::string_view text, Regex::Scratch& scratch) {
  std::vector<Range> ranges;
  std::size_t done = 0, last_end = std::string_view::npos;  // of what is in a range; of the last match
  bool goes_on = false;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = match_end(step, text, at, scratch, goes_on);
    goes_on = end == std::string_view::npos;
    const bool empty = end == at, found = end != std::string_view::npos && !(empty && at == last_end);
    if (found) {
      if (at > done) ranges.push_back({done, at, step.invert});
      ranges.push_back({at, end, !step.invert});
      done = last_end = end;
    }
    at = found && !empty ? end : at + utf8_at(text, at).bytes;
  }
  if (done < text.size()) ranges.push_back({done, text.size(), step.invert});
  return ranges;
}

/// A piece of the text; `start` is text for the one with which the whole text begins.
struct Piece {
  std::string text;
  Start start;
};

/// Adds the pieces that a step makes of one.
void cut(const SplitStep& step, const Piece& piece, std::vector<Piece>& out, Regex::Scratch& scratch) {
  std::vector<Range> kept;
  bool joins = false;  // the next range belongs to the last one
  for (const Range& range : ranges_of(step, piece.text, scratch)) {
    const bool more = !kept.empty() &&
                      ((joins && !range.match) || (step.cut == Cut::to_previous && range.match && !kept.back().match) ||
                       (step.cut == Cut::contiguous && range.match == kept.back().match));
    joins = step.cut == Cut::to_next && range.match;
    if (step.cut == Cut::removed && range.match) continue;
    if (more) kept.back() = {kept.back().begin, range.end, range.match};
    else kept.push_back(range);
  }
  for (const Range& range : kept)
    if (range.end > range.begin)
      out.push_back(
          {piece.text.substr(range.begin, range.end - range.begin), range.begin == 0 ? piece.start : Start::segment});
}

/// Writes spaces as SentencePiece does.
void mark_spaces(const SplitStep& step, Piece& piece) {
  piece.text = replaced(piece.text, " ", step.text);
  const bool prefixed = piece.start == Start::text      ? step.prefix != SplitStep::Prefix::never
                        : piece.start == Start::segment ? step.prefix == SplitStep::Prefix::always
                                                        : false;
  if (prefixed && !piece.text.empty() && !piece.text.starts_with(step.text)) piece.text.insert(0, step.text);
}

std::string in_alphabet(std::string_view bytes) {
  std::string name;
  for (const char c : bytes) name += alphabet_of_byte(static_cast<unsigned char>(c));
  return name;
}

/// Adds the pieces that any step makes of one.
void apply(const SplitStep& step, Piece piece, std::vector<Piece>& out, Regex::Scratch& scratch) {
  if (step.kind == SplitStep::Kind::bytes) {
    out.push_back({in_alphabet(piece.text), piece.start});
  } else if (step.kind == SplitStep::Kind::gpt2_bytes) {
    const std::string_view text = piece.text;
    for (std::size_t at = 0, length = 0; at < text.size(); at += length) {
      length = word_length(Pattern::gpt2, text, at);
      out.push_back({in_alphabet(text.substr(at, length)), at == 0 ? piece.start : Start::segment});
    }
  } else {
    if (step.kind == SplitStep::Kind::spaces) mark_spaces(step, piece);
    if (step.kind == SplitStep::Kind::spaces && !step.split) out.push_back(std::move(piece));
    else cut(step, piece, out, scratch);
  }
}

}  // namespace

std::vector<std::string> split_by(const std::vector<SplitStep>& steps, std::string_view text, Start start,
                                  Regex::Scratch& scratch) {
  std::vector<Piece> pieces{{std::string(text), start}};
  bool alphabet = false;
  for (const SplitStep& step : steps) {
    std::vector<Piece> next;
    for (Piece& piece : pieces) apply(step, std::move(piece), next, scratch);
    alphabet = alphabet || step.kind == SplitStep::Kind::bytes || step.kind == SplitStep::Kind::gpt2_bytes;
    pieces = std::move(next);
  }
  std::vector<std::string> texts;
  for (Piece& piece : pieces) texts.push_back(alphabet ? bytes_of_name(piece.text) : std::move(piece.text));
  return texts;
}

}  // namespace weft::runtime
