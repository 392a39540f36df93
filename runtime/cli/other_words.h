// runtime/cli/other_words.h: what users type who know vLLM, llama.cpp, transformers or FlexGen, in Weft's words.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::runtime {

/// What does here what the flag or command `word` does there; nothing where no such tool has it.
std::optional<std::string> our_words(std::string_view word);

}  // namespace weft::runtime
