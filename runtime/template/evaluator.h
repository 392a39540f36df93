// runtime/template/evaluator.h: runs a template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/template/ast.h"
#include "runtime/template/template.h"
#include "runtime/template/value.h"

namespace weft::runtime::jinja {

class Evaluator;

struct CallArguments {
  Values positional;
  std::vector<std::pair<std::string, PyValue>> named;

  const PyValue* find(std::string_view name) const;
};

/// A thing that can be called: a macro, a method, a function, a recursive loop.
struct Callable {
  Callable() = default;
  Callable(const Callable&) = delete;
  Callable& operator=(const Callable&) = delete;
  virtual ~Callable() = default;
  virtual PyValue call(Evaluator& evaluator, CallArguments arguments) = 0;
  /// A part of it, such as loop.index; nothing if it has no such part.
  virtual std::optional<PyValue> part(Evaluator&, const std::string&) { return {}; }
  int depth = 0;  ///< counts how deep its values lie: see depth_of()
};

/// Arguments by parameter. `parameters` lists names with spaces between them; those with a ? may be left out.
class Bound {
 public:
  /// Throws Stuck if the arguments do not fit; `what` begins the message.
  Bound(const std::string& what, std::string_view parameters, CallArguments arguments);
  bool has(std::size_t index) const { return values_[index].has_value(); }
  bool has_value(std::size_t index) const { return has(index) && !at(index).is(Kind::none); }
  const PyValue& at(std::size_t index) const { return *values_[index]; }
  std::int64_t integer(std::size_t index, std::int64_t fallback) const;
  bool flag(std::size_t index, bool fallback) const { return has(index) ? truth(at(index)) : fallback; }
  const std::string& text(std::size_t index) const;                   ///< refuses anything but a text
  std::optional<std::string> optional_text(std::size_t index) const;  ///< nothing for None too

 private:
  std::string what_;
  std::vector<std::optional<PyValue>> values_;
};

/// The names of one block, which sees those of the blocks around it.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<int, PyValue>> values;

  const PyValue* find(int symbol) const;  ///< here or further out; null if there is none
  void set(int symbol, PyValue value);
};
using ScopePtr = std::shared_ptr<Scope>;

class Evaluator {
 public:
  Evaluator(const Tree& tree, const Surroundings& around, std::uint64_t units);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;
  /// The text of the whole template. Throws TemplateError.
  std::string run(const nlohmann::ordered_json& variables);

  Meter& meter() { return meter_; }
  const Surroundings& around() const { return around_; }
  SourcePlace place() const { return place_; }
  PyValue attribute(const PyValue& of, const std::string& name);  ///< reads of.name
  PyValue item(const PyValue& of, const PyValue& key);            ///< reads of[key]
  PyValue call(const PyValue& callee, CallArguments arguments);
  PyValue filter(const std::string& name, const PyValue& value, CallArguments arguments);
  bool test(const std::string& name, const PyValue& value, CallArguments arguments);
  /// Runs a macro's body. `caller` may be undefined.
  PyValue call_macro(const Node& macro, const ScopePtr& scope, CallArguments arguments);
  /// Runs a loop and returns its text; `depth` counts the loops that called themselves.
  std::string loop_text(const Node& loop, const PyValue& over, const ScopePtr& scope, int depth);
  PyValue make_namespace(std::vector<std::pair<std::string, PyValue>> items);

 private:
  enum class Flow : std::uint8_t { on, leave, next };
  /// Bounds the recursion while it lives.
  struct Level {
    explicit Level(Evaluator& of);
    ~Level() { --evaluator.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Evaluator& evaluator;
  };

  /// Takes what is put while it lives.
  struct Taken {
    explicit Taken(Evaluator& of) : evaluator(of), before(std::exchange(of.out_, &text)) {}
    ~Taken() { evaluator.out_ = before; }
    Taken(const Taken&) = delete;
    Taken& operator=(const Taken&) = delete;
    std::string text;
    Evaluator& evaluator;
    std::string* const before;
  };

  Flow run(const Nodes& body, const ScopePtr& scope);
  Flow run(const Node& node, const ScopePtr& scope);
  Flow run_branch(const Node& node, const ScopePtr& scope);
  /// Returns where its else leads the loop around it.
  Flow run_loop(const Node& node, const PyValue& over, const ScopePtr& scope, int depth);
  void run_macro(const Node& node, const ScopePtr& scope);
  void run_call_block(const Node& node, const ScopePtr& scope);
  Flow run_with(const Node& node, const ScopePtr& scope);
  void put(const std::string& text);
  std::string text_of(const Nodes& body, const ScopePtr& scope);
  ScopePtr inner(const ScopePtr& scope) const;
  void assign(const Node& target, const PyValue& value, const ScopePtr& scope);

  PyValue evaluate(const Node& node, const ScopePtr& scope);
  PyValue name(const Node& node, const ScopePtr& scope);
  PyValue dict(const Node& node, const ScopePtr& scope);
  PyValue slice(const PyValue& of, const Node& node, const ScopePtr& scope);
  PyValue compare(const Node& node, const ScopePtr& scope);
  PyValue concat(const Node& node, const ScopePtr& scope);
  PyValue filter_of(const Node& node, const PyValue* over, const ScopePtr& scope);
  CallArguments arguments(const Arguments& given, const ScopePtr& scope);

  const Tree& tree_;
  const Surroundings& around_;
  Meter meter_;
  SourcePlace place_;
  int level_ = 0;
  int caller_ = -1, loop_ = -1, kwargs_ = -1, varargs_ = -1;  // symbols; -1 if the template has no such name
  std::string* out_ = nullptr;
  std::vector<ScopePtr> kept_scopes_;                        // those that a macro refers to
  std::vector<std::shared_ptr<Namespace>> kept_namespaces_;  // emptied at the end, since both may hold themselves
};

/// a OP b as Python computes it. Throws Stuck.
PyValue binary(const std::string& sign, const PyValue& a, const PyValue& b, Meter& meter);
/// a OP b, where OP is ==, !=, <, >, <=, >=, in or "not in". Throws Stuck.
bool compared(std::string_view sign, const PyValue& a, const PyValue& b, Meter& meter);
PyValue negative(const PyValue& value, bool minus);
/// value[start:stop:step]; none where left out.
PyValue sliced(const PyValue& value, const PyValue& start, const PyValue& stop, const PyValue& step, Meter& meter);

/// A method of Python's str, list or dict, bound to its object; nothing if there is none of that name.
std::optional<PyValue> method(const PyValue& of, const std::string& name);
/// A function that every template has, such as range; nothing if there is none of that name.
std::optional<PyValue> function(const std::string& name);

}  // namespace weft::runtime::jinja
