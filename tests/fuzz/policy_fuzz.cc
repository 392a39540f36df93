// tests/fuzz/policy_fuzz.cc: policies and machines are refused by a UsageError, or are values that can be written.
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "policy/layout/policy.h"
#include "policy/planner/machine.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  nlohmann::json json;
  try {
    json = policy::parse_json(fuzz::text_of(data, size), "policy.json", policy::Blame::usage, {.depth = 32});
  } catch (const UsageError&) {
    return 0;
  }
  try {
    policy::PartialPolicy::from_json(json, "policy.json");
  } catch (const UsageError&) {}
  try {
    policy::Machine::from_json(json, "machine.json").to_json();
  } catch (const UsageError&) {}
  return 0;
}
