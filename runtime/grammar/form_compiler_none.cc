// runtime/grammar/form_compiler_none.cc: a build without xgrammar.
#include "runtime/grammar/form_compiler.h"

namespace weft::runtime {

struct CompiledForm::Parts {};
struct Matcher::State {};
struct FormCompiler::State {};

Matcher::Matcher(const CompiledForm&, bool) {}
Matcher::Matcher(const Matcher& other) : state_(std::make_unique<State>(*other.state_)) {}
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher other) noexcept {
  state_ = std::move(other.state_);
  return *this;
}
Matcher::~Matcher() = default;
bool Matcher::accept(std::int32_t) { return false; }
void Matcher::restart() {}
void Matcher::look_ahead(MaskThreads&) {}
std::span<const std::uint32_t> Matcher::allowed() const { return {}; }
bool Matcher::complete() const { return false; }

FormCompiler::FormCompiler(const Tokenizer&, std::int32_t, std::span<const std::int32_t>) {}
FormCompiler::~FormCompiler() = default;
std::uint64_t FormCompiler::bytes() const { return 0; }

CompiledForm FormCompiler::compile(const AnswerForm&) {
  throw FormError(
      "is not supported: this program was built without xgrammar; run scripts/setup.sh --grammar and build again");
}

}  // namespace weft::runtime
