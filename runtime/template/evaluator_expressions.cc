// runtime/template/evaluator_expressions.cc: expressions.
#include <algorithm>

#include "runtime/template/evaluator.h"
#include "runtime/template/text.h"

namespace weft::runtime::jinja {

Value Evaluator::evaluate(const Node& node, const ScopePtr& scope) {
  const Level level(*this);
  const auto part = [&](std::size_t index) { return evaluate(*node.parts[index], scope); };
  switch (node.op) {
    case Op::constant: return node.value;
    case Op::name: return name(node, scope);
    case Op::list:
    case Op::tuple: {
      Values items;
      for (const NodePtr& each : node.parts) items.push_back(evaluate(*each, scope));
      return make_list(std::move(items), node.op == Op::list ? Shape::list : Shape::tuple);
    }
    case Op::dict: return dict(node, scope);
    case Op::attribute: {
      const Value of = part(0);
      place_ = node.place;
      return attribute(of, node.text);
    }
    case Op::item: {
      const Value of = part(0);
      if (node.parts[1]->op == Op::slice) return slice(of, *node.parts[1], scope);
      const Value key = part(1);
      place_ = node.place;
      return item(of, key);
    }
    case Op::call: {
      const Value callee = part(0);
      CallArguments given = arguments(node.arguments, scope);
      place_ = node.place;
      return call(callee, std::move(given));
    }
    case Op::filter: return filter_of(node, nullptr, scope);
    case Op::test: {
      const Value value = part(0);
      CallArguments given = arguments(node.arguments, scope);
      place_ = node.place;
      return test(node.text, value, std::move(given));
    }
    case Op::negative:
    case Op::positive: return negative(part(0), node.op == Op::negative);
    case Op::logic_not: return !truth(part(0));
    case Op::logic_and: {
      Value left = part(0);
      return truth(left) ? part(1) : left;
    }
    case Op::logic_or: {
      Value left = part(0);
      return truth(left) ? left : part(1);
    }
    case Op::compare: return compare(node, scope);
    case Op::binary: {
      const Value left = part(0), right = part(1);
      place_ = node.place;
      return binary(node.text, left, right, meter_);
    }
    case Op::concat: return concat(node, scope);
    case Op::condition:
      if (truth(part(0))) return part(1);
      return node.parts[2] ? part(2) : Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    default: break;
  }
  throw Fault("a slice stands outside of brackets");
}

Value Evaluator::name(const Node& node, const ScopePtr& scope) {
  if (const Value* found = scope->find(node.symbol)) return *found;
  if (const auto known = function(node.text)) return *known;
  place_ = node.place;
  return Value::undefined("'" + node.text + "' is undefined");
}

Value Evaluator::dict(const Node& node, const ScopePtr& scope) {
  std::vector<Item> items;
  for (std::size_t i = 0; i + 1 < node.parts.size(); i += 2) {
    Value key = evaluate(*node.parts[i], scope);
    items.emplace_back(std::move(key), evaluate(*node.parts[i + 1], scope));
  }
  return make_dict(std::move(items), meter_);
}

Value Evaluator::slice(const Value& of, const Node& node, const ScopePtr& scope) {
  const auto bound = [&](std::size_t index) {
    return node.parts[index] ? evaluate(*node.parts[index], scope) : Value::none();
  };
  const Value start = bound(0), stop = bound(1), step = bound(2);
  place_ = node.place;
  return sliced(of, start, stop, step, meter_);
}

Value Evaluator::compare(const Node& node, const ScopePtr& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (std::size_t i = 0; i < node.signs.size(); ++i) {
    Value right = evaluate(*node.parts[i + 1], scope);
    place_ = node.place;
    const std::string& sign = node.signs[i];
    bool holds = false;
    if (sign == "==") holds = equal(left, right, meter_);
    else if (sign == "!=") holds = !equal(left, right, meter_);
    else if (sign == "in") holds = contains(right, left, meter_);
    else if (sign == "not in") holds = !contains(right, left, meter_);
    else if (sign == "<") holds = less(left, right, meter_);
    else if (sign == ">") holds = less(right, left, meter_);
    else if (sign == "<=") holds = less(left, right, meter_) || equal(left, right, meter_);
    else holds = less(right, left, meter_) || equal(left, right, meter_);
    if (!holds) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::concat(const Node& node, const ScopePtr& scope) {
  std::string text;
  for (const NodePtr& each : node.parts) {
    text += to_str(evaluate(*each, scope), meter_);
    meter_.charge_bytes(text.size() / node.parts.size());
  }
  return text;
}

/// `over` stands for what the filter is applied to, if the tree has nothing there.
Value Evaluator::filter_of(const Node& node, const Value* over, const ScopePtr& scope) {
  const NodePtr& first = node.parts[0];
  const Value value = !first ? *over : over ? filter_of(*first, over, scope) : evaluate(*first, scope);
  CallArguments given = arguments(node.arguments, scope);
  place_ = node.place;
  return filter(node.text, value, std::move(given));
}

CallArguments Evaluator::arguments(const Arguments& given, const ScopePtr& scope) {
  CallArguments made;
  for (const NodePtr& each : given.positional) made.positional.push_back(evaluate(*each, scope));
  for (const auto& [name, node] : given.named) {
    if (made.find(name)) throw Fault("keyword argument repeated: " + name);
    made.named.emplace_back(name, evaluate(*node, scope));
  }
  if (given.list)
    for (Value& value : iterate(evaluate(*given.list, scope), meter_)) made.positional.push_back(std::move(value));
  if (given.dict) {
    const Value more = evaluate(*given.dict, scope);
    if (!more.is(Kind::dict)) throw Fault("after ** a call needs a dict, not '" + type_name(more) + "'");
    for (const auto& [key, value] : more.dict().items) {
      if (!key.is(Kind::text)) throw Fault("keywords must be strings");
      if (made.find(key.str())) throw Fault("a call has two values for '" + key.str() + "'");
      made.named.emplace_back(key.str(), value);
      meter_.charge(made.named.size());
    }
  }
  return made;
}

Value Evaluator::attribute(const Value& of, const std::string& name) {
  if (!of.is_defined()) throw Fault(of.str().empty() ? "an undefined value has no attribute '" + name + "'" : of.str());
  if (of.is(Kind::callable)) {
    if (auto found = of.callable().part(*this, name)) return *found;
  } else if (of.is(Kind::names)) {
    if (const Value* found = of.names().find(name)) return *found;
  } else if (auto found = method(of, name)) {
    return *found;
  }
  if (of.is(Kind::dict))
    if (const Value* found = of.dict().find(name)) return *found;
  return Value::undefined("'" + type_name(of) + " object' has no attribute '" + name.substr(0, 100) + "'");
}

Value Evaluator::item(const Value& of, const Value& key) {
  if (!of.is_defined()) throw Fault(of.str().empty() ? "an undefined value has no items" : of.str());
  if (of.is(Kind::dict)) {
    const bool hashable = !key.is(Kind::dict) && !(key.is(Kind::sequence) && key.sequence().shape != Shape::tuple);
    if (hashable)
      if (const Value* found = of.dict().find(key, meter_)) return *found;
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
      return Value(rest.bytes.substr(0, byte_of(rest, 1)), text.markup);
    }
  }
  if (key.is(Kind::text)) {
    if (of.is(Kind::names) || of.is(Kind::callable)) return attribute(of, key.str());
    if (auto found = method(of, key.str())) return *found;
  }
  return Value::undefined("'" + type_name(of) + " object' has no element " + (key.is(Kind::text) ? "'" + key.str().substr(0, 100) + "'" : key.is_whole() ? std::to_string(key.integer()) : "of this kind"));
}

Value Evaluator::call(const Value& callee, CallArguments given) {
  if (!callee.is_defined())
    throw Fault(callee.str().empty() ? "an undefined value cannot be called" : callee.str());
  if (!callee.is(Kind::callable)) throw Fault("'" + type_name(callee) + "' object is not callable");
  return callee.callable().call(*this, std::move(given));
}

}  // namespace weft::runtime::jinja
