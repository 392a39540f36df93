// tests/fuzz/config_fuzz.cc: a config.json is refused by a DataError, or describes a model that can be laid out.
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/model/model.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  try {
    const policy::ModelSpec model = policy::model_from_config(
        policy::parse_json(fuzz::text_of(data, size), "config.json", policy::Blame::data, {.depth = 32}),
        "config.json");
    if (model.layers <= 16) policy::model_sublayers(model, policy::model_units(model));
  } catch (const DataError&) {}
  return 0;
}
