// runtime/gguf/gguf_values.cc: values of the metadata by type.
#include <cmath>

#include "runtime/base/quote.h"
#include "runtime/gguf/gguf.h"

namespace weft::runtime {
namespace {

const char* kind_of(const GgufValue& value) {
  constexpr std::array kinds{"a whole number",          "a float",          "a bool",         "a text",
                             "a list of whole numbers", "a list of floats", "a list of texts"};
  return kinds[value.index()];
}

/// The value of a key as a T; null if there is no such key.
template <class T> const T* value_of(const Gguf& gguf, const std::string& key, const char* wanted) {
  const auto found = gguf.metadata.find(key);
  if (found == gguf.metadata.end()) return nullptr;
  if (const T* const value = std::get_if<T>(&found->second)) return value;
  gguf.refuse(GgufFault::bad_metadata,
              "the metadata's " + in_quotes(key) + " is " + kind_of(found->second) + ", wanted " + wanted);
}

template <class T> const T& demand(const Gguf& gguf, const std::string& key, const char* wanted) {
  if (const T* const value = value_of<T>(gguf, key, wanted)) return *value;
  gguf.refuse(GgufFault::bad_metadata, "the metadata has no " + in_quotes(key) + ", wanted " + wanted);
}

}  // namespace

void Gguf::refuse(GgufFault fault, const std::string& what) const {
  throw GgufError(fault, path.string() + ": " + what);
}

std::int64_t Gguf::integer(const std::string& key, std::int64_t low, std::int64_t high) const {
  const auto value = demand<std::int64_t>(*this, key, "a whole number");
  if (value < low || value > high)
    refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(key) + " is " + std::to_string(value) + ", wanted " +
                                        std::to_string(low) + " to " + std::to_string(high));
  return value;
}

std::int64_t Gguf::integer(const std::string& key, std::int64_t low, std::int64_t high, std::int64_t fallback) const {
  return has(key) ? integer(key, low, high) : fallback;
}

double Gguf::number(const std::string& key) const {
  const auto value = demand<double>(*this, key, "a float");
  if (!std::isfinite(value)) refuse(GgufFault::bad_metadata, "the metadata's " + in_quotes(key) + " is not finite");
  return value;
}

bool Gguf::boolean(const std::string& key, bool fallback) const {
  const bool* const value = value_of<bool>(*this, key, "a bool");
  return value ? *value : fallback;
}

const std::string& Gguf::text(const std::string& key) const { return demand<std::string>(*this, key, "a text"); }

std::string Gguf::text(const std::string& key, const std::string& fallback) const {
  const std::string* const value = value_of<std::string>(*this, key, "a text");
  return value ? *value : fallback;
}

const std::vector<std::string>* Gguf::texts(const std::string& key) const {
  return value_of<std::vector<std::string>>(*this, key, "a list of texts");
}

const std::vector<std::int64_t>* Gguf::integers(const std::string& key) const {
  return value_of<std::vector<std::int64_t>>(*this, key, "a list of whole numbers");
}

const std::vector<double>* Gguf::numbers(const std::string& key) const {
  return value_of<std::vector<double>>(*this, key, "a list of floats");
}

}  // namespace weft::runtime
