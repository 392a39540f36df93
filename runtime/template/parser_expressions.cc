// runtime/template/parser_expressions.cc: expressions, from the loosest operator to the tightest.
#include <utility>

#include "runtime/template/parser.h"

namespace weft::runtime::jinja {

bool Parser::tuple_ends(std::string_view end) const {
  return now().token == Token::end || now().token == Token::block_end || now().token == Token::eof || is_sign(")") ||
         (!end.empty() && is_word(end));
}

/// An expression, or several with commas between them.
NodePtr Parser::tuple(Conditions conditions, std::string_view end, bool in_brackets) {
  NodePtr all = make(NodeOp::tuple);
  bool is_tuple = false;
  while (!tuple_ends(end)) {
    all->parts.push_back(expression(conditions));
    if (!skip_sign(",")) break;
    is_tuple = true;
  }
  if (is_tuple) return deepened(std::move(all));
  if (!all->parts.empty()) return std::move(all->parts.front());
  if (!in_brackets) fail_unexpected();
  return all;
}

NodePtr Parser::expression(Conditions conditions) { return conditions == Conditions::yes ? conditional() : logic_or(); }

NodePtr Parser::conditional() {
  const Level level(*this);
  NodePtr then = logic_or();
  while (skip_word("if")) {
    NodePtr node = make(NodeOp::condition);
    node->place = then->place;
    node->parts.push_back(logic_or());
    node->parts.push_back(std::move(then));
    node->parts.push_back(skip_word("else") ? conditional() : nullptr);
    then = deepened(std::move(node));
  }
  return then;
}

NodePtr Parser::logic_or() {
  NodePtr left = logic_and();
  while (is_word("or")) left = binary(std::move(left), &Parser::logic_and, NodeOp::logic_or);
  return left;
}

NodePtr Parser::logic_and() {
  NodePtr left = logic_not();
  while (is_word("and")) left = binary(std::move(left), &Parser::logic_not, NodeOp::logic_and);
  return left;
}

NodePtr Parser::logic_not() {
  if (!is_word("not")) return comparison();
  const Level level(*this);
  NodePtr node = make(NodeOp::logic_not);
  take();
  node->parts.push_back(logic_not());
  return deepened(std::move(node));
}

NodePtr Parser::comparison() {
  NodePtr first = sum();
  NodePtr node = make(NodeOp::compare);
  node->place = first->place;
  node->parts.push_back(std::move(first));
  for (;;) {
    std::string sign;
    if (now().token == Token::sign) sign = now().text;
    if (sign == "==" || sign == "!=" || sign == "<" || sign == "<=" || sign == ">" || sign == ">=") {
      take();
    } else if (skip_word("in")) {
      sign = "in";
    } else if (is_word("not") && ahead().token == Token::name && ahead().text == "in") {
      take();
      take();
      sign = "not in";
    } else {
      break;
    }
    node->signs.push_back(sign);
    node->parts.push_back(sum());
  }
  if (node->signs.empty()) return std::move(node->parts.front());
  return deepened(std::move(node));
}

/// Takes an operator and its right side.
NodePtr Parser::binary(NodePtr left, NodePtr (Parser::*operand)(), NodeOp op) {
  NodePtr node = make(op);
  node->text = take().text;
  node->parts.push_back(std::move(left));
  node->parts.push_back((this->*operand)());
  return deepened(std::move(node));
}

NodePtr Parser::sum() {
  NodePtr left = concatenation();
  while (is_sign("+") || is_sign("-")) left = binary(std::move(left), &Parser::concatenation);
  return left;
}

NodePtr Parser::concatenation() {
  NodePtr first = product();
  if (!is_sign("~")) return first;
  NodePtr node = make(NodeOp::concat);
  node->parts.push_back(std::move(first));
  while (skip_sign("~")) node->parts.push_back(product());
  return deepened(std::move(node));
}

NodePtr Parser::product() {
  NodePtr left = power();
  while (is_sign("*") || is_sign("/") || is_sign("//") || is_sign("%")) left = binary(std::move(left), &Parser::power);
  return left;
}

NodePtr Parser::power() {
  NodePtr left = unary();
  while (is_sign("**")) left = binary(std::move(left), &Parser::unary);
  return left;
}

NodePtr Parser::unary(bool with_filters) {
  const Level level(*this);
  NodePtr node;
  if (is_sign("-") || is_sign("+")) {
    node = make(is_sign("-") ? NodeOp::negative : NodeOp::positive);
    take();
    node->parts.push_back(unary(false));
    node = deepened(std::move(node));
  } else {
    node = primary();
  }
  node = postfix(std::move(node));
  return with_filters ? filters(std::move(node)) : std::move(node);
}

NodePtr Parser::primary() {
  NodePtr node = make(NodeOp::constant);
  switch (now().token) {
    case Token::name: {
      node->text = take().text;
      const std::string& word = node->text;
      if (word == "true" || word == "True") node->value = true;
      else if (word == "false" || word == "False") node->value = false;
      else if (word == "none" || word == "None") node->value = PyValue::none();
      else {
        node->op = NodeOp::name;
        node->symbol = tree_.symbols.of(word);
        tree_.words.insert(word);
        more_ |= word == "varargs";
        named_ |= word == "kwargs";
        caller_ |= word == "caller";
      }
      return node;
    }
    case Token::text: {
      std::string text;
      while (now().token == Token::text) text += take().text;
      tree_.words.insert(text);
      node->value = text;
      return node;
    }
    case Token::number: node->value = take().number; return node;
    default: break;
  }
  if (skip_sign("(")) {
    node = tuple(Conditions::yes, {}, true);
    want_sign(")");
    return node;
  }
  if (is_sign("[")) return list_of(NodeOp::list);
  if (is_sign("{")) return dict();
  fail_unexpected();
}

NodePtr Parser::list_of(NodeOp op) {
  NodePtr node = make(op);
  take();
  while (!is_sign("]")) {
    if (!node->parts.empty()) want_sign(",");
    if (is_sign("]")) break;
    node->parts.push_back(expression());
  }
  take();
  return deepened(std::move(node));
}

NodePtr Parser::dict() {
  NodePtr node = make(NodeOp::dict);
  take();
  while (!is_sign("}")) {
    if (!node->parts.empty()) want_sign(",");
    if (is_sign("}")) break;
    node->parts.push_back(expression());
    want_sign(":");
    node->parts.push_back(expression());
  }
  take();
  return deepened(std::move(node));
}

NodePtr Parser::postfix(NodePtr node) {
  for (;;) {
    if (is_sign(".") || is_sign("[")) node = subscript(std::move(node));
    else if (is_sign("(")) node = call(std::move(node));
    else return node;
  }
}

NodePtr Parser::filters(NodePtr node) {
  for (;;) {
    if (skip_sign("|")) node = filter(std::move(node));
    else if (is_word("is")) node = test(std::move(node));
    else if (is_sign("(")) node = call(std::move(node));
    else return node;
  }
}

std::string Parser::dotted_name() {
  std::string name = want_name();
  while (skip_sign(".")) name += "." + want_name();
  return name;
}

/// Reads a filter after its bar, and further ones if nothing is given to the first: those of a block.
NodePtr Parser::filter(NodePtr node) {
  const bool of_block = !node;
  if (of_block) skip_sign("|");
  do {
    NodePtr made = make(NodeOp::filter);
    made->text = dotted_name();
    if (is_sign("(")) arguments(made->arguments);
    made->parts.push_back(std::move(node));
    node = deepened(std::move(made));
  } while (of_block && skip_sign("|"));
  return node;
}

NodePtr Parser::test(NodePtr node) {
  NodePtr made = make(NodeOp::test);
  take();
  const bool negated = skip_word("not");
  made->text = dotted_name();
  made->parts.push_back(std::move(node));
  const bool more = now().token == Token::name || now().token == Token::text || now().token == Token::number ||
                    is_sign("[") || is_sign("{");
  if (is_sign("(")) {
    arguments(made->arguments);
  } else if (more && !is_word("else") && !is_word("or") && !is_word("and")) {
    if (is_word("is")) fail("tests with 'is' cannot follow each other");
    made->arguments.positional.push_back(postfix(primary()));
  }
  made = deepened(std::move(made));
  if (!negated) return made;
  NodePtr negation = make(NodeOp::logic_not);
  negation->parts.push_back(std::move(made));
  return deepened(std::move(negation));
}

NodePtr Parser::subscript(NodePtr node) {
  NodePtr made = make(NodeOp::item);
  made->parts.push_back(std::move(node));
  if (skip_sign(".")) {
    if (now().token == Token::name) {
      made->op = NodeOp::attribute;
      made->text = take().text;
      tree_.words.insert(made->text);
    } else {
      if (now().token != Token::number || !now().number.is(Kind::integer)) fail("wanted a name or a number after '.'");
      NodePtr index = make(NodeOp::constant);
      index->value = take().number;
      made->parts.push_back(std::move(index));
    }
    return deepened(std::move(made));
  }
  take();
  NodePtr all = make(NodeOp::tuple);
  while (!is_sign("]")) {
    if (!all->parts.empty()) want_sign(",");
    all->parts.push_back(subscribed());
  }
  take();
  if (all->parts.size() == 1) made->parts.push_back(std::move(all->parts.front()));
  else made->parts.push_back(deepened(std::move(all)));
  return deepened(std::move(made));
}

/// What stands in brackets: an expression or a slice.
NodePtr Parser::subscribed() {
  NodePtr slice = make(NodeOp::slice);
  NodePtr first = is_sign(":") ? nullptr : expression();
  if (!skip_sign(":")) return first;
  const auto part = [&]() -> NodePtr { return is_sign(":") || is_sign("]") || is_sign(",") ? nullptr : expression(); };
  slice->parts.push_back(std::move(first));
  slice->parts.push_back(part());
  slice->parts.push_back(skip_sign(":") ? part() : nullptr);
  return deepened(std::move(slice));
}

NodePtr Parser::call(NodePtr node) {
  NodePtr made = make(NodeOp::call);
  made->parts.push_back(std::move(node));
  arguments(made->arguments);
  return deepened(std::move(made));
}

void Parser::arguments(Arguments& into) {
  want_sign("(");
  const auto refuse_if = [&](bool wrong) {
    if (wrong) fail("these arguments cannot follow those before them");
  };
  for (bool first = true; !is_sign(")"); first = false) {
    if (!first) {
      want_sign(",");
      if (is_sign(")")) break;
    }
    if (is_sign("*")) {
      refuse_if(into.list || into.dict);
      take();
      into.list = expression();
    } else if (is_sign("**")) {
      refuse_if(into.dict != nullptr);
      take();
      into.dict = expression();
    } else if (now().token == Token::name && ahead().token == Token::sign && ahead().text == "=") {
      refuse_if(into.dict != nullptr);
      std::string name = take().text;
      take();
      tree_.words.insert(name);
      into.named.emplace_back(std::move(name), expression());
    } else {
      refuse_if(into.list || into.dict || !into.named.empty());
      into.positional.push_back(expression());
    }
  }
  take();
}

}  // namespace weft::runtime::jinja
