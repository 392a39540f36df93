// runtime/cli/other_words.h: translates flags of vLLM, llama.cpp, transformers and FlexGen into Weft's words.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace weft::runtime {

/// Weft's words for the flag or command `word` of another tool; nothing if none of these tools has it.
std::optional<std::string> our_words(std::string_view word);

}  // namespace weft::runtime
