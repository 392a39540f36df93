// runtime/template/filters_text.cc: filters that make texts and numbers.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "runtime/template/filters.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

/// The value as a text, which stays marked as safe if it is.
PyValue as_text(Evaluator& evaluator, const PyValue& value) {
  return value.is(Kind::text) ? value : PyValue(to_str(value, evaluator.meter()));
}

template <std::string (*change)(std::string_view)>
PyValue changed(Evaluator& evaluator, const PyValue& value, const Bound&) {
  const PyValue text = as_text(evaluator, value);
  evaluator.meter().charge_bytes(8 * text.str().size());
  return PyValue(change(text.str()), text.text().markup);
}

PyValue trim(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const PyValue text = as_text(evaluator, value);
  evaluator.meter().charge_bytes(2 * text.str().size());
  return PyValue(strip(text.str(), given.optional_text(0), true, true), text.text().markup);
}

PyValue replace(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  Meter& meter = evaluator.meter();
  const std::int64_t most = given.has_value(2) ? given.integer(2, -1) : -1;
  return replaced(to_str(value, meter), to_str(given.at(0), meter), to_str(given.at(1), meter), most, meter);
}

PyValue indent(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  if (!value.is(Kind::text)) throw Stuck("indent needs a str, got '" + type_name(value) + "'");
  Meter& meter = evaluator.meter();
  const std::string before =
      given.has(0) && given.at(0).is(Kind::text) ? given.at(0).str() : repeated(" ", given.integer(0, 4), meter);
  const std::vector<std::string> lines = split_lines(value.str() + "\n", false);
  std::string out = given.flag(1, false) ? before : "";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += (given.flag(2, false) || !lines[i].empty() ? "\n" + before : "\n");
    out += lines[i];
    meter.charge_bytes(before.size() + 2 * lines[i].size());
  }
  return PyValue(std::move(out), value.text().markup);
}

/// The number that Python's int(text, base) reads; nothing if it reads none.
std::optional<std::int64_t> read_whole(const std::string& text, std::int64_t base) {
  std::string digits = strip(text, {}, true, true);
  const bool minus = digits.starts_with('-');
  if (minus || digits.starts_with('+')) digits.erase(0, 1);
  if (digits.size() > 2 && digits[0] == '0') {
    const int c = digits[1] | 0x20, own = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (own != 0 && (base == own || base == 0)) digits.erase(0, 2), base = own;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36) throw Stuck("int() base must be >= 2 and <= 36, or 0");
  if (digits.empty() || digits.front() == '_' || digits.back() == '_' || digits.find("__") != std::string::npos)
    return {};
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  std::int64_t number = 0;
  const auto [end, error] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (end != digits.data() + digits.size() || digits.front() == '-') return {};
  if (error == std::errc::result_out_of_range) throw Stuck("a whole number does not fit 64 bits");
  if (error != std::errc()) return {};
  return minus ? -number : number;
}

std::optional<double> read_real(const std::string& text) {
  std::string digits = strip(text, {}, true, true);
  digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
  const bool plus = digits.starts_with('+');
  if (plus) digits.erase(0, 1);
  if (digits.empty() || (plus && digits.starts_with('-'))) return {};
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (end != digits.data() + digits.size()) return {};
  if (error == std::errc::result_out_of_range) return std::strtod(digits.c_str(), nullptr);
  if (error != std::errc()) return {};
  return number;
}

std::int64_t whole_part(double number) {
  if (!(std::abs(number) < 9.2e18)) throw Stuck("a number does not fit 64 bits");
  return static_cast<std::int64_t>(number);
}

PyValue to_whole(Evaluator&, const PyValue& value, const Bound& given) {
  const PyValue fallback = given.has(0) ? given.at(0) : PyValue(std::int64_t{0});
  if (value.is_whole()) return value.integer();
  if (value.is(Kind::real)) return std::isnan(value.number()) ? fallback : PyValue(whole_part(value.number()));
  if (!value.is_defined()) refuse_undefined(value, "an undefined value is used");
  if (!value.is(Kind::text)) return fallback;
  if (const auto number = read_whole(value.str(), given.integer(1, 10))) return *number;
  const auto number = read_real(value.str());
  return number && std::isfinite(*number) ? PyValue(whole_part(*number)) : fallback;
}

PyValue to_real(Evaluator&, const PyValue& value, const Bound& given) {
  const PyValue fallback = given.has(0) ? given.at(0) : PyValue(0.0);
  if (value.is_number()) return value.number();
  if (!value.is_defined()) refuse_undefined(value, "an undefined value is used");
  if (!value.is(Kind::text)) return fallback;
  const auto number = read_real(value.str());
  return number ? PyValue(*number) : fallback;
}

PyValue round(Evaluator&, const PyValue& value, const Bound& given) {
  if (!value.is_number()) throw Stuck("round needs a number, got '" + type_name(value) + "'");
  const std::int64_t digits = given.integer(0, 0);
  if (digits < -300 || digits > 300) throw Stuck("round has a precision beyond 300");
  const std::string how = given.has(1) ? given.text(1) : "common";
  if (how != "common" && how != "ceil" && how != "floor") throw Stuck("method must be common, ceil or floor");
  if (how != "common") {
    const double scale = std::pow(10.0, static_cast<double>(digits)), scaled = value.number() * scale;
    return (how == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale;
  }
  if (value.is_whole() && digits >= 0) return value.integer();
  if (digits < 0) {
    const double scale = std::pow(10.0, static_cast<double>(-digits)),
                 rounded = std::nearbyint(value.number() / scale) * scale;
    return value.is_whole() ? PyValue(whole_part(rounded)) : PyValue(rounded);
  }
  if (!std::isfinite(value.number())) return value.number();
  std::string text(800, '\0');
  std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(digits), value.number());
  return std::strtod(text.c_str(), nullptr);
}

PyValue tojson(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  JsonStyle style{.ascii = given.flag(0, false), .sort_keys = given.flag(3, false), .indent = nullptr};
  std::string indent;
  if (given.has_value(1)) {
    indent = given.at(1).is(Kind::text) ? given.at(1).str() : repeated(" ", given.integer(1, 0), evaluator.meter());
    style.indent = &indent;
    style.between = ",";
  }
  if (given.has_value(2)) {
    const Values two = iterate(given.at(2), evaluator.meter());
    if (two.size() != 2 || !two[0].is(Kind::text) || !two[1].is(Kind::text)) throw Stuck("separators are two texts");
    style.between = two[0].str();
    style.after_key = two[1].str();
  }
  return to_json_text(value, style, evaluator.meter());
}

PyValue center(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  const PyValue text = as_text(evaluator, value), center = *method(text, "center");
  return evaluator.call(center, {.positional = {PyValue(given.integer(0, 80))}, .named = {}});
}

PyValue truncate(Evaluator& evaluator, const PyValue& value, const Bound& given) {
  if (!value.is(Kind::text)) throw Stuck("truncate needs a str, got '" + type_name(value) + "'");
  const std::int64_t most = given.integer(0, 255), leeway = given.has_value(3) ? given.integer(3, 5) : 5;
  const std::string end = given.has(2) ? given.text(2) : "...";
  const auto end_length = static_cast<std::int64_t>(character_count(Text{end, false, is_ascii(end)}));
  if (most < end_length || leeway < 0) throw Stuck("truncate expects a length of at least that of its end");
  evaluator.meter().charge_bytes(4 * value.str().size());
  if (length(value) <= most + leeway) return value;
  const std::string cut = value.str().substr(0, byte_of(value.text(), static_cast<std::size_t>(most - end_length)));
  if (given.flag(1, false)) return cut + end;
  const std::size_t space = cut.rfind(' ');
  return cut.substr(0, space) + end;
}

PyValue urlencode(Evaluator& evaluator, const PyValue& value, const Bound&) {
  if (value.is(Kind::dict) || value.is(Kind::sequence))
    throw Stuck("urlencode of a " + type_name(value) + " is not supported");
  std::string out;
  for (const char c : to_str(value, evaluator.meter())) {
    const bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z' && (c & 0x80) == 0) ||
                       std::string_view("_.-~/").find(c) != std::string_view::npos;
    constexpr const char* digits = "0123456789ABCDEF";
    const auto byte = static_cast<unsigned char>(c);
    if (plain) out += c;
    else out += {'%', digits[byte >> 4], digits[byte & 15]};
  }
  return out;
}

PyValue absolute(Evaluator&, const PyValue& value, const Bound&) {
  if (!value.is_number()) throw Stuck("bad operand type for abs(): '" + type_name(value) + "'");
  if (value.is(Kind::real)) return std::abs(value.number());
  return value.integer() < 0 ? negative(value, true) : PyValue(value.integer());
}

PyValue word_count(Evaluator& evaluator, const PyValue& value, const Bound&) {
  const std::string text = to_str(value, evaluator.meter());
  evaluator.meter().charge_bytes(8 * text.size());
  std::int64_t words = 0;
  bool inside = false;
  // Words are made of letters, digits and underscores.
  for (const char32_t code : code_points(text)) {
    std::string character;
    append_utf8(character, code);
    const bool in = code == '_' || all_of_class(character, Class::alnum);
    words += in && !inside;
    inside = in;
  }
  return words;
}

constexpr Filter kTextFilters[]{
    {"upper", "", changed<upper>},
    {"lower", "", changed<lower>},
    {"capitalize", "", changed<capitalize>},
    {"title", "", changed<titled>},
    {"trim", "chars?", trim},
    {"replace", "old new count?", replace},
    {"indent", "width? first? blank?", indent},
    {"string", "", [](Evaluator& e, const PyValue& v, const Bound&) { return as_text(e, v); }},
    {"safe", "", [](Evaluator& e, const PyValue& v, const Bound&) { return PyValue(to_str(v, e.meter()), true); }},
    {"escape", "",
     [](Evaluator& e, const PyValue& v, const Bound&) {
       return v.is(Kind::text) && v.text().markup ? v : PyValue(escaped(to_str(v, e.meter())), true);
     }},
    {"forceescape", "",
     [](Evaluator& e, const PyValue& v, const Bound&) { return PyValue(escaped(to_str(v, e.meter())), true); }},
    {"int", "default? base?", to_whole},
    {"float", "default?", to_real},
    {"round", "precision? method?", round},
    {"abs", "", absolute},
    {"tojson", "ensure_ascii? indent? separators? sort_keys?", tojson},
    {"center", "width?", center},
    {"truncate", "length? killwords? end? leeway?", truncate},
    {"urlencode", "", urlencode},
    {"wordcount", "", word_count},
};

}  // namespace

std::span<const Filter> text_filters() { return kTextFilters; }

}  // namespace weft::runtime::jinja
