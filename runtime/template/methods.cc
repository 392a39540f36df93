// runtime/template/methods.cc: the methods of Python's str, list and dict that a sandboxed template may call.
#include <algorithm>

#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

using MethodBody = PyValue (*)(Meter&, const PyValue& self, const Bound& given);

struct Method {
  std::string_view name, parameters;
  MethodBody body;
};

PyValue texts(const std::vector<std::string>& parts, bool markup, Meter& meter) {
  Values items;
  for (const std::string& part : parts) {
    meter.charge(2 + part.size() / 64);
    items.emplace_back(part, markup);
  }
  return make_list(std::move(items));
}

PyValue like(const PyValue& self, std::string text) { return PyValue(std::move(text), self.text().markup); }

template <std::string (*change)(std::string_view)> PyValue changed(Meter&, const PyValue& self, const Bound&) {
  return like(self, change(self.str()));
}

template <Class wanted> PyValue is_of_class(Meter&, const PyValue& self, const Bound&) {
  return all_of_class(self.str(), wanted);
}

template <bool from_right> PyValue cut(Meter& meter, const PyValue& self, const Bound& given) {
  return texts(split(self.str(), given.optional_text(0), given.integer(1, -1), from_right), self.text().markup, meter);
}

PyValue stripped(const PyValue& self, const Bound& given, bool left, bool right) {
  return like(self, strip(self.str(), given.optional_text(0), left, right));
}

/// The part of a text that start and end, as parameters 1 and 2, leave to look at; nothing if start is past the end.
struct Window {
  std::size_t begin = 0;  // bytes
  std::string_view text;
  bool empty = false;
};
Window window(const PyValue& self, const Bound& given) {
  const auto count = static_cast<std::int64_t>(character_count(self.text()));
  const auto place = [&](std::size_t index, std::int64_t fallback) {
    std::int64_t at = given.has_value(index) ? given.integer(index, 0) : fallback;
    if (at < 0) at = std::max<std::int64_t>(0, at + count);
    return at;
  };
  const std::int64_t start = place(1, 0), end = std::min(place(2, count), count);
  if (start > count || start > end) return {.begin = 0, .text = {}, .empty = true};
  const std::size_t begin = byte_of(self.text(), static_cast<std::size_t>(start)),
                    stop = byte_of(self.text(), static_cast<std::size_t>(end));
  return {.begin = begin, .text = std::string_view(self.str()).substr(begin, stop - begin)};
}

std::int64_t characters_before(const PyValue& self, std::size_t byte) {
  return static_cast<std::int64_t>(character_count(Text{self.str().substr(0, byte), false, self.text().ascii}));
}

PyValue found_at(const PyValue& self, const Bound& given, bool last, bool must) {
  const Window seen = window(self, given);
  const std::string& wanted = given.text(0);
  const std::size_t at = seen.empty ? std::string::npos
                         : last     ? find_last_bytes(seen.text, wanted)
                                    : find_bytes(seen.text, wanted, 0);
  if (at == std::string::npos) {
    if (must) throw Stuck("substring not found");
    return std::int64_t{-1};
  }
  return characters_before(self, seen.begin + at);
}

PyValue begins_or_ends(const PyValue& self, const Bound& given, bool begins) {
  const Window seen = window(self, given);
  const auto fits = [&](const PyValue& wanted) {
    if (!wanted.is(Kind::text)) throw Stuck("startswith and endswith need a str or a tuple of str");
    if (seen.empty) return false;
    return begins ? seen.text.starts_with(wanted.str()) : seen.text.ends_with(wanted.str());
  };
  const PyValue& wanted = given.at(0);
  if (!wanted.is(Kind::sequence) || wanted.sequence().shape != Shape::tuple) return fits(wanted);
  return std::any_of(wanted.sequence().items.begin(), wanted.sequence().items.end(), fits);
}

PyValue cut_in_three(const PyValue& self, const Bound& given, bool last) {
  const std::string &text = self.str(), &separator = given.text(0);
  if (separator.empty()) throw Stuck("empty separator");
  const std::size_t at = last ? find_last_bytes(text, separator) : find_bytes(text, separator, 0);
  if (at == std::string::npos && last) return make_list({"", "", self}, Shape::tuple);
  if (at == std::string::npos) return make_list({self, "", ""}, Shape::tuple);
  return make_list(
      {like(self, text.substr(0, at)), like(self, separator), like(self, text.substr(at + separator.size()))},
      Shape::tuple);
}

/// str.ljust(), rjust() and center(): `how` is the first letter of where the text goes.
PyValue padded(Meter& meter, const PyValue& self, const Bound& given, char how) {
  const std::int64_t count = length(self), width = given.integer(0, 0);
  const std::string fill = given.has(1) ? given.text(1) : " ";
  if (character_count(Text{fill, false, is_ascii(fill)}) != 1) throw Stuck("the fill character must be one character");
  if (width <= count) return self;
  const std::int64_t pad = width - count;
  const std::int64_t left = how == 'l' ? 0 : how == 'r' ? pad : pad / 2 + (pad & width & 1);
  return like(self, repeated(fill, left, meter) + self.str() + repeated(fill, pad - left, meter));
}

PyValue zero_filled(Meter& meter, const PyValue& self, const Bound& given) {
  const std::string& text = self.str();
  const std::int64_t pad = given.integer(0, 0) - length(self);
  if (pad <= 0) return self;
  const bool sign = text.starts_with('+') || text.starts_with('-');
  return like(self, text.substr(0, sign) + repeated("0", pad, meter) + text.substr(sign));
}

PyValue joined_by(Meter& meter, const PyValue& self, const Bound& given) {
  std::string text;
  bool first = true;
  for (const PyValue& item : iterate(given.at(0), meter)) {
    if (!item.is(Kind::text)) throw Stuck("join() needs texts, got '" + type_name(item) + "'");
    if (!std::exchange(first, false)) text += self.str();
    text += item.str();
    meter.charge_bytes(item.str().size() + self.str().size());
  }
  return like(self, std::move(text));
}

/// The shape of str.format() that needs no other object: {}, {0}, {name}, {{ and }}.
PyValue format(Evaluator& evaluator, const PyValue& self, const CallArguments& given) {
  std::string out;
  const std::string& text = self.str();
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size(); ++at) {
    const bool twice = at + 1 < text.size() && text[at + 1] == text[at];
    if ((text[at] == '{' || text[at] == '}') && twice) out += text[at++];
    else if (text[at] == '}') throw Stuck("single '}' encountered in format string");
    else if (text[at] != '{') out += text[at];
    else {
      const std::size_t end = text.find('}', at);
      if (end == std::string::npos) throw Stuck("expected '}' before end of string");
      const std::string field = text.substr(at + 1, end - at - 1);
      if (field.find_first_of(".[:!{") != std::string::npos)
        throw Stuck("format() with '{" + field.substr(0, 40) + "}' is not supported");
      const bool number = field.find_first_not_of("0123456789") == std::string::npos && field.size() < 9;
      const std::size_t index = field.empty() ? next++ : number ? std::stoul(field) : 0;
      const PyValue* value =
          number ? (index < given.positional.size() ? &given.positional[index] : nullptr) : given.find(field);
      if (!value) throw Stuck("format() has no value for '{" + field.substr(0, 40) + "}'");
      out += to_str(*value, evaluator.meter());
      at = end;
    }
    evaluator.meter().charge(1);
  }
  return like(self, std::move(out));
}

PyValue position_of(Meter& meter, const PyValue& self, const Bound& given) {
  const Values& items = self.sequence().items;
  for (std::size_t i = 0; i < items.size(); ++i)
    if (equal(items[i], given.at(0), meter)) return static_cast<std::int64_t>(i);
  throw Stuck("the value is not in the list");
}

template <Shape shape> PyValue row_of(Meter& meter, const PyValue& self, const Bound&) {
  meter.charge((shape == Shape::items ? 4 : 1) * self.dict().items.size());
  Values items;
  for (const auto& [key, value] : self.dict().items)
    items.push_back(shape == Shape::keys     ? key
                    : shape == Shape::values ? value
                                             : make_list({key, value}, Shape::tuple));
  return make_list(std::move(items), shape);
}

constexpr Method kText[]{
    {"strip", "chars?", [](Meter&, const PyValue& s, const Bound& g) { return stripped(s, g, true, true); }},
    {"lstrip", "chars?", [](Meter&, const PyValue& s, const Bound& g) { return stripped(s, g, true, false); }},
    {"rstrip", "chars?", [](Meter&, const PyValue& s, const Bound& g) { return stripped(s, g, false, true); }},
    {"upper", "", changed<upper>},
    {"lower", "", changed<lower>},
    {"casefold", "",
     [](Meter&, const PyValue& s, const Bound&) -> PyValue {
       if (!s.text().ascii) throw Stuck("casefold() of what is not ASCII is not supported");
       return like(s, lower(s.str()));
     }},
    {"title", "", changed<title>},
    {"capitalize", "", changed<capitalize>},
    {"swapcase", "", changed<swapcase>},
    {"split", "sep? maxsplit?", cut<false>},
    {"rsplit", "sep? maxsplit?", cut<true>},
    {"splitlines", "keepends?",
     [](Meter& m, const PyValue& s, const Bound& g) {
       return texts(split_lines(s.str(), g.flag(0, false)), s.text().markup, m);
     }},
    {"startswith", "prefix start? end?",
     [](Meter&, const PyValue& s, const Bound& g) { return begins_or_ends(s, g, true); }},
    {"endswith", "suffix start? end?",
     [](Meter&, const PyValue& s, const Bound& g) { return begins_or_ends(s, g, false); }},
    {"replace", "old new count?",
     [](Meter& m, const PyValue& s, const Bound& g) {
       return like(s, replaced(s.str(), g.text(0), g.text(1), g.integer(2, -1), m));
     }},
    {"find", "sub start? end?", [](Meter&, const PyValue& s, const Bound& g) { return found_at(s, g, false, false); }},
    {"rfind", "sub start? end?", [](Meter&, const PyValue& s, const Bound& g) { return found_at(s, g, true, false); }},
    {"index", "sub start? end?", [](Meter&, const PyValue& s, const Bound& g) { return found_at(s, g, false, true); }},
    {"rindex", "sub start? end?", [](Meter&, const PyValue& s, const Bound& g) { return found_at(s, g, true, true); }},
    {"count", "sub start? end?",
     [](Meter&, const PyValue& s, const Bound& g) -> PyValue {
       const Window seen = window(s, g);
       return seen.empty ? std::int64_t{0} : static_cast<std::int64_t>(count_bytes(seen.text, g.text(0)));
     }},
    {"partition", "sep", [](Meter&, const PyValue& s, const Bound& g) { return cut_in_three(s, g, false); }},
    {"rpartition", "sep", [](Meter&, const PyValue& s, const Bound& g) { return cut_in_three(s, g, true); }},
    {"removeprefix", "prefix",
     [](Meter&, const PyValue& s, const Bound& g) {
       return s.str().starts_with(g.text(0)) ? like(s, s.str().substr(g.text(0).size())) : s;
     }},
    {"removesuffix", "suffix",
     [](Meter&, const PyValue& s, const Bound& g) {
       return s.str().ends_with(g.text(0)) ? like(s, s.str().substr(0, s.str().size() - g.text(0).size())) : s;
     }},
    {"join", "iterable", joined_by},
    {"ljust", "width fillchar?", [](Meter& m, const PyValue& s, const Bound& g) { return padded(m, s, g, 'l'); }},
    {"rjust", "width fillchar?", [](Meter& m, const PyValue& s, const Bound& g) { return padded(m, s, g, 'r'); }},
    {"center", "width fillchar?", [](Meter& m, const PyValue& s, const Bound& g) { return padded(m, s, g, 'c'); }},
    {"zfill", "width", zero_filled},
    {"isalpha", "", is_of_class<Class::alpha>},
    {"isdigit", "", is_of_class<Class::digit>},
    {"isnumeric", "", is_of_class<Class::numeric>},
    {"isalnum", "", is_of_class<Class::alnum>},
    {"isspace", "", is_of_class<Class::space>},
    {"isupper", "", is_of_class<Class::upper>},
    {"islower", "", is_of_class<Class::lower>},
};
constexpr std::string_view kTextNotSupported[]{"encode",       "expandtabs",  "format_map", "isascii",   "isdecimal",
                                               "isidentifier", "isprintable", "istitle",    "maketrans", "translate"};
constexpr Method kRow[]{
    {"index", "value", position_of},
    {"count", "value",
     [](Meter& m, const PyValue& s, const Bound& g) -> PyValue {
       const Values& items = s.sequence().items;
       return static_cast<std::int64_t>(
           std::count_if(items.begin(), items.end(), [&](const PyValue& item) { return equal(item, g.at(0), m); }));
     }},
    {"copy", "", [](Meter&, const PyValue& s, const Bound&) { return s; }},
};
constexpr Method kDict[]{
    {"get", "key default?",
     [](Meter& m, const PyValue& s, const Bound& g) {
       const PyValue* found = s.dict().find(g.at(0), m);
       return found ? *found : g.has(1) ? g.at(1) : PyValue::none();
     }},
    {"items", "", row_of<Shape::items>},
    {"keys", "", row_of<Shape::keys>},
    {"values", "", row_of<Shape::values>},
    {"copy", "", [](Meter&, const PyValue& s, const Bound&) { return s; }},
};
// Methods that would change their object; a template's sandbox has none of them.
constexpr std::string_view kChangesList[]{"append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse"};
constexpr std::string_view kChangesDict[]{"pop", "clear", "popitem", "update", "setdefault"};

struct BoundMethod : Callable {
  BoundMethod(PyValue of, const Method& which) : self(std::move(of)), method(which) { depth = deeper(depth_of(self)); }
  PyValue call(Evaluator& evaluator, CallArguments arguments) override {
    Meter& meter = evaluator.meter();
    if (self.is(Kind::text)) meter.charge_bytes(4 * self.str().size());
    return method.body(meter, self, Bound(std::string(method.name) + "()", method.parameters, std::move(arguments)));
  }
  const PyValue self;
  const Method& method;
};

struct FormatMethod : Callable {
  explicit FormatMethod(PyValue of) : self(std::move(of)) {}
  PyValue call(Evaluator& evaluator, CallArguments arguments) override { return format(evaluator, self, arguments); }
  const PyValue self;
};

template <std::size_t N> bool is_one_of(const std::string_view (&names)[N], const std::string& name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

template <std::size_t N> const Method* in(const Method (&methods)[N], const std::string& name) {
  const auto found =
      std::find_if(std::begin(methods), std::end(methods), [&](const Method& m) { return m.name == name; });
  return found == std::end(methods) ? nullptr : found;
}

}  // namespace

std::optional<PyValue> method(const PyValue& of, const std::string& name) {
  const bool row = is_row(of);
  const Method* found = of.is(Kind::text)   ? in(kText, name)
                        : of.is(Kind::dict) ? in(kDict, name)
                        : row               ? in(kRow, name)
                                            : nullptr;
  if (found && row && of.sequence().shape == Shape::tuple && name == "copy") found = nullptr;
  if (found) return PyValue(std::shared_ptr<Callable>(std::make_shared<BoundMethod>(of, *found)));
  if (of.is(Kind::text) && name == "format")
    return PyValue(std::shared_ptr<Callable>(std::make_shared<FormatMethod>(of)));
  if (of.is(Kind::text) && is_one_of(kTextNotSupported, name))
    throw Stuck("the method " + name + " of a str is not supported");
  const bool list = row && of.sequence().shape == Shape::list;
  if ((list && is_one_of(kChangesList, name)) || (of.is(Kind::dict) && is_one_of(kChangesDict, name)))
    return PyValue::undefined("access to attribute '" + name + "' of '" + type_name(of) + "' object is unsafe.");
  return {};
}

}  // namespace weft::runtime::jinja
