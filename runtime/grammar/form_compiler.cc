// runtime/grammar/form_compiler.cc: xgrammar's door.
#include "runtime/grammar/form_compiler.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <list>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "policy/base/json.h"
#include "runtime/base/hash.h"
#include "runtime/base/quote.h"
#include "runtime/grammar/regex_rewrites.h"
#include "runtime/grammar/schema_checks.h"
#include "runtime/grammar/trial.h"

namespace weft::runtime {
namespace {

thread_local std::string* warnings = nullptr;  // where xgrammar's warnings go while a form is tried

constexpr std::uint64_t kMostCached = 256 << 20;  // bytes of compiled forms that are kept for others
constexpr std::size_t kMostCachedForms = 256;
constexpr int kDeepestRecursion = 1000;  // in xgrammar

std::uint64_t key_of(const AnswerForm& form) {
  return mix(hash(form.text) ^ mix(static_cast<std::uint64_t>(form.kind) * 2 + (form.compact ? 1 : 0)));
}

/// The first token that a mask allows, or -1.
std::int32_t first_of(std::span<const std::uint32_t> mask) {
  const auto word = std::find_if(mask.begin(), mask.end(), [](std::uint32_t bits) { return bits != 0; });
  return word == mask.end() ? -1 : static_cast<std::int32_t>(word - mask.begin()) * 32 + std::countr_zero(*word);
}

}  // namespace
}  // namespace weft::runtime

namespace xgrammar {

// XGRAMMAR_LOG_CUSTOMIZE: the library calls these.
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int level, const std::string& message);

void LogFatalImpl(const std::string&, int, const std::string& message) { throw weft::runtime::FormError(message); }

void LogMessageImpl(const std::string&, int, int level, const std::string& message) {
  constexpr int kWarning = 2;
  if (level >= kWarning && weft::runtime::warnings) *weft::runtime::warnings += message + "; ";
}

}  // namespace xgrammar

namespace weft::runtime {

struct CompiledForm::Parts {
  xgrammar::CompiledGrammar compiled;
  std::vector<std::int32_t> ends;  // ascending
  std::int32_t vocab = 0;
  std::vector<std::int32_t> barred{};  // tokens that the form does not allow, whatever its compiler says
};

struct Matcher::State {
  State(const CompiledForm& of, bool without_ends)
      : grammar(of), ignores_ends(without_ends), matcher(grammar.parts().compiled),
        words(static_cast<std::size_t>(xgrammar::GetBitmaskSize(grammar.parts().vocab))) {}
  State(const State& other)
      : grammar(other.grammar), ignores_ends(other.ignores_ends), matcher(other.matcher.Fork()), words(other.words),
        complete(other.complete), known(other.known), goes_on(other.goes_on) {}
  State& operator=(const State&) = delete;
  ~State() { forget(); }

  bool is_end(std::int32_t token) const {
    const auto& ends = grammar.parts().ends;
    return std::binary_search(ends.begin(), ends.end(), token);
  }

  /// Finds the tokens that may come next.
  void look() {
    const CompiledForm::Parts& parts = grammar.parts();
    std::fill(words.begin(), words.end(), 0);
    const bool may_end = matcher.IsCompleted();
    auto shape = static_cast<std::int64_t>(words.size());
    DLTensor mask{.data = words.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &shape,
                  .strides = nullptr,
                  .byte_offset = 0};
    matcher.FillNextTokenBitmask(&mask);
    for (const std::int32_t token : parts.barred) set(token, false);
    for (const std::int32_t end : parts.ends) set(end, false);
    const std::int32_t next = first_of(words);
    complete = may_end && next < 0;
    if (may_end && next >= 0) goes_on = next;
    if (may_end && !ignores_ends)
      for (const std::int32_t end : parts.ends) set(end, true);
    known = true;
  }

  /// Whether `goes_on` may come next. One token takes far less time than the mask, which is left to the mask threads.
  bool goes_on_as_before() {
    if (goes_on < 0 || !matcher.AcceptToken(goes_on)) return false;
    matcher.Rollback(1);
    return true;
  }

  /// Finds them unless they are found.
  void know() {
    if (const auto work = std::exchange(ahead, nullptr)) work->finish();
    if (!known) look();
  }

  /// Another token comes, so what was found is not looked at again.
  void forget() {
    if (const auto work = std::exchange(ahead, nullptr)) work->drop();
    known = false;
  }

  void set(std::int32_t token, bool allowed) {
    std::uint32_t& word = words[static_cast<std::size_t>(token) / 32];
    const std::uint32_t bit = 1U << (token % 32);
    word = allowed ? word | bit : word & ~bit;
  }

  CompiledForm grammar;
  bool ignores_ends;
  xgrammar::GrammarMatcher matcher;
  std::vector<std::uint32_t> words;  // a bit for each token that may come next, if they are known
  bool complete = false, known = false;
  std::int32_t goes_on = -1;  // a token that could follow where the answer could have ended, if there was such a place
  std::shared_ptr<MaskWork> ahead;  // that finds them
};

Matcher::Matcher(const CompiledForm& grammar, bool ignores_ends)
    : state_(std::make_unique<State>(grammar, ignores_ends)) {
  state_->look();
}
Matcher::Matcher(const Matcher& other) {
  other.state_->know();
  state_ = std::make_unique<State>(*other.state_);
}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher other) noexcept {
  state_ = std::move(other.state_);
  return *this;
}
Matcher::~Matcher() = default;

bool Matcher::accept(std::int32_t token) {
  if (state_->is_end(token)) return true;
  state_->forget();
  return state_->matcher.AcceptToken(token);
}

void Matcher::restart() {
  state_->forget();
  state_->matcher.Reset();
}

void Matcher::look_ahead(MaskThreads& threads) {
  if (state_->known || state_->ahead) return;
  state_->ahead = std::make_shared<MaskWork>([state = state_.get()] { state->look(); });
  threads.add(state_->ahead);
}

std::span<const std::uint32_t> Matcher::allowed() const {
  state_->know();
  return state_->words;
}

bool Matcher::complete() const {
  if (!state_->known && !state_->ahead && (!state_->matcher.IsCompleted() || state_->goes_on_as_before())) return false;
  state_->know();
  return state_->complete;
}

struct FormCompiler::State {
  State(const Tokenizer& of, std::int32_t tokens, std::span<const std::int32_t> all) : tokenizer(of), vocab(tokens) {
    for (const std::int32_t end : all)
      if (end >= 0 && end < vocab) ends.push_back(end);
    std::sort(ends.begin(), ends.end());
    ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  }

  struct Cached {
    AnswerForm form;
    CompiledForm grammar;
    std::uint64_t bytes = 0;
  };

  xgrammar::GrammarCompiler& the_compiler() {
    if (compiler) return *compiler;
    xgrammar::SetMaxRecursionDepth(kDeepestRecursion);
    std::vector<std::string> pieces(std::min(static_cast<std::size_t>(vocab), tokenizer.size()));
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const auto id = static_cast<std::int32_t>(i);
      pieces[i] = tokenizer.piece(id);
      const auto control = [](unsigned char c) { return c < 0x20 && c != '\n'; };
      if (std::any_of(pieces[i].begin(), pieces[i].end(), control)) controls.push_back(id);
    }
    const xgrammar::TokenizerInfo info(pieces, xgrammar::VocabType::RAW, vocab, ends);
    return compiler.emplace(info, /*max_threads=*/1, /*cache_enabled=*/false);
  }

  xgrammar::CompiledGrammar compiled(const AnswerForm& form) {
    xgrammar::GrammarCompiler& with = the_compiler();
    switch (form.kind) {
      case AnswerForm::Kind::json:
        return with.CompileJSONSchema(R"({"type": "object"})", !form.compact, {}, {}, /*strict_mode=*/false);
      case AnswerForm::Kind::schema: return with.CompileJSONSchema(form.text, !form.compact);
      case AnswerForm::Kind::regex: {
        const std::string regex = in_its_letters(form.text);
        const auto grammar = xgrammar::Grammar::FromRegex(regex);  // throws for what neither way knows
        const std::optional<std::string> automaton = for_automaton(regex);
        return automaton ? with.CompileGrammar("root ::= Regex(" + policy::to_line(nlohmann::json(*automaton)) + ")")
                         : with.CompileGrammar(grammar);
      }
      case AnswerForm::Kind::ebnf: return with.CompileGrammar(form.text);
      case AnswerForm::Kind::lark: return with.CompileLark(form.text);
    }
    throw FormError("is of no known kind");
  }

  /// xgrammar lets strings with a length have raw control characters, which are no JSON. Outside of strings a newline
  /// does what they would.
  std::shared_ptr<CompiledForm::Parts> parts(const AnswerForm& form) {
    auto made = std::make_shared<CompiledForm::Parts>(
        CompiledForm::Parts{compiled(form), ends, vocab});  // this fills `controls`
    if (form.kind == AnswerForm::Kind::schema) made->barred = controls;
    return made;
  }

  /// A pattern that xgrammar cannot follow by an automaton becomes a grammar that knows nothing of JSON, so that quotes
  /// and backslashes are in strings as they are. Which it was, the text of the grammar says.
  static void require_escapes(const AnswerForm& form) {
    if (form.kind != AnswerForm::Kind::schema) return;
    for (const std::string& pattern : schema_patterns(nlohmann::ordered_json::parse(form.text))) {
      const auto schema = nlohmann::json({{"type", "string"}, {"pattern", pattern}});
      if (most_repetitions(pattern, /*of_escaped=*/true) > kOftenRepeated ||
          xgrammar::Grammar::FromJSONSchema(policy::to_line(schema)).ToString().find("json_string=true") ==
              std::string::npos)
        throw FormError(
            "has the pattern " + in_quotes(pattern.substr(0, 80)) +
            ", which answers cannot be held to: it wants characters that JSON escapes, repeats too often, or "
            "has letters beyond ASCII, which may be written as \\u00e9");
    }
  }

  /// Throws FormError if the form cannot be met.
  void attempt(const AnswerForm& form) {
    std::string warned;
    warnings = &warned;
    require_escapes(form);
    const CompiledForm grammar(parts(form));
    if (!warned.empty()) throw FormError(warned.substr(0, warned.size() - 2));
    const Matcher first(grammar, /*ignores_ends=*/true);
    if (first.complete()) throw FormError("allows no answer but an empty one");
    if (first_of(first.allowed()) < 0) throw FormError("allows no answer that tokens of this model can begin");
  }

  void keep(const AnswerForm& form, const CompiledForm& grammar) {
    cache.push_front({form, grammar, grammar.parts().compiled.MemorySizeBytes() + form.text.size()});
    bytes += cache.front().bytes;
    while (cache.size() > 1 && (bytes > kMostCached || cache.size() > kMostCachedForms)) {
      bytes -= cache.back().bytes;
      cache.pop_back();
    }
  }

  const Tokenizer& tokenizer;
  const std::int32_t vocab;
  std::vector<std::int32_t> ends;
  std::mutex mutex;                    // guards the rest
  std::vector<std::int32_t> controls;  // tokens with control characters that are no newlines
  std::optional<xgrammar::GrammarCompiler> compiler;
  std::unordered_set<std::uint64_t> tried;  // keys of forms that can be compiled
  std::list<Cached> cache;                  // the one used last comes first
  std::uint64_t bytes = 0;
};

FormCompiler::FormCompiler(const Tokenizer& tokenizer, std::int32_t vocab, std::span<const std::int32_t> ends)
    : state_(std::make_unique<State>(tokenizer, vocab, ends)) {}
FormCompiler::~FormCompiler() = default;

std::uint64_t FormCompiler::bytes() const {
  const std::lock_guard lock(state_->mutex);
  return state_->bytes;
}

CompiledForm FormCompiler::compile(const AnswerForm& form) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  const auto found = std::find_if(state.cache.begin(), state.cache.end(),
                                  [&](const State::Cached& each) { return each.form == form; });
  if (found != state.cache.end()) {
    state.cache.splice(state.cache.begin(), state.cache, found);
    return found->grammar;
  }
  if (form.text.size() > kLongestForm)
    throw FormError("has " + std::to_string(form.text.size()) + " bytes, at most " + std::to_string(kLongestForm) +
                    " are taken");
  state.the_compiler();
  if (!state.tried.contains(key_of(form))) {
    if (const auto refused = try_apart([&] { state.attempt(form); })) {
      const std::string_view line = std::string_view(*refused).substr(0, refused->find('\n'));
      throw FormError(std::string(line.substr(0, 300)));
    }
    state.tried.insert(key_of(form));
  }
  const CompiledForm grammar(state.parts(form));
  state.keep(form, grammar);
  return grammar;
}

}  // namespace weft::runtime
