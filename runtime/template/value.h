// runtime/template/value.h: the values of a chat template, which behave as Python's do: how they print, compare and
// add.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace weft::runtime::jinja {

/// Thrown if a template cannot go on. It has no place yet: the one who knows which part of the template runs adds it.
struct Stuck : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Counts what a template costs, so that no template can run for long or fill the memory.
class Meter {
 public:
  explicit Meter(std::uint64_t units) : left_(units) {}
  /// Takes units off what is left. One is a step of the interpreter or an element of a list. Throws Stuck if none is
  /// left.
  void charge(std::uint64_t units);
  /// Takes the units of a text of so many bytes, which is made or read.
  void charge_bytes(std::uint64_t bytes) { charge(1 + bytes / 64); }

 private:
  std::uint64_t left_;
};

class PyValue;
struct Text;
struct PyRow;
struct Dict;
struct Generator;
struct Namespace;
struct Callable;
using Values = std::vector<PyValue>;
using Item = std::pair<PyValue, PyValue>;

enum class Kind : std::uint8_t {
  undefined,  ///< Jinja's value of what has none: prints nothing, and most uses of it are errors
  none,
  boolean,
  integer,
  real,
  text,
  sequence,
  dict,
  generator,
  names,  ///< a namespace()
  callable,
};

/// A Python value. Texts, sequences and dicts never change once they are made, so copies share them.
class PyValue {
 public:
  PyValue() = default;  ///< undefined, without a name
  PyValue(bool flag) : kind_(Kind::boolean), integer_(flag) {}
  PyValue(std::int64_t number) : kind_(Kind::integer), integer_(number) {}
  PyValue(double number) : kind_(Kind::real), real_(number) {}
  PyValue(std::string text, bool markup = false);
  PyValue(const char* text) : PyValue(std::string(text)) {}
  PyValue(std::shared_ptr<const PyRow> items) : kind_(Kind::sequence), object_(std::move(items)) {}
  PyValue(std::shared_ptr<const Dict> items) : kind_(Kind::dict), object_(std::move(items)) {}
  PyValue(std::shared_ptr<Generator> items) : kind_(Kind::generator), object_(std::move(items)) {}
  PyValue(std::shared_ptr<Namespace> names) : kind_(Kind::names), object_(std::move(names)) {}
  PyValue(std::shared_ptr<Callable> called) : kind_(Kind::callable), object_(std::move(called)) {}
  static PyValue none();
  /// An undefined value; `what` says in messages what has no value.
  static PyValue undefined(const std::string& what);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_defined() const { return kind_ != Kind::undefined; }
  bool is_number() const { return kind_ == Kind::boolean || kind_ == Kind::integer || kind_ == Kind::real; }
  bool is_whole() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }
  std::int64_t integer() const { return integer_; }  ///< that of a boolean is 0 or 1
  double number() const { return kind_ == Kind::real ? real_ : static_cast<double>(integer_); }
  const Text& text() const;
  const std::string& str() const;  ///< the bytes of a text
  const PyRow& sequence() const;
  const Dict& dict() const;
  Generator& generator() const;
  Namespace& names() const;
  Callable& callable() const;
  bool same_object(const PyValue& other) const { return kind_ == other.kind_ && object_ == other.object_; }
  const void* address() const { return object_.get(); }

 private:
  Kind kind_ = Kind::undefined;
  union {
    std::int64_t integer_ = 0;
    double real_;
  };
  std::shared_ptr<const void> object_;
};

/// A text in UTF-8. Its length and places count characters.
struct Text {
  std::string bytes;
  bool markup = false;  ///< made by the filter `safe`: what is added to it is escaped
  bool ascii = false;
};

enum class Shape : std::uint8_t { list, tuple, range, keys, values, items };
/// Values in a row.
struct PyRow {
  Shape shape = Shape::list;
  Values items;
  int depth = 1;
  std::int64_t start = 0, stop = 0, step = 1;  // of a range
};

/// Values by key, in the order in which the keys came.
struct Dict {
  std::vector<Item> items;
  std::unordered_map<std::string, std::size_t> places;  // by hash_text()
  int depth = 1;

  const PyValue* find(const std::string& text) const;  ///< the value of a key that is this text, or null
  const PyValue* find(const PyValue& key, Meter& meter) const;
};

/// Values that can be gone through once.
struct Generator {
  Values items;
  std::size_t at = 0;
  int depth = 1;
};

/// A namespace() of a template: the one value whose parts can be set.
struct Namespace {
  std::vector<std::pair<std::string, PyValue>> items;

  PyValue* find(std::string_view name);
};

/// Counts how deep lists lie within lists in a value; deeper() adds one. Both bound how deep any recursion over values
/// goes.
int depth_of(const PyValue& value);
int deeper(int depth);                                       ///< throws Stuck at the bound
PyValue make_list(Values items, Shape shape = Shape::list);  ///< throws Stuck if values are nested too deeply
PyValue make_dict(std::vector<Item> items, Meter& meter);    ///< later keys replace earlier ones
PyValue make_generator(Values items);
PyValue from_json(const nlohmann::ordered_json& json);

/// The name of a value's type as Python has it, such as "str".
std::string type_name(const PyValue& value);
/// Throws Stuck with what an undefined value says of itself, or with `fallback`.
[[noreturn]] void refuse_undefined(const PyValue& value, const std::string& fallback);
bool is_row(const PyValue& value);  ///< a list or a tuple
bool truth(const PyValue& value);
bool equal(const PyValue& a, const PyValue& b, Meter& meter);
/// Whether a < b. Throws Stuck if Python does not order such values.
bool less(const PyValue& a, const PyValue& b, Meter& meter);
/// A text that is the same for equal keys of a dict. Throws Stuck for what cannot be a key.
std::string hash_text(const PyValue& value, Meter& meter);
/// Prints a value as Python's str() and repr() do.
std::string to_str(const PyValue& value, Meter& meter);
std::string to_repr(const PyValue& value, Meter& meter);
std::string float_text(double number);
/// Lists what a `for` goes through. Throws Stuck if the value cannot be gone through. Empties a generator.
Values iterate(const PyValue& value, Meter& meter);
bool contains(const PyValue& container, const PyValue& value, Meter& meter);
/// The number of items or characters. Throws Stuck if the value has none.
std::int64_t length(const PyValue& value);
/// Python's json.dumps(). `indent` is what each level is indented by, or null for a single line.
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  const std::string* indent = nullptr;
  std::string between = ", ", after_key = ": ";
};
std::string to_json_text(const PyValue& value, const JsonStyle& style, Meter& meter);

}  // namespace weft::runtime::jinja
