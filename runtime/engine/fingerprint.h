// runtime/engine/fingerprint.h: a model in a few words, to see whether it is still the one that an output was begun
// with.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/model_source.h"

namespace weft::runtime {

/// File name and fingerprint of each file that the answers depend on. The small ones are read whole; of a weights file
/// go in its size, its tensors' names, types, shapes and places, and 64 KiB each at its beginning, middle and end. That
/// tells models apart; it is no protection against somebody who means harm. Throws IoError.
std::vector<std::pair<std::string, std::string>> fingerprints(const ModelSource& model);

/// Sixteen hexadecimal digits.
std::string to_hex(std::uint64_t value);

}  // namespace weft::runtime
