// runtime/template/ast.h: a template as a tree.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/template/lexer.h"
#include "runtime/template/value.h"

namespace weft::runtime::jinja {

struct Node;
using NodePtr = std::unique_ptr<Node>;
using Nodes = std::vector<NodePtr>;

enum class NodeOp : std::uint8_t {
  // expressions; "parts" are the node's children in order
  constant,
  name,
  list,
  tuple,
  dict,       ///< key, value, key, value ...
  attribute,  ///< parts[0].text
  item,       ///< parts[0][parts[1]]
  slice,      ///< start, stop, step; null where left out
  call,       ///< parts[0](arguments)
  filter,     ///< parts[0]|text(arguments); null in a filter block or a set block
  test,       ///< parts[0] is text(arguments)
  negative,
  positive,
  logic_not,
  logic_and,
  logic_or,
  compare,    ///< parts[0] signs[0] parts[1] signs[1] parts[2] ...
  binary,     ///< parts[0] text parts[1]
  concat,     ///< parts[0] ~ parts[1] ~ ...
  condition,  ///< parts[1] if parts[0] else parts[2], which may be null
  name_part,  ///< a part of a namespace, as a target: name.text
  // statements
  data,
  print,   ///< the parts, one after another
  branch,  ///< if parts[0]: body; else: other
  loop,    ///< goes through parts[0] for target, if parts[1] (may be null): body; else: other
  set,     ///< target = parts[0]
  set_block,
  macro,
  call_block,    ///< parts[0], a call, with the body as its caller
  filter_block,  ///< parts[0], a filter over the body
  with,          ///< targets in parts[0, n), their values in parts[n, 2n)
  generation,
  leave,  ///< break
  next,   ///< continue
};

/// The arguments of a call.
struct Arguments {
  Nodes positional;
  std::vector<std::pair<std::string, NodePtr>> named;
  NodePtr list, dict;  ///< after * and **; null if there are none
};

struct Node {
  NodeOp op = NodeOp::constant;
  SourcePlace place;
  int depth = 1;     ///< counts the levels of the tree below; it bounds every recursion
  int symbol = -1;   ///< the number of a name
  std::string text;  ///< a name, a sign, data
  PyValue value;     ///< a constant's value
  Nodes parts;
  std::vector<std::string> signs;
  Arguments arguments;
  NodePtr target;
  std::vector<int>
      parameters;  ///< the symbols of a macro's or a call block's parameters; the last ones have the defaults `parts`
  Nodes body, other;
  bool recursive = false;                        ///< a loop that calls itself
  bool takes_more = false, takes_named = false;  ///< a macro that uses `varargs`, `kwargs`
  bool takes_caller = false;                     ///< a macro that uses `caller`
};

/// Names as numbers.
class Symbols {
 public:
  int of(const std::string& name);
  const std::string& name(int symbol) const { return names_[static_cast<std::size_t>(symbol)]; }
  int count() const { return static_cast<int>(names_.size()); }

 private:
  std::unordered_map<std::string, int> numbers_;
  std::vector<std::string> names_;
};

/// A template that has been read.
struct Tree {
  Nodes body;
  Symbols symbols;
  std::set<std::string, std::less<>> words;   ///< every name, attribute and text of an expression
  std::set<std::string, std::less<>> looped;  ///< the names and attributes that loops go through
};

/// Throws TemplateError for what is no template, or uses a part of Jinja that is not supported.
Tree parse(std::string_view source);

}  // namespace weft::runtime::jinja
