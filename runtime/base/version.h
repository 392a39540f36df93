// runtime/base/version.h: the version of this program.
#pragma once

namespace weft::runtime {

/// "weft 0.1.0".
const char* program_version();

}  // namespace weft::runtime
