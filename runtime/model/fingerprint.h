// runtime/model/fingerprint.h: a short description of a model, which shows whether it is still the one with which an
// output was begun.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/model/model_source.h"

namespace weft::runtime {

/// The name and the fingerprint of each file that the answers depend on. Small files are read whole. The fingerprint of
/// a weights file covers its size, the names, types, shapes and places of its tensors, and 64 KiB each at its
/// beginning, middle and end. That tells models apart, but it does not protect against deliberate changes. Throws
/// IoError.
std::vector<std::pair<std::string, std::string>> fingerprints(const ModelSource& model);

}  // namespace weft::runtime
