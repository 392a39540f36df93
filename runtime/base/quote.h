// runtime/base/quote.h: foreign text in messages.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// A name out of a file, for a message: on one line whatever is in it, and not too long.
std::string in_quotes(std::string_view name);

}  // namespace weft::runtime
