// runtime/template/print.cc: values as text, as Python's str(), repr() and json.dumps() print them.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "runtime/base/utf8.h"
#include "runtime/template/text.h"
#include "runtime/template/value.h"

namespace weft::runtime::jinja {

namespace {

std::string hex(char32_t code, int digits) {
  std::string text(static_cast<std::size_t>(digits), '0');
  for (auto digit = text.rbegin(); digit != text.rend(); ++digit, code >>= 4) *digit = "0123456789abcdef"[code & 15];
  return text;
}

std::string python_repr(std::string_view text) {
  const bool single = text.find('\'') != std::string_view::npos, twice = text.find('"') != std::string_view::npos;
  const char quote = single && !twice ? '"' : '\'';
  std::string out(1, quote);
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Char c = utf8_at(text, at);
    if (c.code == static_cast<unsigned char>(quote) || c.code == '\\') (out += '\\') += static_cast<char>(c.code);
    else if (c.code == '\n') out += "\\n";
    else if (c.code == '\r') out += "\\r";
    else if (c.code == '\t') out += "\\t";
    else if (c.code < 0x80 ? c.code >= 0x20 && c.code < 0x7F : is_printable(c.code)) out += text.substr(at, c.bytes);
    else if (c.code < 0x100) out += "\\x" + hex(c.code, 2);
    else if (c.code < 0x10000) out += "\\u" + hex(c.code, 4);
    else out += "\\U" + hex(c.code, 8);
    at += c.bytes;
  }
  return out + quote;
}

class Printer {
 public:
  explicit Printer(Meter& meter) : meter_(meter) {}

  std::string repr(const PyValue& value) {
    std::string out;
    put(value, out, 0);
    return out;
  }

 private:
  void put(const PyValue& value, std::string& out, int depth) {
    meter_.charge(1);
    if (depth > 200) throw Stuck("a value that holds itself cannot be printed");
    switch (value.kind()) {
      case Kind::undefined: out += "Undefined"; return;
      case Kind::none: out += "None"; return;
      case Kind::boolean: out += value.integer() ? "True" : "False"; return;
      case Kind::integer: out += std::to_string(value.integer()); return;
      case Kind::real: out += float_text(value.number()); return;
      case Kind::text: put_text(value.text(), out); return;
      case Kind::sequence: put_sequence(value.sequence(), out, depth); return;
      case Kind::dict: put_items(value.dict().items, out, depth); return;
      case Kind::names: put_names(value.names(), out, depth); return;
      case Kind::generator:
      case Kind::callable: break;
    }
    throw Stuck("a " + type_name(value) + " cannot be printed, because Python prints its address in memory");
  }

  void put_text(const Text& text, std::string& out) {
    meter_.charge_bytes(text.bytes.size() * 2);
    const std::string shown = python_repr(text.bytes);
    out += text.markup ? "Markup(" + shown + ")" : shown;
  }

  void put_sequence(const PyRow& sequence, std::string& out, int depth) {
    if (sequence.shape == Shape::range) {
      out += "range(" + std::to_string(sequence.start) + ", " + std::to_string(sequence.stop) +
             (sequence.step == 1 ? "" : ", " + std::to_string(sequence.step)) + ")";
      return;
    }
    constexpr const char* before[]{"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
    constexpr const char* after[]{"]", ")", "", "])", "])", "])"};
    out += before[static_cast<int>(sequence.shape)];
    for (std::size_t i = 0; i < sequence.items.size(); ++i) {
      if (i > 0) out += ", ";
      put(sequence.items[i], out, depth + 1);
    }
    if (sequence.shape == Shape::tuple && sequence.items.size() == 1) out += ',';
    out += after[static_cast<int>(sequence.shape)];
  }

  void put_items(const std::vector<Item>& items, std::string& out, int depth) {
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += ", ";
      put(items[i].first, out, depth + 1);
      out += ": ";
      put(items[i].second, out, depth + 1);
    }
    out += '}';
  }

  void put_names(const Namespace& names, std::string& out, int depth) {
    std::vector<Item> items;
    for (const auto& [name, value] : names.items) items.emplace_back(PyValue(name), value);
    out += "<Namespace ";
    put_items(items, out, depth + 1);
    out += '>';
  }

  Meter& meter_;
};

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, Meter& meter) : style_(style), meter_(meter) {}

  void put(const PyValue& value, std::string& out, int depth) {
    meter_.charge(1);
    switch (value.kind()) {
      case Kind::none: out += "null"; return;
      case Kind::boolean: out += value.integer() ? "true" : "false"; return;
      case Kind::integer: out += std::to_string(value.integer()); return;
      case Kind::real: out += number(value.number()); return;
      case Kind::text: put_text(value.str(), out); return;
      case Kind::dict: put_dict(value.dict(), out, depth); return;
      case Kind::sequence:
        if (is_row(value)) {
          put_list(value.sequence().items, out, depth);
          return;
        }
        break;
      default: break;
    }
    throw Stuck("Object of type " + type_name(value) + " is not JSON serializable");
  }

 private:
  static std::string number(double value) {
    if (std::isnan(value)) return "NaN";
    if (std::isinf(value)) return value < 0 ? "-Infinity" : "Infinity";
    return float_text(value);
  }

  void put_text(std::string_view text, std::string& out) {
    meter_.charge_bytes(text.size() * 2);
    out += '"';
    for (std::size_t at = 0; at < text.size();) {
      const Utf8Char c = utf8_at(text, at);
      constexpr std::string_view plain = "\"\\\n\r\t\b\f", letter = "\"\\nrtbf";
      const auto escape = c.code < 0x80 ? plain.find(static_cast<char>(c.code)) : std::string_view::npos;
      if (escape != std::string_view::npos) (out += '\\') += letter[escape];
      else if (c.code < 0x20 || (style_.ascii && c.code > 0x7F && c.code < 0x10000)) out += "\\u" + hex(c.code, 4);
      else if (style_.ascii && c.code >= 0x10000)
        out += "\\u" + hex(0xD800 + ((c.code - 0x10000) >> 10), 4) + "\\u" + hex(0xDC00 + (c.code & 0x3FF), 4);
      else out += text.substr(at, c.bytes);
      at += c.bytes;
    }
    out += '"';
  }

  void new_line(std::string& out, int depth) {
    if (!style_.indent) return;
    out += '\n';
    for (int i = 0; i < depth; ++i) out += *style_.indent;
    meter_.charge_bytes(style_.indent->size() * static_cast<std::size_t>(depth));
  }

  void put_list(const Values& items, std::string& out, int depth) {
    if (items.empty()) {
      out += "[]";
      return;
    }
    out += '[';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.between;
      new_line(out, depth + 1);
      put(items[i], out, depth + 1);
    }
    new_line(out, depth);
    out += ']';
  }

  std::string key_text(const PyValue& key) const {
    switch (key.kind()) {
      case Kind::text: return key.str();
      case Kind::boolean: return key.integer() ? "true" : "false";
      case Kind::none: return "null";
      case Kind::integer: return std::to_string(key.integer());
      case Kind::real: return number(key.number());
      default: throw Stuck("keys must be str, int, float, bool or None, not " + type_name(key));
    }
  }

  void put_dict(const Dict& dict, std::string& out, int depth) {
    if (dict.items.empty()) {
      out += "{}";
      return;
    }
    std::vector<Item> items = dict.items;
    if (style_.sort_keys)
      std::stable_sort(items.begin(), items.end(),
                       [&](const Item& a, const Item& b) { return less(a.first, b.first, meter_); });
    out += '{';
    for (std::size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out += style_.between;
      new_line(out, depth + 1);
      put_text(key_text(items[i].first), out);
      out += style_.after_key;
      put(items[i].second, out, depth + 1);
    }
    new_line(out, depth);
    out += '}';
  }

  const JsonStyle& style_;
  Meter& meter_;
};

}  // namespace

std::string float_text(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  char buffer[40];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific).ptr;
  const std::string shortest(buffer, end);  // d.ddde+XX
  const std::size_t e = shortest.find('e');
  const int exponent = std::stoi(shortest.substr(e + 1));
  if (exponent < -4 || exponent >= 16) return shortest;
  const auto fixed = std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed).ptr;
  const std::string text(buffer, fixed);
  return text.find('.') == std::string::npos ? text + ".0" : text;
}

std::string to_repr(const PyValue& value, Meter& meter) { return Printer(meter).repr(value); }

std::string to_str(const PyValue& value, Meter& meter) {
  if (value.is(Kind::undefined)) return {};
  if (!value.is(Kind::text)) return to_repr(value, meter);
  meter.charge_bytes(value.str().size());
  return value.str();
}

std::string to_json_text(const PyValue& value, const JsonStyle& style, Meter& meter) {
  std::string out;
  JsonPrinter(style, meter).put(value, out, 0);
  return out;
}

}  // namespace weft::runtime::jinja
