// runtime/template/format.cc: Python's text % values.
#include <cmath>
#include <cstdio>

#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

/// One %-field: %[flags][width][.precision]kind.
struct Field {
  std::string flags;
  int width = 0, precision = -1;
  char kind = 's';

  bool has(char flag) const { return flags.find(flag) != std::string::npos; }
};

class Formatter {
 public:
  Formatter(const std::string& text, const Values& values, Meter& meter)
      : text_(text), values_(values), meter_(meter) {}

  std::string run() {
    for (; at_ < text_.size(); ++at_) {
      if (text_[at_] != '%') out_ += text_[at_];
      else put_field();
    }
    if (used_ < values_.size() && !(values_.size() == 1 && values_[0].is(Kind::dict)))
      throw Stuck("not all arguments converted during string formatting");
    meter_.charge_bytes(out_.size());
    return std::move(out_);
  }

 private:
  char next() {
    if (++at_ >= text_.size()) throw Stuck("incomplete format");
    return text_[at_];
  }

  int number(char& c) {
    int value = 0;
    for (; c >= '0' && c <= '9'; c = next())
      if ((value = value * 10 + (c - '0')) > 10'000) throw Stuck("a format has a width over 10000");
    return value;
  }

  void put_field() {
    Field field;
    char c = next();
    if (c == '(') throw Stuck("a format with names, %(...), is not supported");
    for (; std::string_view("#0- +").find(c) != std::string_view::npos; c = next()) field.flags += c;
    field.width = number(c);
    if (c == '.') {
      c = next();
      field.precision = number(c);
    }
    field.kind = c;
    if (c == '%') {
      out_ += '%';
      return;
    }
    if (used_ == values_.size()) throw Stuck("not enough arguments for format string");
    pad(field, shown(field, values_[used_++]));
  }

  std::string shown(const Field& field, const PyValue& value) {
    switch (field.kind) {
      case 's': return cut(field, to_str(value, meter_));
      case 'r': return cut(field, to_repr(value, meter_));
      case 'd':
      case 'i':
      case 'u': return whole(field, value, "%lld");
      case 'x': return whole(field, value, "%llx");
      case 'X': return whole(field, value, "%llX");
      case 'o': return whole(field, value, "%llo");
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G': return real(field, value);
      default: throw Stuck(std::string("unsupported format character '") + field.kind + "'");
    }
  }

  static std::string cut(const Field& field, std::string text) {
    if (field.precision < 0) return text;
    const Text all{text, false, is_ascii(text)};
    text.resize(byte_of(all, static_cast<std::size_t>(field.precision)));
    return text;
  }

  static std::string with_sign(const Field& field, bool negative, const std::string& digits) {
    return (negative ? "-" : field.has('+') ? "+" : field.has(' ') ? " " : "") + digits;
  }

  static std::string whole(const Field& field, const PyValue& value, const char* pattern) {
    if (!value.is_number()) throw Stuck("a whole number is needed, not '" + type_name(value) + "'");
    if (value.is(Kind::real) && (field.kind != 'd' && field.kind != 'i' && field.kind != 'u'))
      throw Stuck("an integer is needed, not 'float'");
    if (!(std::abs(value.number()) < 9.2e18)) throw Stuck("a number does not fit 64 bits");
    const std::int64_t number = value.is_whole() ? value.integer() : static_cast<std::int64_t>(value.number());
    char buffer[40];
    std::snprintf(buffer, sizeof buffer, pattern, static_cast<long long>(number < 0 ? -number : number));
    std::string digits = buffer;
    if (field.precision > static_cast<int>(digits.size()))
      digits.insert(0, static_cast<std::size_t>(field.precision) - digits.size(), '0');
    if (field.has('#') && field.kind != 'd')
      digits.insert(0, field.kind == 'o' ? "0o" : field.kind == 'x' ? "0x" : field.kind == 'X' ? "0X" : "");
    return with_sign(field, number < 0, digits);
  }

  static std::string real(const Field& field, const PyValue& value) {
    if (!value.is_number()) throw Stuck("must be real number, not " + type_name(value));
    if (field.precision > 300) throw Stuck("a format has a precision over 300");
    const std::string pattern = std::string("%.*") + field.kind;
    char buffer[800];
    std::snprintf(buffer, sizeof buffer, pattern.c_str(), field.precision < 0 ? 6 : field.precision,
                  std::abs(value.number()));
    return with_sign(field, std::signbit(value.number()) && !std::isnan(value.number()), buffer);
  }

  void pad(const Field& field, std::string text) {
    const std::size_t length = character_count(Text{text, false, is_ascii(text)}),
                      width = static_cast<std::size_t>(field.width);
    const std::size_t pad = length < width ? width - length : 0;
    meter_.charge_bytes(width);
    if (field.has('-')) text.append(pad, ' ');
    else if (field.has('0') && field.kind != 's' && field.kind != 'r')
      text.insert(text.find_first_not_of("+- ") == std::string::npos ? 0 : text.find_first_not_of("+- "), pad, '0');
    else text.insert(0, pad, ' ');
    out_ += text;
  }

  const std::string& text_;
  const Values& values_;
  Meter& meter_;
  std::string out_;
  std::size_t at_ = 0, used_ = 0;
};

}  // namespace

std::string formatted(const std::string& text, const Values& values, Meter& meter) {
  return Formatter(text, values, meter).run();
}

}  // namespace weft::runtime::jinja
