#include "runtime/template/lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "runtime/base/utf8.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

constexpr std::size_t kLongestSource = std::size_t{1} << 20;

std::string one_line(const std::string& text) {
  std::string line;
  for (const char c : text.substr(0, 400)) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  return with_replacements(line);
}

/// The source with \n for every line break, and without the last of them.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  for (std::size_t at = 0; at < source.size(); ++at) {
    if (source[at] != '\r') out += source[at];
    else if (at + 1 == source.size() || source[at + 1] != '\n') out += '\n';
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool begins_name(char c) { return ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '_' || (c & 0x80) != 0; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)) {}

  std::vector<Lexeme> read() {
    if (!is_utf8(source_)) fail("the template is not UTF-8");
    while (at_ < source_.size()) read_data();
    begin_ = at_;
    push(Token::eof);
    return std::move(lexemes_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw TemplateError(place_of(at_), what); }

  /// Places are asked for in order, so each byte is counted once.
  SourcePlace place_of(std::size_t at) const {
    if (at < counted_) counted_ = 0, place_ = {};
    for (; counted_ < at; ++counted_) {
      const auto c = static_cast<unsigned char>(source_[counted_]);
      if (c == '\n') ++place_.line, place_.column = 1;
      else if ((c & 0xC0) != 0x80) ++place_.column;
    }
    return place_;
  }

  void push(Token token, std::string text = {}, PyValue number = {}) {
    lexemes_.push_back({token, std::move(text), std::move(number), place_of(begin_)});
  }
  bool sees(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }
  std::size_t after_spaces(std::size_t at) const {
    while (at < source_.size()) {
      const Utf8Char c = utf8_at(source_, at);
      if (!is_space(c.code)) break;
      at += c.bytes;
    }
    return at;
  }

  /// Reads the text up to the next tag, and that tag.
  void read_data() {
    begin_ = at_;
    std::size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 == source_.size()) tag = std::string::npos;
      if (tag == std::string::npos) break;
      const char next = source_[tag + 1];
      if (next == '{' || next == '%' || next == '#') break;
    }
    if (tag == std::string::npos) {
      push(Token::data, source_.substr(at_));
      at_ = source_.size();
      return;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    push_data(std::string_view(source_).substr(at_, tag - at_), sign, kind == '{');
    begin_ = at_ = tag;
    at_ += sign == '-' || sign == '+' ? 3 : 2;
    if (kind == '#') read_comment();
    else if (kind == '{') read_tag(Token::begin, Token::end);
    else if (!read_raw()) read_tag(Token::block_begin, Token::block_end);
  }

  /// Adds the text before a tag, without the white space that the tag removes.
  void push_data(std::string_view text, char sign, bool is_print) {
    if (sign == '-') {
      text = text.substr(0, strip(text, {}, false, true).size());
    } else if (sign != '+' && !is_print) {
      const std::size_t line = text.rfind('\n') + 1;  // 0 if there is none
      if ((line > 0 || line_starts_) && strip(text.substr(line), {}, true, false).empty()) text = text.substr(0, line);
    }
    if (!text.empty()) push(Token::data, std::string(text));
  }

  /// Takes the end of a tag, with the white space that it removes: all after a minus, else one line break.
  bool take_end(std::string_view end, bool trims_line) {
    std::size_t after = at_;
    const char sign = at_ < source_.size() ? source_[at_] : ' ';
    if (sign == '-' || (sign == '+' && trims_line)) ++after;
    if (!std::string_view(source_).substr(after).starts_with(end)) return false;
    after += end.size();
    if (sign == '-') after = after_spaces(after);
    else if (sign != '+' && trims_line && after < source_.size() && source_[after] == '\n') ++after;
    at_ = after;
    line_starts_ = source_[at_ - 1] == '\n';
    return true;
  }

  void read_comment() {
    if (at_ == source_.size()) return;  // jinja2 takes this for an empty one
    for (;; ++at_) {
      const std::size_t end = source_.find("#}", at_);
      if (end == std::string::npos) fail("the comment does not end");
      at_ = end > at_ && (source_[end - 1] == '-' || source_[end - 1] == '+') ? end - 1 : end;
      if (take_end("#}", true)) return;
    }
  }

  bool read_raw() {
    std::size_t at = after_spaces(at_);
    if (source_.compare(at, 3, "raw") != 0) return false;
    at = after_spaces(at + 3);
    const bool minus = at < source_.size() && source_[at] == '-';
    if (source_.compare(at + minus, 2, "%}") != 0) return false;
    at += minus + 2;
    at_ = minus ? after_spaces(at) : at;
    line_starts_ = source_[at_ - 1] == '\n';
    const std::size_t begin = at_;
    for (std::size_t tag = at_;; tag += 2) {
      tag = source_.find("{%", tag);
      if (tag == std::string::npos) fail("raw does not end");
      const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      at = after_spaces(tag + (sign == '-' || sign == '+' ? 3 : 2));
      if (source_.compare(at, 6, "endraw") != 0) continue;
      at_ = after_spaces(at + 6);
      const bool line_started = line_starts_;
      if (!take_end("%}", true)) continue;
      const bool line_starts = std::exchange(line_starts_, line_started);
      push_data(std::string_view(source_).substr(begin, tag - begin), sign, false);
      line_starts_ = line_starts;
      return true;
    }
  }

  void read_tag(Token begin, Token end) {
    push(begin);
    std::vector<char> open;
    for (;;) {
      at_ = after_spaces(at_);
      begin_ = at_;
      if (at_ == source_.size()) fail("the template ends inside a tag");
      if (open.empty() && take_end(end == Token::end ? "}}" : "%}", end == Token::block_end)) {
        push(end);
        return;
      }
      read_token(open);
    }
  }

  void read_token(std::vector<char>& open) {
    const char c = source_[at_];
    if (is_digit(c)) return read_number();
    if (c == '"' || c == '\'') return read_text(c);
    if (begins_name(c)) {
      std::size_t end = at_;
      while (end < source_.size() && (begins_name(source_[end]) || is_digit(source_[end]))) ++end;
      push(Token::name, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    for (const std::string_view two : {"//", "**", "==", "!=", ">=", "<="})
      if (sees(two)) {
        push(Token::sign, std::string(two));
        at_ += 2;
        return;
      }
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
      fail("unexpected character '" + source_.substr(at_, 1) + "'");
    if (c == '(' || c == '[' || c == '{') open.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) fail(std::string("unexpected '") + c + "'");
      if (open.back() != c) fail(std::string("unexpected '") + c + "', expected '" + open.back() + "'");
      open.pop_back();
    }
    push(Token::sign, std::string(1, c));
    ++at_;
  }

  /// The end of digits with single underscores between them.
  std::size_t digits_end(std::size_t at, int base = 10) const {
    const auto is_in = [base](char c) {
      return base == 16 ? is_digit(c) || ((c | 0x20) >= 'a' && (c | 0x20) <= 'f') : c >= '0' && c < '0' + base;
    };
    while (at < source_.size() &&
           (is_in(source_[at]) || (source_[at] == '_' && at + 1 < source_.size() && is_in(source_[at + 1]))))
      ++at;
    return at;
  }

  void read_number() {
    const char second = at_ + 1 < source_.size() ? static_cast<char>(source_[at_ + 1] | 0x20) : ' ';
    const int base = source_[at_] != '0' ? 10 : second == 'x' ? 16 : second == 'o' ? 8 : second == 'b' ? 2 : 10;
    std::size_t begin = at_, end = base == 10 ? digits_end(at_) : digits_end(at_ + 2, base);
    bool real = false;
    // After a dot a number is an index: x.0.1 are two of them.
    const bool index = begin > 0 && source_[begin - 1] == '.';
    if (base == 10 && !index) {
      if (end + 1 < source_.size() && source_[end] == '.' && is_digit(source_[end + 1]))
        end = digits_end(end + 1), real = true;
      if (end < source_.size() && (source_[end] | 0x20) == 'e') {
        std::size_t exponent = end + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && is_digit(source_[exponent])) end = digits_end(exponent), real = true;
      }
    }
    std::string digits = source_.substr(begin, end - begin);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    if (base != 10) digits.erase(0, 2);
    if (base == 10 && !real && digits[0] == '0' && digits.find_first_not_of('0') != std::string::npos)
      fail("a number begins with 0");
    PyValue number;
    if (real) {
      double value = 0;
      std::from_chars(digits.data(), digits.data() + digits.size(), value);
      number = value;
    } else {
      std::int64_t value = 0;
      if (std::from_chars(digits.data(), digits.data() + digits.size(), value, base).ec != std::errc())
        fail("this number does not fit 64 bits");
      number = value;
    }
    at_ = end;
    push(Token::number, {}, number);
  }

  void read_text(char quote) {
    std::string text;
    std::size_t at = at_ + 1;
    for (;; ++at) {
      if (at >= source_.size()) fail("the text does not end");
      const char c = source_[at];
      if (c == quote) break;
      if (c != '\\') {
        text += c;
        continue;
      }
      if (++at >= source_.size()) fail("the text does not end");
      at = read_escape(at, text);
    }
    at_ = at + 1;
    push(Token::text, std::move(text));
  }

  /// Reads what follows a backslash, and returns the place of its last byte.
  std::size_t read_escape(std::size_t at, std::string& text) {
    constexpr std::string_view letters = "abfnrtv\\'\"", meant = "\a\b\f\n\r\t\v\\'\"";
    const char c = source_[at];
    if (c == '\n') return at;
    if (const auto simple = letters.find(c); simple != std::string_view::npos) {
      text += meant[simple];
      return at;
    }
    const bool octal = c >= '0' && c <= '7';
    if (!octal && c != 'x' && c != 'u' && c != 'U') {
      if (c == 'N') fail("names of characters (\\N{...}) are not supported");
      text += '\\';
      text += c;
      return at;
    }
    const std::size_t most = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : 8, begin = octal ? at : at + 1;
    std::size_t end = begin;
    while (end < source_.size() && end - begin < most && digits_end(end, octal ? 8 : 16) > end && source_[end] != '_')
      ++end;
    std::uint32_t code = 0;
    std::from_chars(source_.data() + begin, source_.data() + end, code, octal ? 8 : 16);
    if ((!octal && end - begin < most) || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      fail("a text has a \\ that begins no character");
    append_utf8(text, code);
    return end - 1;
  }

  const std::string source_;
  std::vector<Lexeme> lexemes_;
  std::size_t at_ = 0, begin_ = 0;  // what is read next; where the token began
  bool line_starts_ = true;         // the last tag took the line break before `at_`
  mutable std::size_t counted_ = 0;
  mutable SourcePlace place_;
};

}  // namespace

TemplateError::TemplateError(SourcePlace place, const std::string& what)
    : UsageError(std::to_string(place.line) + ":" + std::to_string(place.column) + ": " + one_line(what)) {}

TemplateRefusal::TemplateRefusal(SourcePlace place, const std::string& words)
    : TemplateError(place, words), said(one_line(words)) {}

std::vector<Lexeme> tokens_of(std::string_view source) {
  if (source.size() > kLongestSource)
    throw TemplateError({}, "the template has " + std::to_string(source.size()) + " bytes, at most " +
                                std::to_string(kLongestSource) + " are read");
  return Lexer(source).read();
}

}  // namespace weft::runtime::jinja
