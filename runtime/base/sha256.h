// runtime/base/sha256.h: what sha256sum prints.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// The SHA-256 of the bytes (FIPS 180-4), as 64 hexadecimal digits. Made for files of a few MiB: a library of its own
/// would be one more to build and ship, for this alone.
std::string sha256(std::string_view bytes);

}  // namespace weft::runtime
