// runtime/engine/fingerprint.h: a short description of a model, to see whether it is still the one with which an output
// was begun.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/model_source.h"

namespace weft::runtime {

/// File name and fingerprint of each file that the answers depend on. The small ones are read whole; of a weights file
/// go in its size, its tensors' names, types, shapes and places, and 64 KiB each at its beginning, middle and end. That
/// tells models apart; it does not protect against deliberate changes. Throws IoError.
std::vector<std::pair<std::string, std::string>> fingerprints(const ModelSource& model);

/// Sixteen hexadecimal digits.
std::string to_hex(std::uint64_t value);

}  // namespace weft::runtime
