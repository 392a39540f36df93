// runtime/template/evaluator_expressions.cc: expressions.
#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

PyValue Evaluator::evaluate(const Node& node, const ScopePtr& scope) {
  const Level level(*this);
  const auto part = [&](std::size_t index) { return evaluate(*node.parts[index], scope); };
  switch (node.op) {
    case NodeOp::constant: return node.value;
    case NodeOp::name: return name(node, scope);
    case NodeOp::list:
    case NodeOp::tuple: {
      Values items;
      for (const NodePtr& each : node.parts) items.push_back(evaluate(*each, scope));
      return make_list(std::move(items), node.op == NodeOp::list ? Shape::list : Shape::tuple);
    }
    case NodeOp::dict: return dict(node, scope);
    case NodeOp::attribute: {
      const PyValue of = part(0);
      place_ = node.place;
      return attribute(of, node.text);
    }
    case NodeOp::item: {
      const PyValue of = part(0);
      if (node.parts[1]->op == NodeOp::slice) return slice(of, *node.parts[1], scope);
      const PyValue key = part(1);
      place_ = node.place;
      return item(of, key);
    }
    case NodeOp::call: {
      const PyValue callee = part(0);
      CallArguments given = arguments(node.arguments, scope);
      place_ = node.place;
      return call(callee, std::move(given));
    }
    case NodeOp::filter: return filter_of(node, nullptr, scope);
    case NodeOp::test: {
      const PyValue value = part(0);
      CallArguments given = arguments(node.arguments, scope);
      place_ = node.place;
      return test(node.text, value, std::move(given));
    }
    case NodeOp::negative:
    case NodeOp::positive: return negative(part(0), node.op == NodeOp::negative);
    case NodeOp::logic_not: return !truth(part(0));
    case NodeOp::logic_and: {
      PyValue left = part(0);
      return truth(left) ? part(1) : left;
    }
    case NodeOp::logic_or: {
      PyValue left = part(0);
      return truth(left) ? left : part(1);
    }
    case NodeOp::compare: return compare(node, scope);
    case NodeOp::binary: {
      const PyValue left = part(0), right = part(1);
      place_ = node.place;
      return binary(node.text, left, right, meter_);
    }
    case NodeOp::concat: return concat(node, scope);
    case NodeOp::condition:
      if (truth(part(0))) return part(1);
      return node.parts[2]
                 ? part(2)
                 : PyValue::undefined("the inline if-expression evaluated to false and no else section was defined");
    default: break;
  }
  throw Stuck("a slice stands outside of brackets");
}

PyValue Evaluator::name(const Node& node, const ScopePtr& scope) {
  if (const PyValue* found = scope->find(node.symbol)) return *found;
  if (const auto known = function(node.text)) return *known;
  place_ = node.place;
  return PyValue::undefined("'" + node.text + "' is undefined");
}

PyValue Evaluator::dict(const Node& node, const ScopePtr& scope) {
  std::vector<Item> items;
  for (std::size_t i = 0; i + 1 < node.parts.size(); i += 2) {
    PyValue key = evaluate(*node.parts[i], scope);
    items.emplace_back(std::move(key), evaluate(*node.parts[i + 1], scope));
  }
  return make_dict(std::move(items), meter_);
}

PyValue Evaluator::slice(const PyValue& of, const Node& node, const ScopePtr& scope) {
  const auto bound = [&](std::size_t index) {
    return node.parts[index] ? evaluate(*node.parts[index], scope) : PyValue::none();
  };
  const PyValue start = bound(0), stop = bound(1), step = bound(2);
  place_ = node.place;
  return sliced(of, start, stop, step, meter_);
}

PyValue Evaluator::compare(const Node& node, const ScopePtr& scope) {
  PyValue left = evaluate(*node.parts[0], scope);
  for (std::size_t i = 0; i < node.signs.size(); ++i) {
    PyValue right = evaluate(*node.parts[i + 1], scope);
    place_ = node.place;
    if (!compared(node.signs[i], left, right, meter_)) return false;
    left = std::move(right);
  }
  return true;
}

PyValue Evaluator::concat(const Node& node, const ScopePtr& scope) {
  std::string text;
  for (const NodePtr& each : node.parts) {
    text += to_str(evaluate(*each, scope), meter_);
    meter_.charge_bytes(text.size() / node.parts.size());
  }
  return text;
}

/// `over` stands for what the filter is applied to, if the tree has nothing there.
PyValue Evaluator::filter_of(const Node& node, const PyValue* over, const ScopePtr& scope) {
  const NodePtr& first = node.parts[0];
  const PyValue value = !first ? *over : over ? filter_of(*first, over, scope) : evaluate(*first, scope);
  CallArguments given = arguments(node.arguments, scope);
  place_ = node.place;
  return filter(node.text, value, std::move(given));
}

CallArguments Evaluator::arguments(const Arguments& given, const ScopePtr& scope) {
  CallArguments made;
  for (const NodePtr& each : given.positional) made.positional.push_back(evaluate(*each, scope));
  for (const auto& [name, node] : given.named) {
    if (made.find(name)) throw Stuck("keyword argument repeated: " + name);
    made.named.emplace_back(name, evaluate(*node, scope));
  }
  if (given.list)
    for (PyValue& value : iterate(evaluate(*given.list, scope), meter_)) made.positional.push_back(std::move(value));
  if (given.dict) {
    const PyValue more = evaluate(*given.dict, scope);
    if (!more.is(Kind::dict)) throw Stuck("after ** a call needs a dict, not '" + type_name(more) + "'");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is(Kind::text)) throw Stuck("keywords must be strings");
      if (made.find(key.str())) throw Stuck("a call has two values for '" + key.str() + "'");
      made.named.emplace_back(key.str(), value);
      meter_.charge(made.named.size());
    }
  }
  return made;
}

PyValue Evaluator::attribute(const PyValue& of, const std::string& name) {
  if (!of.is_defined()) refuse_undefined(of, "an undefined value has no attribute '" + name + "'");
  if (of.is(Kind::callable)) {
    if (auto found = of.callable().part(*this, name)) return *found;
  } else if (of.is(Kind::names)) {
    if (const PyValue* found = of.names().find(name)) return *found;
  } else if (auto found = method(of, name)) {
    return *found;
  }
  if (of.is(Kind::dict))
    if (const PyValue* found = of.dict().find(name)) return *found;
  return PyValue::undefined("'" + type_name(of) + " object' has no attribute '" + name.substr(0, 100) + "'");
}

PyValue Evaluator::item(const PyValue& of, const PyValue& key) {
  if (!of.is_defined()) refuse_undefined(of, "an undefined value has no items");
  if (of.is(Kind::dict)) {
    const bool hashable = !key.is(Kind::dict) && !(key.is(Kind::sequence) && key.sequence().shape != Shape::tuple);
    if (hashable)
      if (const PyValue* found = of.dict().find(key, meter_)) return *found;
  } else if (key.is_whole() && (of.is(Kind::sequence) || of.is(Kind::text))) {
    const bool rows = of.is(Kind::text) || of.sequence().shape <= Shape::range;
    std::int64_t index = key.integer();
    const std::int64_t count = length(of);
    if (of.is(Kind::text)) meter_.charge_bytes(of.str().size());
    if (index < 0) index += count;
    if (rows && index >= 0 && index < count) {
      const auto at = static_cast<std::size_t>(index);
      if (of.is(Kind::sequence)) return of.sequence().items[at];
      const Text& text = of.text();
      const std::size_t begin = byte_of(text, at);
      const Text rest{text.bytes.substr(begin, 4), false, text.ascii};
      return PyValue(rest.bytes.substr(0, byte_of(rest, 1)), text.markup);
    }
  }
  if (key.is(Kind::text)) {
    if (of.is(Kind::names) || of.is(Kind::callable)) return attribute(of, key.str());
    if (auto found = method(of, key.str())) return *found;
  }
  return PyValue::undefined("'" + type_name(of) + " object' has no element " +
                            (key.is(Kind::text) ? "'" + key.str().substr(0, 100) + "'"
                             : key.is_whole()   ? std::to_string(key.integer())
                                                : "of this kind"));
}

PyValue Evaluator::call(const PyValue& callee, CallArguments given) {
  if (!callee.is_defined()) refuse_undefined(callee, "an undefined value cannot be called");
  if (!callee.is(Kind::callable)) throw Stuck("'" + type_name(callee) + "' object is not callable");
  return callee.callable().call(*this, std::move(given));
}

}  // namespace weft::runtime::jinja
