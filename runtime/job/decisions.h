// runtime/job/decisions.h: lists what a run decided, and why, for --verbose.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/session.h"

namespace weft::runtime {

/// One line each: the reasons for the backend and the disk engine, the policy in full, the buffers on each tier, the
/// windows and the work space, and the tokens that a sequence keeps.
std::vector<std::string> decisions(const Session& session);

}  // namespace weft::runtime
