// runtime/base/quote.cc
#include "runtime/base/quote.h"

#include <nlohmann/json.hpp>

#include "policy/base/json.h"

namespace weft::runtime {

std::string in_quotes(std::string_view name) {
  constexpr std::size_t kShown = 120;
  const std::string text = policy::to_line(nlohmann::json(std::string(name.substr(0, kShown))));
  return "'" + text.substr(1, text.size() - 2) + (name.size() > kShown ? "...'" : "'");
}

}  // namespace weft::runtime
