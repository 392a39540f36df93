// tests/support/model_config.h: a model from the text of its config.json.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "policy/model/model.h"

namespace weft::test {

inline policy::ModelSpec from(const std::string& config) {
  return policy::model_from_config(nlohmann::json::parse(config), "config.json");
}

}  // namespace weft::test
