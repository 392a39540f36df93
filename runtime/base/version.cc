#include "runtime/base/version.h"

namespace weft::runtime {

const char* program_version() { return "weft " WEFT_VERSION; }

}  // namespace weft::runtime
