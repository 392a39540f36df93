// runtime/base/sha256.h: SHA-256 as sha256sum prints it.
#pragma once

#include <string>
#include <string_view>

namespace weft::runtime {

/// The SHA-256 of the bytes (FIPS 180-4), as 64 hexadecimal digits. Meant for files of a few MiB. It is implemented
/// here because a library would be one more to build and ship for this alone.
std::string sha256(std::string_view bytes);

}  // namespace weft::runtime
