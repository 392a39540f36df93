// runtime/base/quote.h: foreign text in messages.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// A name from a file, for a message: always on one line, and not too long.
std::string in_quotes(std::string_view name);

}  // namespace weft::runtime
