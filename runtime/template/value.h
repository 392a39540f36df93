// runtime/template/value.h: the values of a chat template, which behave as Python's do: how they print, compare and add.
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
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Counts what a template costs, so that no template can run for long or fill the memory.
class Meter {
 public:
  explicit Meter(std::uint64_t units) : left_(units) {}
  /// Takes units off what is left. One is a step of the interpreter or an element of a list. Throws Fault if none is
  /// left.
  void charge(std::uint64_t units);
  /// Takes the units of a text of so many bytes, which is made or read.
  void charge_bytes(std::uint64_t bytes) { charge(1 + bytes / 64); }

 private:
  std::uint64_t left_;
};

class Value;
struct Text;
struct Sequence;
struct Dict;
struct Generator;
struct Namespace;
struct Callable;
using Values = std::vector<Value>;
using Item = std::pair<Value, Value>;

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
class Value {
 public:
  Value() = default;  ///< undefined, without a name
  Value(bool flag) : kind_(Kind::boolean), integer_(flag) {}
  Value(std::int64_t number) : kind_(Kind::integer), integer_(number) {}
  Value(double number) : kind_(Kind::real), real_(number) {}
  Value(std::string text, bool markup = false);
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::shared_ptr<const Sequence> items) : kind_(Kind::sequence), object_(std::move(items)) {}
  Value(std::shared_ptr<const Dict> items) : kind_(Kind::dict), object_(std::move(items)) {}
  Value(std::shared_ptr<Generator> items) : kind_(Kind::generator), object_(std::move(items)) {}
  Value(std::shared_ptr<Namespace> names) : kind_(Kind::names), object_(std::move(names)) {}
  Value(std::shared_ptr<Callable> called) : kind_(Kind::callable), object_(std::move(called)) {}
  static Value none();
  /// An undefined value; `what` says in messages what has no value.
  static Value undefined(const std::string& what);

  Kind kind() const { return kind_; }
  bool is(Kind kind) const { return kind_ == kind; }
  bool is_defined() const { return kind_ != Kind::undefined; }
  bool is_number() const { return kind_ == Kind::boolean || kind_ == Kind::integer || kind_ == Kind::real; }
  bool is_whole() const { return kind_ == Kind::boolean || kind_ == Kind::integer; }
  std::int64_t integer() const { return integer_; }  ///< of a boolean too
  double number() const { return kind_ == Kind::real ? real_ : static_cast<double>(integer_); }
  const Text& text() const;
  const std::string& str() const;  ///< the bytes of a text
  const Sequence& sequence() const;
  const Dict& dict() const;
  Generator& generator() const;
  Namespace& names() const;
  Callable& callable() const;
  bool same_object(const Value& other) const { return kind_ == other.kind_ && object_ == other.object_; }
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
struct Sequence {
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

  const Value* find(const std::string& text) const;  ///< the value of a key that is this text, or null
  const Value* find(const Value& key, Meter& meter) const;
};

/// Values that can be gone through once.
struct Generator {
  Values items;
  std::size_t at = 0;
  int depth = 1;
};

/// What namespace() makes: the one value whose parts can be set.
struct Namespace {
  std::vector<std::pair<std::string, Value>> items;

  Value* find(std::string_view name);
};

/// How deep lists lie within lists in a value, and one more. Both bound how deep any recursion over values goes.
int depth_of(const Value& value);
int deeper(int depth);  ///< throws Fault at the bound
Value make_list(Values items, Shape shape = Shape::list);  ///< throws Fault if values are nested too deeply
Value make_dict(std::vector<Item> items, Meter& meter);    ///< later keys replace earlier ones
Value make_generator(Values items);
Value from_json(const nlohmann::ordered_json& json);

/// The name of a value's type as Python has it, such as "str".
std::string type_name(const Value& value);
bool truth(const Value& value);
bool equal(const Value& a, const Value& b, Meter& meter);
/// Whether a < b. Throws Fault if Python does not order such values.
bool less(const Value& a, const Value& b, Meter& meter);
/// A text that is the same for equal keys of a dict. Throws Fault for what cannot be a key.
std::string hash_text(const Value& value, Meter& meter);
/// What Python's str() and repr() print.
std::string to_str(const Value& value, Meter& meter);
std::string to_repr(const Value& value, Meter& meter);
std::string float_text(double number);
/// What a `for` goes through. Throws Fault if the value cannot be gone through. Empties a generator.
Values iterate(const Value& value, Meter& meter);
bool contains(const Value& container, const Value& value, Meter& meter);
/// The number of items or characters. Throws Fault if the value has none.
std::int64_t length(const Value& value);
/// Python's json.dumps(). `indent` is what each level is indented by, or null for a single line.
struct JsonStyle {
  bool ascii = false, sort_keys = false;
  const std::string* indent = nullptr;
  std::string between = ", ", after_key = ": ";
};
std::string to_json_text(const Value& value, const JsonStyle& style, Meter& meter);

}  // namespace weft::runtime::jinja
