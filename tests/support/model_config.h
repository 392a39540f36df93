// tests/support/model_config.h: a model from the text of its config.json, and the shapes of configs/models.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "policy/model/model.h"
#include "tests/support/files.h"

namespace weft::test {

inline policy::ModelSpec from(const std::string& config) {
  return policy::model_from_config(nlohmann::json::parse(config), "config.json");
}
inline policy::ModelSpec shipped_model(const std::string& name) {
  return policy::model_from_config(nlohmann::json::parse(read_text(source_path("configs/models") / (name + ".json"))),
                                   name);
}

}  // namespace weft::test
