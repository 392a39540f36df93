// runtime/template/evaluator.cc: statements.
#include "runtime/template/evaluator.h"

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>

#include "runtime/template/text.h"

namespace weft::runtime::jinja {

namespace {

constexpr int kDeepestCall = 1500;  // calls within calls of the interpreter
constexpr std::size_t kMostNamespaces = 100'000;

struct Macro : Callable {
  Macro(const Node& of, ScopePtr where) : node(of), scope(std::move(where)) {}
  PyValue call(Evaluator& evaluator, CallArguments arguments) override {
    return evaluator.call_macro(node, scope, std::move(arguments));
  }
  std::optional<PyValue> part(Evaluator&, const std::string& name) override {
    if (name == "name") return node.text.empty() ? PyValue::none() : PyValue(node.text);
    return {};
  }
  const Node& node;
  const ScopePtr scope;
};

/// `loop` in the body of a for. Items come when they are asked for, because the loop's condition may see what its body
/// did before.
struct Loop : Callable, std::enable_shared_from_this<Loop> {
  PyValue call(Evaluator& evaluator, CallArguments arguments) override {
    if (ended || !node->recursive) throw Stuck("the loop must have the 'recursive' marker to be called");
    if (arguments.positional.size() != 1 || !arguments.named.empty()) throw Stuck("loop() takes one argument");
    return evaluator.loop_text(*node, arguments.positional[0], scope, level + 1);
  }

  /// Moves on; false at the end.
  bool advance() {
    if (!peek()) return false;
    previous = std::move(current);
    current = std::move(ahead.front());
    ahead.pop_front();
    ++index0;
    return true;
  }
  bool peek() {
    if (ahead.empty())
      if (auto next = pull()) ahead.push_back(std::move(*next));
    return !ahead.empty();
  }
  std::int64_t length() {
    while (auto next = pull()) ahead.push_back(std::move(*next));
    return index0 + 1 + static_cast<std::int64_t>(ahead.size());
  }

  std::optional<PyValue> part(Evaluator&, const std::string& name) override;

  const Node* node = nullptr;
  ScopePtr scope;
  int level = 0;  ///< counts the loops that called themselves
  std::function<std::optional<PyValue>()> pull;
  std::deque<PyValue> ahead;
  std::optional<PyValue> current, previous;
  std::optional<Values> changed;
  std::int64_t index0 = -1;
  bool ended = false;

  /// Lets go of all values, so that loops that outlive their bodies in a namespace make no chain.
  void end() {
    ended = true;
    pull = [] { return std::optional<PyValue>(); };
    ahead.clear();
    current.reset(), previous.reset(), changed.reset();
  }
};

/// loop.cycle and loop.changed.
struct LoopMethod : Callable {
  LoopMethod(std::shared_ptr<Loop> of, bool changes) : loop(std::move(of)), is_changed(changes) {}
  PyValue call(Evaluator& evaluator, CallArguments arguments) override {
    if (loop->ended) throw Stuck("the loop has ended");
    Values& values = arguments.positional;
    if (!is_changed) {
      if (values.empty()) throw Stuck("no items for cycling given");
      return values[static_cast<std::size_t>(loop->index0) % values.size()];
    }
    const bool same = loop->changed && equal(make_list(*loop->changed), make_list(values), evaluator.meter());
    if (!same) loop->changed = std::move(values);
    return !same;
  }
  const std::shared_ptr<Loop> loop;
  const bool is_changed;
};

std::optional<PyValue> Loop::part(Evaluator&, const std::string& name) {
  if (name == "index") return index0 + 1;
  if (name == "index0") return index0;
  if (name == "first") return index0 == 0;
  if (name == "last") return !peek();
  if (name == "length") return length();
  if (name == "revindex") return length() - index0;
  if (name == "revindex0") return length() - index0 - 1;
  if (name == "depth") return std::int64_t{level} + 1;
  if (name == "depth0") return std::int64_t{level};
  if (name == "previtem") return previous ? *previous : PyValue::undefined("there is no previous item");
  if (name == "nextitem") return peek() ? ahead.front() : PyValue::undefined("there is no next item");
  if (name == "cycle" || name == "changed")
    return PyValue(std::shared_ptr<Callable>(std::make_shared<LoopMethod>(shared_from_this(), name == "changed")));
  return {};
}

}  // namespace

const PyValue* CallArguments::find(std::string_view name) const {
  for (const auto& [key, value] : named)
    if (key == name) return &value;
  return nullptr;
}

const PyValue* Scope::find(int symbol) const {
  for (const Scope* scope = this; scope; scope = scope->parent.get())
    for (const auto& [name, value] : scope->values)
      if (name == symbol) return &value;
  return nullptr;
}

void Scope::set(int symbol, PyValue value) {
  for (auto& [name, old] : values)
    if (name == symbol) {
      old = std::move(value);
      return;
    }
  values.emplace_back(symbol, std::move(value));
}

Evaluator::Evaluator(const Tree& tree, const Surroundings& around, std::uint64_t units)
    : tree_(tree), around_(around), meter_(units) {}

Evaluator::~Evaluator() {
  // In this order, no value's end ends a long chain of others.
  for (const auto& names : kept_namespaces_) names->items.clear();
  for (const auto& scope : kept_scopes_) scope->values.clear();
}

Evaluator::Level::Level(Evaluator& of) : evaluator(of) {
  if (++evaluator.level_ > kDeepestCall) {
    --evaluator.level_;
    throw Stuck("the template calls itself too deeply");
  }
  evaluator.meter_.charge(1);
}

std::string Evaluator::run(const nlohmann::ordered_json& variables) try {
  const auto root = std::make_shared<Scope>(), top = inner(root);
  for (int symbol = 0; symbol < tree_.symbols.count(); ++symbol) {
    const std::string& name = tree_.symbols.name(symbol);
    if (name == "caller") caller_ = symbol;
    if (name == "loop") loop_ = symbol;
    if (name == "kwargs") kwargs_ = symbol;
    if (name == "varargs") varargs_ = symbol;
    if (variables.contains(name)) root->values.emplace_back(symbol, from_json(variables[name]));
  }
  return text_of(tree_.body, top);
} catch (const Stuck& fault) {
  throw TemplateError(place_, fault.what());
}

ScopePtr Evaluator::inner(const ScopePtr& scope) const {
  auto made = std::make_shared<Scope>();
  made->parent = scope;
  return made;
}

void Evaluator::put(const std::string& text) {
  meter_.charge_bytes(text.size());
  *out_ += text;
}

std::string Evaluator::text_of(const Nodes& body, const ScopePtr& scope) {
  Taken taken(*this);
  run(body, scope);
  return std::move(taken.text);
}

Evaluator::Flow Evaluator::run(const Nodes& body, const ScopePtr& scope) {
  const Level level(*this);
  for (const NodePtr& node : body)
    if (const Flow flow = run(*node, scope); flow != Flow::on) return flow;
  return Flow::on;
}

Evaluator::Flow Evaluator::run(const Node& node, const ScopePtr& scope) {
  place_ = node.place;
  switch (node.op) {
    case NodeOp::data: put(node.text); break;
    case NodeOp::print:
      for (const NodePtr& each : node.parts) put(to_str(evaluate(*each, scope), meter_));
      break;
    case NodeOp::branch: return run_branch(node, scope);
    case NodeOp::loop: {
      const PyValue over = evaluate(*node.parts[0], scope);
      return run_loop(node, over, scope, 0);
    }
    case NodeOp::set: assign(*node.target, evaluate(*node.parts[0], scope), scope); break;
    case NodeOp::set_block: {
      PyValue text = text_of(node.body, inner(scope));
      if (!node.parts.empty()) text = filter_of(*node.parts[0], &text, scope);
      assign(*node.target, text, scope);
      break;
    }
    case NodeOp::macro: run_macro(node, scope); break;
    case NodeOp::call_block: run_call_block(node, scope); break;
    case NodeOp::filter_block: {
      const PyValue text = text_of(node.body, inner(scope));
      put(to_str(filter_of(*node.parts[0], &text, scope), meter_));
      break;
    }
    case NodeOp::with: return run_with(node, scope);
    case NodeOp::generation: put(text_of(node.body, inner(scope))); break;
    case NodeOp::leave: return Flow::leave;
    case NodeOp::next: return Flow::next;
    default: break;
  }
  return Flow::on;
}

Evaluator::Flow Evaluator::run_branch(const Node& node, const ScopePtr& scope) {
  if (!node.parts.empty()) return run(truth(evaluate(*node.parts[0], scope)) ? node.body : node.other, scope);
  // An if with elifs: each is a branch of its own, and the last has the else.
  for (const NodePtr& each : node.body) {
    place_ = each->place;
    if (truth(evaluate(*each->parts[0], scope))) return run(each->body, scope);
  }
  return run(node.body.back()->other, scope);
}

std::string Evaluator::loop_text(const Node& loop, const PyValue& over, const ScopePtr& scope, int depth) {
  Taken taken(*this);
  run_loop(loop, over, scope, depth);
  return std::move(taken.text);
}

Evaluator::Flow Evaluator::run_loop(const Node& node, const PyValue& over, const ScopePtr& scope, int depth) {
  const Level level(*this);
  const auto loop = std::make_shared<Loop>();
  loop->node = &node;
  if (node.recursive) {
    loop->scope = scope;
    kept_scopes_.push_back(scope);
  }
  loop->level = depth;
  const bool lazy = over.is(Kind::generator);
  const Values items = lazy ? Values() : iterate(over, meter_);
  std::size_t at = 0;
  const Node* const condition = node.parts[1].get();
  loop->pull = [&]() -> std::optional<PyValue> {
    for (;;) {
      if (lazy ? over.generator().at == over.generator().items.size() : at == items.size()) return {};
      const PyValue item = lazy ? over.generator().items[over.generator().at++] : items[at++];
      if (!condition) return item;
      const ScopePtr seen = inner(scope);
      assign(*node.target, item, seen);
      if (truth(evaluate(*condition, seen))) return item;
    }
  };
  // `loop` may outlive this call, in a namespace.
  struct End {
    Loop& loop;
    ~End() { loop.end(); }
  } const end{*loop};
  bool ran_through = false;  // whether a turn did: as in jinja2, break and continue do not prevent the else
  for (Flow flow = Flow::on; flow != Flow::leave && loop->advance();) {
    const ScopePtr here = inner(scope);
    if (loop_ >= 0) here->set(loop_, std::shared_ptr<Callable>(loop));
    assign(*node.target, *loop->current, here);
    flow = run(node.body, here);
    ran_through = ran_through || flow == Flow::on;
  }
  return ran_through ? Flow::on : run(node.other, inner(scope));
}

void Evaluator::run_macro(const Node& node, const ScopePtr& scope) {
  meter_.charge(10);
  kept_scopes_.push_back(scope);
  scope->set(node.symbol, std::shared_ptr<Callable>(std::make_shared<Macro>(node, scope)));
}

void Evaluator::run_call_block(const Node& node, const ScopePtr& scope) {
  const Node& call_node = *node.target;
  const PyValue callee = evaluate(*call_node.parts[0], scope);
  CallArguments given = arguments(call_node.arguments, scope);
  given.named.emplace_back("caller", std::shared_ptr<Callable>(std::make_shared<Macro>(node, scope)));
  kept_scopes_.push_back(scope);
  place_ = call_node.place;
  put(to_str(call(callee, std::move(given)), meter_));
}

Evaluator::Flow Evaluator::run_with(const Node& node, const ScopePtr& scope) {
  const ScopePtr here = inner(scope);
  const std::size_t count = node.parts.size() / 2;
  Values values;
  for (std::size_t i = 0; i < count; ++i) values.push_back(evaluate(*node.parts[count + i], scope));
  for (std::size_t i = 0; i < count; ++i) assign(*node.parts[i], values[i], here);
  return run(node.body, here);
}

PyValue Evaluator::call_macro(const Node& macro, const ScopePtr& scope, CallArguments given) {
  const Level level(*this);
  const ScopePtr here = inner(scope);
  const std::size_t count = macro.parameters.size(), first_default = count - macro.parts.size();
  const auto take = [&given](const std::string& name) -> std::optional<PyValue> {
    for (auto each = given.named.begin(); each != given.named.end(); ++each) {
      if (each->first != name) continue;
      PyValue value = std::move(each->second);
      given.named.erase(each);
      return value;
    }
    return {};
  };
  for (std::size_t i = 0; i < count; ++i) {
    const int symbol = macro.parameters[i];
    const std::string& name = tree_.symbols.name(symbol);
    std::optional<PyValue> value;
    if (i < given.positional.size()) value = given.positional[i];
    else value = take(name);
    if (!value)
      value = i >= first_default ? evaluate(*macro.parts[i - first_default], here)
                                 : PyValue::undefined("parameter '" + name + "' was not provided");
    here->set(symbol, std::move(*value));
  }
  if (macro.takes_caller) here->set(caller_, take("caller").value_or(PyValue::undefined("no caller defined")));
  if (macro.takes_named) {
    std::vector<Item> items;
    for (auto& [name, value] : given.named) items.emplace_back(PyValue(name), value);
    here->set(kwargs_, make_dict(std::move(items), meter_));
  } else if (!given.named.empty()) {
    throw Stuck("macro '" + macro.text + "' takes no keyword argument '" + given.named.front().first + "'");
  }
  if (macro.takes_more) {
    Values more;
    for (std::size_t i = count; i < given.positional.size(); ++i) more.push_back(given.positional[i]);
    here->set(varargs_, make_list(std::move(more), Shape::tuple));
  } else if (given.positional.size() > count) {
    throw Stuck("macro '" + macro.text + "' takes not more than " + std::to_string(count) + " arguments");
  }
  return text_of(macro.body, here);
}

PyValue Evaluator::make_namespace(std::vector<std::pair<std::string, PyValue>> items) {
  if (kept_namespaces_.size() >= kMostNamespaces) throw Stuck("too many namespaces");
  kept_namespaces_.push_back(std::make_shared<Namespace>(Namespace{std::move(items)}));
  return kept_namespaces_.back();
}

void Evaluator::assign(const Node& target, const PyValue& value, const ScopePtr& scope) {
  switch (target.op) {
    case NodeOp::name: scope->set(target.symbol, value); return;
    case NodeOp::name_part: {
      const PyValue* names = scope->find(target.symbol);
      if (!names || !names->is(Kind::names)) throw Stuck("cannot assign attribute on non-namespace object");
      if (target.text.starts_with('_')) throw Stuck("a namespace takes no name that begins with an underscore");
      if (PyValue* old = names->names().find(target.text)) *old = value;
      else names->names().items.emplace_back(target.text, value);
      return;
    }
    default: break;
  }
  const Values items = iterate(value, meter_);
  if (items.size() != target.parts.size())
    throw Stuck((items.size() < target.parts.size() ? "not enough" : "too many") +
                std::string(" values to unpack, wanted ") + std::to_string(target.parts.size()) + ", found " +
                std::to_string(items.size()));
  for (std::size_t i = 0; i < items.size(); ++i) assign(*target.parts[i], items[i], scope);
}

}  // namespace weft::runtime::jinja
