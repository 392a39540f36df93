// runtime/template/functions.cc: the functions that every template has, and tests.
#include <array>
#include <ctime>

#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

constexpr std::int64_t kLongestRange = 100'000;  // jinja2's own limit

using FunctionBody = PyValue (*)(Evaluator&, CallArguments&&);

struct Function : Callable {
  explicit Function(FunctionBody of) : body(of) {}
  PyValue call(Evaluator& evaluator, CallArguments arguments) override { return body(evaluator, std::move(arguments)); }
  const FunctionBody body;
};

PyValue range(Evaluator& evaluator, CallArguments&& given) {
  const bool one = given.positional.size() == 1;
  const Bound bound("range()", "start stop? step?", std::move(given));
  PyRow made;
  made.shape = Shape::range;
  made.start = one ? 0 : bound.integer(0, 0);
  made.stop = one ? bound.integer(0, 0) : bound.integer(1, 0);
  made.step = bound.integer(2, 1);
  if (made.step == 0) throw Stuck("range() arg 3 must not be zero");
  std::int64_t at = made.start;
  for (bool over = false; !over && (made.step > 0 ? at < made.stop : at > made.stop);
       over = __builtin_add_overflow(at, made.step, &at)) {
    if (static_cast<std::int64_t>(made.items.size()) == kLongestRange)
      throw Stuck("a range has more than " + std::to_string(kLongestRange) + " numbers");
    made.items.emplace_back(at);
  }
  evaluator.meter().charge(made.items.size());
  return std::make_shared<const PyRow>(std::move(made));
}

/// The items of dict(...) and namespace(...): those of a dict or of pairs, and then keywords.
std::vector<Item> items_of(Evaluator& evaluator, const CallArguments& given, const char* what) {
  if (given.positional.size() > 1) throw Stuck(std::string(what) + " takes at most one positional argument");
  std::vector<Item> items;
  if (!given.positional.empty()) {
    const PyValue& from = given.positional[0];
    if (from.is(Kind::dict)) {
      items = from.dict().items;
    } else {
      for (const PyValue& pair : iterate(from, evaluator.meter())) {
        const Values two = iterate(pair, evaluator.meter());
        if (two.size() != 2) throw Stuck(std::string(what) + " needs pairs");
        items.emplace_back(two[0], two[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) items.emplace_back(PyValue(name), value);
  evaluator.meter().charge(items.size());
  return items;
}

PyValue dict(Evaluator& evaluator, CallArguments&& given) {
  return make_dict(items_of(evaluator, given, "dict()"), evaluator.meter());
}

PyValue names(Evaluator& evaluator, CallArguments&& given) {
  const PyValue all = make_dict(items_of(evaluator, given, "namespace()"), evaluator.meter());
  std::vector<std::pair<std::string, PyValue>> items;
  for (const auto& [key, value] : all.dict().items) {
    if (!key.is(Kind::text)) throw Stuck("the names of a namespace are texts");
    if (key.str().starts_with('_')) throw Stuck("a namespace takes no name that begins with an underscore");
    items.emplace_back(key.str(), value);
  }
  if (items.size() > 1000) throw Stuck("a namespace has more than 1000 names");
  return evaluator.make_namespace(std::move(items));
}

PyValue raise_exception(Evaluator& evaluator, CallArguments&& given) {
  const Bound bound("raise_exception()", "message", std::move(given));
  throw TemplateRefusal(evaluator.place(), to_str(bound.at(0), evaluator.meter()));
}

PyValue strftime_now(Evaluator& evaluator, CallArguments&& given) {
  const Bound bound("strftime_now()", "format", std::move(given));
  const std::string& format = bound.text(0);
  if (!evaluator.around().now) throw DateWanted(evaluator.place(), "the template asks for the date of the day");
  if (format.size() > 256) throw Stuck("the format of a date has more than 256 bytes");
  std::array<char, 4096> text{};
  const std::size_t bytes = std::strftime(text.data(), text.size(), format.c_str(), &*evaluator.around().now);
  return std::string(text.data(), bytes);
}

/// True for what Python counts as a sequence: it has a length and items by number or key.
bool is_sequence(const PyValue& value) {
  return value.is(Kind::text) || value.is(Kind::dict) || !value.is_defined() ||
         (value.is(Kind::sequence) && value.sequence().shape <= Shape::range);
}

bool is_iterable(const PyValue& value) {
  return is_sequence(value) || value.is(Kind::sequence) || value.is(Kind::generator);
}

bool same(const PyValue& a, const PyValue& b) {
  if (a.kind() != b.kind()) return false;
  if (a.is(Kind::none)) return true;
  if (a.is_whole()) return a.integer() == b.integer();
  return !a.is(Kind::real) && a.same_object(b);
}

const PyValue& argument(const CallArguments& given, const std::string& name) {
  if (given.positional.size() != 1 || !given.named.empty()) throw Stuck("the test '" + name + "' takes one argument");
  return given.positional[0];
}

std::optional<bool> test_of_kind(const std::string& name, const PyValue& value) {
  if (name == "defined") return value.is_defined();
  if (name == "undefined") return !value.is_defined();
  if (name == "none") return value.is(Kind::none);
  if (name == "boolean") return value.is(Kind::boolean);
  if (name == "true") return value.is(Kind::boolean) && value.integer() == 1;
  if (name == "false") return value.is(Kind::boolean) && value.integer() == 0;
  if (name == "integer") return value.is(Kind::integer);
  if (name == "float") return value.is(Kind::real);
  if (name == "number") return value.is_number();
  if (name == "string") return value.is(Kind::text);
  if (name == "mapping") return value.is(Kind::dict);
  if (name == "sequence") return is_sequence(value);
  if (name == "iterable") return is_iterable(value);
  if (name == "callable") return value.is(Kind::callable);
  if (name == "escaped") return value.is(Kind::text) && value.text().markup;
  return {};
}

}  // namespace

std::optional<PyValue> function(const std::string& name) {
  constexpr std::pair<std::string_view, FunctionBody> known[]{{"range", range},
                                                              {"dict", dict},
                                                              {"namespace", names},
                                                              {"raise_exception", raise_exception},
                                                              {"strftime_now", strftime_now}};
  for (const auto& [known_name, body] : known)
    if (name == known_name) return PyValue(std::shared_ptr<Callable>(std::make_shared<Function>(body)));
  if (name == "cycler" || name == "joiner" || name == "lipsum") throw Stuck("'" + name + "' is not supported");
  return {};
}

bool Evaluator::test(const std::string& name, const PyValue& value, CallArguments given) {
  if (const auto known = test_of_kind(name, value)) {
    if (!given.positional.empty() || !given.named.empty()) throw Stuck("the test '" + name + "' takes no argument");
    return *known;
  }
  constexpr std::pair<std::string_view, std::string_view> comparisons[]{
      {"==", "=="}, {"eq", "=="},      {"equalto", "=="}, {"!=", "!="}, {"ne", "!="},         {"<", "<"},
      {"lt", "<"},  {"lessthan", "<"}, {">", ">"},        {"gt", ">"},  {"greaterthan", ">"}, {"<=", "<="},
      {"le", "<="}, {">=", ">="},      {"ge", ">="},      {"in", "in"}};
  for (const auto& [known, sign] : comparisons)
    if (name == known) return compared(sign, value, argument(given, name), meter_);
  if (name == "sameas") return same(value, argument(given, name));
  if (name == "divisibleby") return !truth(binary("%", value, argument(given, name), meter_));
  if (name == "odd") return equal(binary("%", value, std::int64_t{2}, meter_), std::int64_t{1}, meter_);
  if (name == "even") return !truth(binary("%", value, std::int64_t{2}, meter_));
  if (name == "upper") return all_of_class(to_str(value, meter_), Class::upper);
  if (name == "lower") return all_of_class(to_str(value, meter_), Class::lower);
  throw Stuck("there is no test named '" + name.substr(0, 40) + "'");
}

}  // namespace weft::runtime::jinja
