#include "runtime/text/tokenizer_regex.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "kernels/error.h"
#include "runtime/base/utf8.h"

namespace weft::runtime {

namespace {

constexpr std::size_t kLongestProgram = 4000;
constexpr int kDeepestGroup = 16;
constexpr std::uint16_t kAllKinds = 0x7FF;
constexpr std::uint16_t bit(CharKind kind) { return static_cast<std::uint16_t>(1u << static_cast<int>(kind)); }

constexpr std::uint16_t kLetters =
    bit(CharKind::lu) | bit(CharKind::ll) | bit(CharKind::lt) | bit(CharKind::lm) | bit(CharKind::lo);
constexpr std::pair<std::string_view, std::uint16_t> kProperties[]{
    {"L", kLetters},
    {"Lu", bit(CharKind::lu)},
    {"Ll", bit(CharKind::ll)},
    {"Lt", bit(CharKind::lt)},
    {"Lm", bit(CharKind::lm)},
    {"Lo", bit(CharKind::lo)},
    {"M", bit(CharKind::mark)},
    {"N", bit(CharKind::number)},
    {"P", bit(CharKind::punctuation)},
    {"S", bit(CharKind::symbol)},
};

/// The zeros of the decimal digits (general category Nd), as Hugging Face's library has them.
constexpr std::array kZeros = std::to_array<char32_t>(
    {0x30,    0x660,   0x6F0,   0x7C0,   0x966,   0x9E6,   0xA66,   0xAE6,   0xB66,   0xBE6,   0xC66,
     0xCE6,   0xD66,   0xDE6,   0xE50,   0xED0,   0xF20,   0x1040,  0x1090,  0x17E0,  0x1810,  0x1946,
     0x19D0,  0x1A80,  0x1A90,  0x1B50,  0x1BB0,  0x1C40,  0x1C50,  0xA620,  0xA8D0,  0xA900,  0xA9D0,
     0xA9F0,  0xAA50,  0xABF0,  0xFF10,  0x104A0, 0x10D30, 0x10D40, 0x11066, 0x110F0, 0x11136, 0x111D0,
     0x112F0, 0x11450, 0x114D0, 0x11650, 0x116C0, 0x116D0, 0x116DA, 0x11730, 0x118E0, 0x11950, 0x11BF0,
     0x11C50, 0x11D50, 0x11DA0, 0x11F50, 0x16130, 0x16A60, 0x16AC0, 0x16B50, 0x16D70, 0x1CCF0, 0x1D7CE,
     0x1D7D8, 0x1D7E2, 0x1D7EC, 0x1D7F6, 0x1E140, 0x1E2F0, 0x1E4F0, 0x1E5F1, 0x1E950, 0x1FBF0});

/// What Oniguruma's \w has besides letters, marks and decimal digits.
constexpr std::array kOtherWords = std::to_array<std::pair<char32_t, char32_t>>(
    {{0x5F, 0x5F},       {0xB2, 0xB3},       {0xB9, 0xB9},       {0xBC, 0xBE},       {0x16EE, 0x16F0},
     {0x203F, 0x2040},   {0x2054, 0x2054},   {0x2160, 0x2182},   {0x2185, 0x2188},   {0x24B6, 0x24E9},
     {0x3007, 0x3007},   {0x3021, 0x3029},   {0x3038, 0x303A},   {0xA6E6, 0xA6EF},   {0xFE33, 0xFE34},
     {0xFE4D, 0xFE4F},   {0xFF3F, 0xFF3F},   {0x10140, 0x10174}, {0x10341, 0x10341}, {0x1034A, 0x1034A},
     {0x103D1, 0x103D5}, {0x12400, 0x1246E}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}});

using Program = std::vector<Regex::Instruction>;
using Code = Regex::Code;

/// Compiles a pattern by recursive descent.
class Compiler {
 public:
  Compiler(std::string_view pattern, std::vector<Regex::Set>& sets) : pattern_(pattern), sets_(sets) {}

  Program compile() {
    if (!is_utf8(pattern_)) refuse("is not UTF-8");
    Program program = alternatives(0);
    if (at_ < pattern_.size()) refuse("has a ) too many");
    program.push_back({.code = Code::done});
    std::uint32_t branches = 0;
    for (Regex::Instruction& each : program)
      if (each.code == Code::branch) each.branch = branches++;
    if (branches > 64) refuse("has more than 64 branches");
    return program;
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UsageError("the pattern " + what + " at byte " + std::to_string(at_ + 1));
  }
  bool sees(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  bool take(std::string_view text) {
    if (!sees(text)) return false;
    at_ += text.size();
    return true;
  }
  char32_t take_char() {
    if (at_ == pattern_.size()) refuse("ends too early");
    const Utf8Char c = utf8_at(pattern_, at_);
    at_ += c.bytes;
    return c.code;
  }
  void append(Program& to, const Program& more) const {
    to.insert(to.end(), more.begin(), more.end());
    if (to.size() > kLongestProgram) refuse("is too long");
  }

  Program alternatives(int depth) {
    if (depth > kDeepestGroup) refuse("is nested too deeply");
    Program program = sequence(depth);
    while (take("|")) program = either(program, sequence(depth));
    return program;
  }

  Program either(const Program& first, const Program& other) const {
    Program both{{.code = Code::branch, .a = 1, .b = static_cast<std::int32_t>(first.size()) + 2}};
    append(both, first);
    both.push_back({.code = Code::jump, .a = static_cast<std::int32_t>(other.size()) + 1});
    append(both, other);
    return both;
  }

  Program sequence(int depth) {
    Program program;
    while (at_ < pattern_.size() && !sees("|") && !sees(")")) append(program, quantified(depth));
    return program;
  }

  /// Braces follow Oniguruma's rules for Ruby, as in Hugging Face's library: {1,3}+ repeats {1,3}, and {2}? makes it
  /// optional. Only after another quantifier is + possessive.
  Program quantified(int depth) {
    Program one = atom(depth);
    std::int64_t least = 1, most = 1;
    const bool in_braces = sees("{");
    bool exact = false;
    if (take("?")) least = 0;
    else if (take("*")) least = 0, most = -1;
    else if (take("+")) most = -1;
    else if (in_braces && !braces(least, most, exact)) refuse("has braces that are not supported");
    const bool lazy = !exact && take("?"), more = !lazy && take("+"), optional = exact && !more && take("?");
    if (sees("?") || sees("*") || sees("+") || sees("{")) refuse("repeats what is repeated");
    Program program = repeated(one, least, most, lazy);
    if (optional) return repeated(program, 0, 1, false);
    if (more) return in_braces ? repeated(program, 1, -1, false) : part(Code::atomic, program);
    return program;
  }

  Program repeated(const Program& one, std::int64_t least, std::int64_t most, bool lazy) const {
    Program program;
    for (std::int64_t i = 0; i < least; ++i) append(program, one);
    const auto size = static_cast<std::int32_t>(one.size());
    const auto branch = [lazy](std::int32_t into, std::int32_t past) {
      return Regex::Instruction{.code = Code::branch, .a = lazy ? past : into, .b = lazy ? into : past};
    };
    if (most < 0) {
      program.push_back(branch(1, size + 2));
      append(program, one);
      program.push_back({.code = Code::jump, .a = -size - 1});
    }
    for (std::int64_t i = least; i < most; ++i) {
      // Every one that may be left out ends the others too.
      const auto left = static_cast<std::int32_t>((most - i) * (size + 1));
      program.push_back(branch(1, left));
      append(program, one);
    }
    return program;
  }

  bool braces(std::int64_t& least, std::int64_t& most, bool& exact) {
    const auto number = [this]() -> std::int64_t {
      std::int64_t value = -1;
      while (at_ < pattern_.size() && pattern_[at_] >= '0' && pattern_[at_] <= '9' && value < 1000)
        value = std::max<std::int64_t>(value, 0) * 10 + (pattern_[at_++] - '0');
      return value;
    };
    take("{");
    least = number();
    exact = !sees(",");
    most = take(",") ? number() : least;
    return take("}") && least >= 0 && least <= 1000 && (most < 0 || (most >= least && most <= 1000));
  }

  /// A part that is run by itself.
  Program part(Code code, const Program& inside) const {
    Program program{{.code = code, .a = 1, .b = static_cast<std::int32_t>(inside.size()) + 2}};
    append(program, inside);
    program.push_back({.code = Code::done});
    return program;
  }

  Program atom(int depth) {
    if (take("(")) return group(depth);
    const Regex::Set of_a_line{.kinds = 0, .ranges = {{'\n', '\n'}}, .negated = true};
    if (take("$")) return part(Code::refuse_look, one_of(of_a_line));
    if (take("^")) return line_begin();
    if (sees("\\b") || sees("\\B")) return word_boundary();
    Regex::Set set;
    if (take("[")) set = char_class();
    else if (take("\\")) set = escape();
    else if (take(".")) set = of_a_line;
    else if (sees("*") || sees("+") || sees("?") || sees("{")) refuse("has a character that is not supported");
    else set = literal(take_char());
    return one_of(std::move(set));
  }

  /// Where the text begins, or after a line's end unless the text ends there too.
  Program line_begin() {
    const Regex::Set any{.kinds = 0, .ranges = {}, .negated = true}, line_end{.kinds = 0, .ranges = {{'\n', '\n'}}};
    Program after_line = behind(Code::behind, line_end);
    append(after_line, part(Code::look, one_of(any)));
    return either(behind(Code::refuse_behind, any), after_line);
  }

  /// Between a character of words and another or none; with a capital where that is not so.
  Program word_boundary() {
    const bool between = take("\\b");
    if (!between) take("\\B");
    Program after_word = behind(Code::behind, words()), after_other = behind(Code::refuse_behind, words());
    append(after_word, part(between ? Code::refuse_look : Code::look, one_of(words())));
    append(after_other, part(between ? Code::look : Code::refuse_look, one_of(words())));
    return either(after_word, after_other);
  }

  Program behind(Code code, Regex::Set set) {
    Program program = one_of(std::move(set));
    program.front().code = code;
    return program;
  }

  Program one_of(Regex::Set set) {
    sets_.push_back(std::move(set));
    return {{.code = Code::set, .a = static_cast<std::int32_t>(sets_.size()) - 1}};
  }

  Program group(int depth) {
    const bool outer = any_case_;
    std::optional<Code> code;
    if (take("?:")) {
    } else if (take("?i:")) any_case_ = true;
    else if (take("?=")) code = Code::look;
    else if (take("?!")) code = Code::refuse_look;
    else if (take("?>")) code = Code::atomic;
    else if (take("?<=")) code = Code::behind;
    else if (take("?<!")) code = Code::refuse_behind;
    else if (sees("?")) refuse("has a group that is not supported");
    Program inside = alternatives(depth + 1);
    any_case_ = outer;
    if (!take(")")) refuse("lacks a )");
    if (code == Code::behind || code == Code::refuse_behind) {
      if (inside.size() != 1 || inside.front().code != Code::set) refuse("looks behind at more than one character");
      inside.front().code = *code;
      return inside;
    }
    return code ? part(*code, inside) : inside;
  }

  Regex::Set literal(char32_t code) const {
    Regex::Set set{.kinds = 0, .ranges = {{code, code}}};
    if (!any_case_) return set;
    const char32_t lower = code | 0x20;
    if (lower >= 'a' && lower <= 'z' && code < 0x80) set.ranges = {{lower, lower}, {lower & ~0x20u, lower & ~0x20u}};
    else if (code >= 0x80) refuse("has (?i: with a letter that is not ASCII");
    if (lower == 's') set.ranges.emplace_back(0x17F, 0x17F);
    if (lower == 'k') set.ranges.emplace_back(0x212A, 0x212A);
    return set;
  }

  /// What follows a backslash.
  Regex::Set escape() {
    const char32_t c = take_char();
    switch (c) {
      case 'd':
      case 'D': return {.kinds = 0, .ranges = digits(), .negated = c == 'D'};
      case 'w':
      case 'W': {
        Regex::Set set = words();
        set.negated = c == 'W';
        return set;
      }
      case 's': return {.kinds = bit(CharKind::space), .ranges = {}};
      case 'S': return {.kinds = kAllKinds & ~bit(CharKind::space), .ranges = {}};
      case 'p':
      case 'P': return property(c == 'P');
      case 'n': return {.kinds = 0, .ranges = {{'\n', '\n'}}};
      case 'r': return {.kinds = 0, .ranges = {{'\r', '\r'}}};
      case 't': return {.kinds = 0, .ranges = {{'\t', '\t'}}};
      case 'f': return {.kinds = 0, .ranges = {{'\f', '\f'}}};
      case 'v': return {.kinds = 0, .ranges = {{'\v', '\v'}}};
      case 'x':
      case 'u': {
        const bool braced = take("{");
        char32_t code = 0;
        std::size_t digits = 0;
        const std::size_t most = braced ? 6 : c == 'x' ? 2 : 4;
        for (; digits < most && at_ < pattern_.size(); ++digits, ++at_) {
          const char d = pattern_[at_], lower = static_cast<char>(d | 0x20);
          if (d >= '0' && d <= '9') code = code * 16 + static_cast<char32_t>(d - '0');
          else if (lower >= 'a' && lower <= 'f') code = code * 16 + static_cast<char32_t>(lower - 'a' + 10);
          else break;
        }
        if (digits == 0 || (braced && !take("}")) || code > 0x10FFFF) refuse("has a \\x or \\u that is no character");
        return literal(code);
      }
      default: break;
    }
    if (c >= 0x80 || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z'))
      refuse("has an escape that is not supported" +
             (c < 0x80 ? std::string(" (\\") + static_cast<char>(c) + ")" : std::string()));
    return {.kinds = 0, .ranges = {{c, c}}};
  }

  /// The decimal digits, which stand in tens.
  static std::vector<std::pair<char32_t, char32_t>> digits() {
    std::vector<std::pair<char32_t, char32_t>> ranges;
    for (const char32_t zero : kZeros) ranges.emplace_back(zero, zero + 9);
    return ranges;
  }
  static Regex::Set words() {
    Regex::Set set{.kinds = kLetters | bit(CharKind::mark), .ranges = digits()};
    set.ranges.insert(set.ranges.end(), kOtherWords.begin(), kOtherWords.end());
    return set;
  }

  Regex::Set property(bool negated) {
    std::string name;
    if (take("{")) {
      if (take("^")) negated = !negated;
      while (at_ < pattern_.size() && !sees("}")) name += pattern_[at_++];
      take("}");
    } else {
      name = static_cast<char>(take_char());
    }
    for (const auto& [known, kinds] : kProperties)
      if (name == known)
        return {.kinds = static_cast<std::uint16_t>(negated ? kAllKinds & ~kinds : kinds), .ranges = {}};
    refuse("has \\p{" + name.substr(0, 20) + "}, which is not supported,");
  }

  Regex::Set char_class() {
    Regex::Set set;
    set.negated = take("^");
    for (bool first = true; first || !sees("]"); first = false) {
      if (at_ == pattern_.size()) refuse("lacks a ]");
      if (sees("[") || sees("&&")) refuse("has a class within a class, which is not supported,");
      Regex::Set one = take("\\") ? escape() : literal(take_char());
      if (one.negated) refuse("has \\W or \\D within a class, which is not supported,");
      const bool range = sees("-") && at_ + 1 < pattern_.size() && pattern_[at_ + 1] != ']';
      if (range && one.kinds == 0 && !any_case_) {
        take("-");
        const Regex::Set end = take("\\") ? escape() : literal(take_char());
        if (end.kinds != 0 || one.ranges.size() != 1 || end.ranges.size() != 1 ||
            end.ranges[0].first < one.ranges[0].first)
          refuse("has a range that is none");
        one.ranges[0].second = end.ranges[0].second;
      } else if (range) {
        refuse("has a range that is not supported");
      }
      set.kinds |= one.kinds;
      set.ranges.insert(set.ranges.end(), one.ranges.begin(), one.ranges.end());
    }
    take("]");
    return set;
  }

  const std::string_view pattern_;
  std::vector<Regex::Set>& sets_;
  std::size_t at_ = 0;
  bool any_case_ = false;
};

/// The character that ends at text[at], which is not the first; if none does, the byte there as it is read alone.
char32_t char_before(std::string_view text, std::size_t at) {
  std::size_t begin = at - 1;
  while (begin > 0 && at - begin < 4 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  const Utf8Char c = utf8_at(text, begin);
  return begin + c.bytes == at ? c.code : utf8_at(text, at - 1).code;
}

}  // namespace

Regex::Regex(std::string_view pattern) { program_ = Compiler(pattern, sets_).compile(); }

bool Regex::Set::has(char32_t code) const {
  bool found = kinds != 0 && (kinds >> static_cast<int>(char_kind(code)) & 1) != 0;
  for (std::size_t i = 0; !found && i < ranges.size(); ++i) found = code >= ranges[i].first && code <= ranges[i].second;
  return found != negated;
}

std::size_t Regex::match(std::string_view text, std::size_t at, Scratch& scratch, bool goes_on) const {
  if (!goes_on) scratch.begin = at;
  return run(0, text, at, scratch, 0);
}

std::size_t Regex::run(std::size_t pc, std::string_view text, std::size_t at, Scratch& scratch,
                       std::size_t level) const {
  constexpr auto npos = std::string_view::npos;
  if (scratch.levels.size() <= level) scratch.levels.resize(level + 1);
  const std::size_t begin = level == 0 ? scratch.begin : at;
  if (begin == at) scratch.levels[level].seen.clear();
  scratch.levels[level].todo.assign(1, {static_cast<std::uint32_t>(pc), at});
  while (!scratch.levels[level].todo.empty()) {
    std::tie(pc, at) = scratch.levels[level].todo.back();
    scratch.levels[level].todo.pop_back();
    for (bool goes = true; goes;) {
      const Instruction& now = program_[pc];
      switch (now.code) {
        case Code::set: {
          if (at == text.size()) {
            goes = false;
            break;
          }
          const Utf8Char c = utf8_at(text, at);
          goes = sets_[static_cast<std::size_t>(now.a)].has(c.code);
          at += c.bytes;
          ++pc;
          break;
        }
        case Code::branch: {
          Scratch::Level& here = scratch.levels[level];
          if (here.seen.size() <= at - begin) here.seen.resize(at - begin + 1);
          std::uint64_t& seen = here.seen[at - begin];
          goes = (seen >> now.branch & 1) == 0;
          seen |= std::uint64_t{1} << now.branch;
          if (goes) here.todo.emplace_back(static_cast<std::uint32_t>(pc + now.b), at);
          pc += now.a;
          break;
        }
        case Code::behind:
        case Code::refuse_behind: {
          const bool found = at > 0 && sets_[static_cast<std::size_t>(now.a)].has(char_before(text, at));
          goes = found != (now.code == Code::refuse_behind);
          ++pc;
          break;
        }
        case Code::jump: pc += now.a; break;
        case Code::look:
        case Code::refuse_look:
        case Code::atomic: {
          const std::size_t end = run(pc + now.a, text, at, scratch, level + 1);
          goes = (end != npos) != (now.code == Code::refuse_look);
          if (goes && now.code == Code::atomic) at = end;
          pc += now.b;
          break;
        }
        case Code::done: return at;
      }
    }
  }
  return npos;
}

}  // namespace weft::runtime
