// runtime/job/decisions.h: what --verbose says: what a run decided, and why.
#pragma once

#include <string>
#include <vector>

#include "runtime/engine/session.h"

namespace weft::runtime {

/// One line each: why this backend and this disk engine, what the policy is in full, what is on which tier, the
/// windows and the work space, and how many tokens a sequence keeps.
std::vector<std::string> decisions(const Session& session);

}  // namespace weft::runtime
