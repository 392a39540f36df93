#include "runtime/requests/reasoning.h"

#include <string_view>

namespace weft::runtime {

std::pair<std::optional<std::string>, std::string> split_reasoning(Reasoning rule, std::string text) {
  constexpr std::string_view kBegin = "<think>", kEnd = "</think>";
  const std::size_t begin = text.find(kBegin);
  const std::size_t from = begin == std::string::npos ? 0 : begin + kBegin.size(), end = text.find(kEnd, from);
  const bool both = begin != std::string::npos && end != std::string::npos;
  if (rule == Reasoning::whole || (rule == Reasoning::qwen3 && !both)) return {{}, std::move(text)};
  if (end == std::string::npos) return {text.substr(from), ""};
  return {text.substr(from, end - from), text.substr(end + kEnd.size())};
}

}  // namespace weft::runtime
