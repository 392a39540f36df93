#include "runtime/text/tokenizer_normalize.h"

#include <algorithm>

#include "runtime/base/utf8.h"
#include "runtime/text/tokenizer_nfc.h"
#include "runtime/text/tokenizer_pretokenize.h"

namespace weft::runtime {

namespace {

bool is_space_at(std::string_view text, std::size_t at, std::size_t& bytes) {
  const Utf8Char found = utf8_at(text, at);
  bytes = found.bytes;
  return found.state == Utf8::valid && char_class(found.code) == CharClass::space;
}

std::string without_runs_of_spaces(std::string_view text, std::string_view to) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find_first_not_of(' ', at), text.size());
    if (end - at >= 2) out += to;
    else out += text.substr(at, std::max<std::size_t>(end - at, 1));
    at = std::max(end, at + 1);
  }
  return out;
}

/// The text without [0, begin) and [end, ...).
std::string inner(std::string_view text, std::size_t begin, std::size_t end, Start& start) {
  if (begin > 0 && start == Start::text) start = Start::segment;
  return std::string(text.substr(begin, std::max(begin, end) - begin));
}

std::string apply(const NormalizeStep& step, const std::string& text, Start& start) {
  using Kind = NormalizeStep::Kind;
  const bool follows = start == Start::middle;
  switch (step.kind) {
    case Kind::nfc: return nfc(text);
    case Kind::charsmap: return step.charsmap->apply(text);
    case Kind::prepend: return follows ? text : step.to + text;
    case Kind::replace: return replaced(text, step.from, step.to);
    case Kind::spaces_in: return without_runs_of_spaces(text, step.to);
    case Kind::begin: return follows || !text.starts_with(step.from) ? text : step.to + text.substr(step.from.size());
    case Kind::spaces_out: {
      const std::size_t begin = follows ? 0 : std::min(text.find_first_not_of(' '), text.size());
      return inner(text, begin, text.find_last_not_of(' ') + 1, start);
    }
    case Kind::white_space: {
      const std::size_t begin = step.left && !follows ? space_end(text, 0) : 0;
      return inner(text, begin, step.right ? space_begin(text, begin, text.size()) : text.size(), start);
    }
  }
  return text;
}

}  // namespace

std::size_t space_begin(std::string_view text, std::size_t floor, std::size_t end) {
  while (end > floor) {
    std::size_t at = end - 1, bytes = 0;
    while (at > floor && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    if (!is_space_at(text.substr(0, end), at, bytes) || at + bytes != end) break;
    end = at;
  }
  return end;
}

std::size_t space_end(std::string_view text, std::size_t at) {
  std::size_t bytes = 0;
  while (at < text.size() && is_space_at(text, at, bytes)) at += bytes;
  return at;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string out;
  for (std::size_t at = 0;;) {
    const std::size_t next = text.find(from, at);
    out += text.substr(at, next - at);
    if (next == std::string_view::npos) return out;
    out += to;
    at = next + from.size();
  }
}

std::string normalized(const std::vector<NormalizeStep>& steps, std::string_view text, Start& start) {
  std::string out(text);
  for (const NormalizeStep& step : steps)
    if (!out.empty()) out = apply(step, out, start);
  return out;
}

}  // namespace weft::runtime
