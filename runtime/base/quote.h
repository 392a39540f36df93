// runtime/base/quote.h: quotes foreign text in messages.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// Quotes a name that a file contains, for a message. The result fits one line and is not too long.
std::string in_quotes(std::string_view name);

}  // namespace weft::runtime
