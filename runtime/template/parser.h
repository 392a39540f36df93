// runtime/template/parser.h: the parser's own parts, which its two sources share.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/template/ast.h"

namespace weft::runtime::jinja {

/// Reads tokens by recursive descent, by the grammar of Jinja 3.1. A tree has a bounded depth.
class Parser {
 public:
  explicit Parser(std::string_view source);
  Tree parse();

 private:
  /// Bounds the recursion while it lives.
  struct Level {
    explicit Level(Parser& of);
    ~Level() { --parser.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;
    Parser& parser;
  };
  enum class Conditions : bool { no, yes };

  const Lexeme& now() const { return lexemes_[at_]; }
  const Lexeme& ahead() const { return lexemes_[std::min(at_ + 1, lexemes_.size() - 1)]; }
  Lexeme take() { return lexemes_[at_ + 1 < lexemes_.size() ? at_++ : at_]; }
  bool is_sign(std::string_view sign) const { return now().token == Token::sign && now().text == sign; }
  bool is_word(std::string_view word) const { return now().token == Token::name && now().text == word; }
  bool skip_sign(std::string_view sign);
  bool skip_word(std::string_view word);
  void want_sign(std::string_view sign);
  void want(Token token, const char* what);
  std::string want_name();
  [[noreturn]] void fail(const std::string& what) const;
  [[noreturn]] void fail_unexpected() const;
  NodePtr make(NodeOp op) const;
  NodePtr deepened(NodePtr node) const;  ///< sets the depth from the children's; throws if it is too much

  // parser.cc: statements
  Nodes statements(std::initializer_list<std::string_view> ends);
  Nodes block_body(std::initializer_list<std::string_view> ends);
  void end_of_block(std::string_view word);
  NodePtr statement();
  NodePtr set();
  NodePtr loop();
  NodePtr branch();
  NodePtr with();
  NodePtr macro();
  NodePtr call_block();
  NodePtr filter_block();
  NodePtr generation();
  void signature(Node& node);
  NodePtr target(bool with_parts, std::string_view end = {});

  // parser_expressions.cc
  NodePtr tuple(Conditions conditions, std::string_view end = {}, bool in_brackets = false);
  bool tuple_ends(std::string_view end) const;
  NodePtr expression(Conditions conditions = Conditions::yes);
  NodePtr conditional();
  NodePtr logic_or();
  NodePtr logic_and();
  NodePtr logic_not();
  NodePtr comparison();
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr unary() { return unary(true); }
  NodePtr unary(bool with_filters);
  NodePtr binary(NodePtr left, NodePtr (Parser::*operand)(), NodeOp op = NodeOp::binary);
  NodePtr primary();
  NodePtr list_of(NodeOp op);
  NodePtr dict();
  NodePtr postfix(NodePtr node);
  NodePtr filters(NodePtr node);
  NodePtr filter(NodePtr node);
  NodePtr test(NodePtr node);
  NodePtr subscript(NodePtr node);
  NodePtr subscribed();
  NodePtr call(NodePtr node);
  void arguments(Arguments& into);
  std::string dotted_name();

  std::vector<Lexeme> lexemes_;
  std::size_t at_ = 0;
  int level_ = 0, loops_ = 0;
  bool more_ = false, named_ = false, caller_ = false;  // of the macro that is read: see Node::takes_more
  Tree tree_;
};

}  // namespace weft::runtime::jinja
