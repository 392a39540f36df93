// runtime/engine/activation.h: activations by the names that transformers has for them.
#pragma once

#include <string>

#include "kernels/ops.h"

namespace weft::runtime {

/// The activation that config.json names. Throws DataError with the known names.
kernels::Activation activation_named(const std::string& name, const std::string& where);

}  // namespace weft::runtime
