// runtime/template/parser.cc: statements.
#include "runtime/template/parser.h"

#include <algorithm>
#include <utility>

namespace weft::runtime::jinja {

namespace {

constexpr int kDeepestTree = 200;  // of the tree, and of the recursion that makes it

}  // namespace

int Symbols::of(const std::string& name) {
  const auto [place, is_new] = numbers_.emplace(name, static_cast<int>(names_.size()));
  if (is_new) names_.push_back(name);
  return place->second;
}

Tree parse(std::string_view source) { return Parser(source).parse(); }

Parser::Parser(std::string_view source) : lexemes_(tokens_of(source)) {}

Parser::Level::Level(Parser& of) : parser(of) {
  if (++parser.level_ > 2 * kDeepestTree) parser.fail("the template is nested too deeply");
}

Tree Parser::parse() {
  tree_.body = statements({});
  return std::move(tree_);
}

void Parser::fail(const std::string& what) const { throw TemplateError(now().place, what); }

void Parser::fail_unexpected() const {
  switch (now().token) {
    case Token::eof: fail("the template ends too early");
    case Token::block_end:
    case Token::end: fail("the tag ends too early");
    case Token::text: fail("unexpected text");
    case Token::number: fail("unexpected number");
    default: fail("unexpected '" + now().text.substr(0, 40) + "'");
  }
}

bool Parser::skip_sign(std::string_view sign) {
  if (!is_sign(sign)) return false;
  take();
  return true;
}

bool Parser::skip_word(std::string_view word) {
  if (!is_word(word)) return false;
  take();
  return true;
}

void Parser::want_sign(std::string_view sign) {
  if (!is_sign(sign)) fail("wanted '" + std::string(sign) + "'");
  take();
}

void Parser::want(Token token, const char* what) {
  if (now().token != token) fail(std::string("wanted ") + what);
  take();
}

std::string Parser::want_name() {
  if (now().token != Token::name) fail("wanted a name");
  return take().text;
}

NodePtr Parser::make(NodeOp op) const {
  auto node = std::make_unique<Node>();
  node->op = op;
  node->place = now().place;
  return node;
}

NodePtr Parser::deepened(NodePtr node) const {
  int depth = 0;
  const auto look = [&](const NodePtr& child) {
    if (child) depth = std::max(depth, child->depth);
  };
  for (const Nodes* nodes : {&node->parts, &node->arguments.positional, &node->body, &node->other})
    std::for_each(nodes->begin(), nodes->end(), look);
  for (const auto& [name, value] : node->arguments.named) look(value);
  for (const NodePtr* one : {&node->arguments.list, &node->arguments.dict, &node->target}) look(*one);
  node->depth = depth + 1;
  if (node->depth > kDeepestTree)
    throw TemplateError(node->place, "more than " + std::to_string(kDeepestTree) + " parts within each other");
  return node;
}

Nodes Parser::statements(std::initializer_list<std::string_view> ends) {
  const Level level(*this);
  Nodes body;
  for (;;) {
    if (now().token == Token::eof) {
      if (ends.size() > 0) fail("the template ends before '" + std::string(*ends.begin()) + "'");
      return body;
    }
    if (now().token == Token::data) {
      NodePtr node = make(NodeOp::data);
      node->text = take().text;
      body.push_back(std::move(node));
    } else if (now().token == Token::begin) {
      NodePtr node = make(NodeOp::print);
      take();
      node->parts.push_back(tuple(Conditions::yes));
      want(Token::end, "'}}'");
      body.push_back(deepened(std::move(node)));
    } else {
      want(Token::block_begin, "a tag");
      for (const std::string_view end : ends)
        if (is_word(end)) return body;
      body.push_back(deepened(statement()));
      want(Token::block_end, "'%}'");
    }
  }
}

/// The statements after the tag that begins them, up to a word of `ends`.
Nodes Parser::block_body(std::initializer_list<std::string_view> ends) {
  skip_sign(":");
  want(Token::block_end, "'%}'");
  return statements(ends);
}

NodePtr Parser::statement() {
  const Level level(*this);
  if (now().token != Token::name) fail("a tag begins with a word");
  const std::string word = now().text;
  using Reader = NodePtr (Parser::*)();
  constexpr std::pair<std::string_view, Reader> readers[]{
      {"set", &Parser::set},
      {"for", &Parser::loop},
      {"if", &Parser::branch},
      {"with", &Parser::with},
      {"macro", &Parser::macro},
      {"call", &Parser::call_block},
      {"filter", &Parser::filter_block},
      {"generation", &Parser::generation},
  };
  for (const auto& [name, reader] : readers)
    if (word == name) return (this->*reader)();
  if (word == "break" || word == "continue") {
    if (loops_ == 0) fail("'" + word + "' is outside a loop");
    NodePtr node = make(word == "break" ? NodeOp::leave : NodeOp::next);
    take();
    return node;
  }
  if (word == "print") {
    NodePtr node = make(NodeOp::print);
    take();
    while (now().token != Token::block_end) {
      if (!node->parts.empty()) want_sign(",");
      node->parts.push_back(expression());
    }
    return node;
  }
  for (const char* other : {"include", "import", "from", "extends", "block"})
    if (word == other) fail("'" + word + "' is not supported: a chat template is one file");
  fail("unknown tag '" + word.substr(0, 40) + "'");
}

NodePtr Parser::set() {
  NodePtr node = make(NodeOp::set);
  take();
  node->target = target(true);
  if (skip_sign("=")) {
    node->parts.push_back(tuple(Conditions::yes));
    return node;
  }
  node->op = NodeOp::set_block;
  if (is_sign("|")) node->parts.push_back(filter(nullptr));
  node->body = block_body({"endset"});
  take();
  return node;
}

NodePtr Parser::loop() {
  NodePtr node = make(NodeOp::loop);
  take();
  node->target = target(false, "in");
  if (!skip_word("in")) fail("wanted 'in'");
  node->parts.push_back(tuple(Conditions::no, "recursive"));
  const Node& over = *node->parts.front();
  if (over.op == NodeOp::name || over.op == NodeOp::attribute) tree_.looped.insert(over.text);
  if (over.op == NodeOp::item && over.parts[1]->value.is(Kind::text)) tree_.looped.insert(over.parts[1]->value.str());
  node->parts.push_back(skip_word("if") ? expression() : nullptr);
  node->recursive = skip_word("recursive");
  ++loops_;
  node->body = block_body({"endfor", "else"});
  --loops_;
  if (take().text == "else") {
    node->other = block_body({"endfor"});
    take();
  }
  return node;
}

NodePtr Parser::branch() {
  NodePtr first = make(NodeOp::branch);
  Nodes ifs;
  for (NodePtr node = std::move(first);; node = make(NodeOp::branch)) {
    take();
    node->parts.push_back(tuple(Conditions::no));
    node->body = block_body({"elif", "else", "endif"});
    ifs.push_back(std::move(node));
    if (!is_word("elif")) break;
  }
  if (take().text == "else") {
    ifs.back()->other = block_body({"endif"});
    take();
  }
  // The first holds the others, side by side, so that many of them are not deep.
  first = std::move(ifs.front());
  if (ifs.size() == 1) return first;
  NodePtr all = make(NodeOp::branch);
  all->place = first->place;
  all->body.push_back(deepened(std::move(first)));
  for (std::size_t i = 1; i < ifs.size(); ++i) all->body.push_back(deepened(std::move(ifs[i])));
  return all;
}

NodePtr Parser::with() {
  NodePtr node = make(NodeOp::with);
  take();
  Nodes values;
  while (now().token != Token::block_end) {
    if (!values.empty()) want_sign(",");
    node->parts.push_back(target(false));
    want_sign("=");
    values.push_back(expression());
  }
  std::move(values.begin(), values.end(), std::back_inserter(node->parts));
  node->body = block_body({"endwith"});
  take();
  return node;
}

void Parser::signature(Node& node) {
  want_sign("(");
  while (!is_sign(")")) {
    if (!node.parameters.empty()) want_sign(",");
    node.parameters.push_back(tree_.symbols.of(want_name()));
    if (skip_sign("=")) node.parts.push_back(expression());
    else if (!node.parts.empty()) fail("a parameter without a default follows one with a default");
  }
  take();
}

NodePtr Parser::macro() {
  NodePtr node = make(NodeOp::macro);
  take();
  node->text = want_name();
  node->symbol = tree_.symbols.of(node->text);
  const bool more = std::exchange(more_, false), named = std::exchange(named_, false),
             caller = std::exchange(caller_, false);
  signature(*node);
  const int loops = std::exchange(loops_, 0);
  node->body = block_body({"endmacro"});
  loops_ = loops;
  take();
  node->takes_more = std::exchange(more_, more);
  node->takes_named = std::exchange(named_, named);
  node->takes_caller = std::exchange(caller_, caller);
  return node;
}

NodePtr Parser::call_block() {
  NodePtr node = make(NodeOp::call_block);
  take();
  if (is_sign("(")) signature(*node);
  node->target = expression();
  if (node->target->op != NodeOp::call) throw TemplateError(node->place, "wanted a call");
  const int loops = std::exchange(loops_, 0);
  node->body = block_body({"endcall"});
  loops_ = loops;
  take();
  return node;
}

NodePtr Parser::filter_block() {
  NodePtr node = make(NodeOp::filter_block);
  take();
  node->parts.push_back(filter(nullptr));
  node->body = block_body({"endfilter"});
  take();
  return node;
}

NodePtr Parser::generation() {
  NodePtr node = make(NodeOp::generation);
  take();
  const int loops = std::exchange(loops_, 0);
  node->body = block_body({"endgeneration"});
  loops_ = loops;
  take();
  return node;
}

/// What is assigned to: a name, names with commas between them and, `with_parts`, parts of namespaces.
NodePtr Parser::target(bool with_parts, std::string_view end) {
  NodePtr all = make(NodeOp::tuple);
  bool is_tuple = false;
  for (;;) {
    if (!all->parts.empty() && (tuple_ends(end) || is_sign("="))) break;
    NodePtr one;
    if (is_sign("(") || is_sign("[")) {
      const Level level(*this);
      const bool round = take().text == "(";
      one = target(with_parts);
      want_sign(round ? ")" : "]");
    } else {
      one = make(NodeOp::name);
      one->text = want_name();
      if (one->text == "true" || one->text == "false" || one->text == "none" || one->text == "True" ||
          one->text == "False" || one->text == "None")
        throw TemplateError(one->place, "cannot assign to '" + one->text + "'");
      one->symbol = tree_.symbols.of(one->text);
      if (with_parts && skip_sign(".")) {
        one->op = NodeOp::name_part;
        one->text = want_name();
        tree_.words.insert(one->text);
      }
    }
    all->parts.push_back(deepened(std::move(one)));
    if (!skip_sign(",")) break;
    is_tuple = true;
  }
  if (!is_tuple) return std::move(all->parts.front());
  return deepened(std::move(all));
}

}  // namespace weft::runtime::jinja
