// runtime/base/stop.h: how work ends that a user has stopped.
#pragma once

namespace weft::runtime {

/// Thrown by work that saw its `stop` flag set. Not an error: the program ends with exit code 130.
struct Interrupted {};

}  // namespace weft::runtime
