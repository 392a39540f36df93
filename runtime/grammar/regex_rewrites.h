// runtime/grammar/regex_rewrites.h: regular expressions said in the way that their compiler knows.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace weft::runtime {

/// A repetition of more than this becomes a rule of the grammar, also within an automaton.
constexpr std::int64_t kOftenRepeated = 128;
/// The largest bound of a repetition {m,n} in a pattern. `of_escaped`: only of what JSON may have to escape, such as
/// `.{1,200}`. There the compiler forgets, beyond kOftenRepeated, that the pattern is one of a string in JSON.
std::int64_t most_repetitions(std::string_view pattern, bool of_escaped = false);

/// The same regex where xgrammar would read it wrongly: a line's end is escaped, and \u00e9 is the letter itself.
std::string in_its_letters(const std::string& regex);

/// A regex of in_its_letters() for one automaton, whose masks are found far sooner than those of a grammar with a rule
/// for each group and number of repetitions; nullopt if it has none: repetitions beyond kOftenRepeated remain rules. An
/// automaton's own \s lacks U+00A0.
std::optional<std::string> for_automaton(const std::string& regex);

}  // namespace weft::runtime
