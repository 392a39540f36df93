// runtime/base/stop.h: how work that a user has stopped ends.
#pragma once

namespace weft::runtime {

/// Thrown by work that saw its `stop` flag set. No error: the program ends with exit code 130.
struct Interrupted {};

}  // namespace weft::runtime
