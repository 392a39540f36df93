// runtime/grammar/form_compiler.h: forms compiled for a tokenizer, and the tokens that may come next in an answer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "runtime/grammar/form.h"
#include "runtime/grammar/mask_threads.h"
#include "runtime/text/tokenizer.h"

namespace weft::runtime {

/// A compiled form. Copies share it; any thread may use it.
class CompiledForm {
 public:
  struct Parts;
  explicit CompiledForm(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  const Parts& parts() const { return *parts_; }

 private:
  std::shared_ptr<const Parts> parts_;
};

/// Follows one answer. For one thread at a time.
class Matcher {
 public:
  /// At the beginning of an answer. With `ignores_ends` no end of a sequence is allowed, even where an answer may end.
  Matcher(const CompiledForm& grammar, bool ignores_ends);
  Matcher(const Matcher& other);
  Matcher(Matcher&& other) noexcept;
  Matcher& operator=(Matcher other) noexcept;
  ~Matcher();

  /// Takes the next token of the answer. Returns false, and does nothing, if it is none that may come next. An end of a
  /// sequence changes nothing.
  bool accept(std::int32_t token);
  /// Begins the answer again.
  void restart();
  /// Lets one of the threads find what allowed() returns. They may end before the matcher.
  void look_ahead(MaskThreads& threads);
  /// A bit for each token, the lowest first: whether it may come next. Valid until the next call of accept() or
  /// restart().
  std::span<const std::uint32_t> allowed() const;
  /// Whether the answer has its form and no token may follow but the end of the sequence.
  bool complete() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Compiles forms for one model, each once while it is in use again and again. Any thread may call it.
class FormCompiler {
 public:
  /// `vocab`: the model's tokens; `ends`: those that end a sequence. `tokenizer` must outlive it.
  FormCompiler(const Tokenizer& tokenizer, std::int32_t vocab, std::span<const std::int32_t> ends);
  FormCompiler(const FormCompiler&) = delete;
  FormCompiler& operator=(const FormCompiler&) = delete;
  ~FormCompiler();

  /// Throws FormError if the form is wrong, cannot be met by tokens of the model, or takes more than 10 s, 1 GiB or the
  /// stack to compile. A form that has not been seen is compiled in a process of its own first, which such a form ends.
  /// Throws IoError if no process can be started.
  CompiledForm compile(const AnswerForm& form);
  /// The bytes of the compiled forms that are kept for others, at most about 256 MiB.
  std::uint64_t bytes() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::runtime
