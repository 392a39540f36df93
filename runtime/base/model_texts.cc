#include "runtime/base/model_texts.h"

#include "kernels/error.h"
#include "runtime/base/files.h"

namespace weft::runtime {

ModelTexts ModelTexts::config_alone(std::filesystem::path file) {
  ModelTexts texts(file, {{"config.json", [file] { return read_file(file, kLargestConfig); }}});
  texts.as_it_is_ = true;
  return texts;
}

bool ModelTexts::has(const std::string& name) const {
  if (!in_folder()) return makers_.contains(name);
  return !place_.empty() && std::filesystem::exists(place_ / name);
}

std::string ModelTexts::read(const std::string& name, std::size_t limit_bytes) const {
  if (in_folder()) return read_file(place_ / name, limit_bytes);
  const auto maker = makers_.find(name);
  if (maker == makers_.end()) throw DataError(place_.string() + ": has nothing for a " + name);
  std::string text = maker->second();
  if (text.size() > limit_bytes)
    throw DataError(where(name) + ": has " + std::to_string(text.size()) + " bytes, at most " +
                    std::to_string(limit_bytes));
  return text;
}

std::string ModelTexts::where(const std::string& name) const {
  if (in_folder()) return (place_ / name).string();
  return as_it_is_ ? place_.string() : place_.string() + " (as " + name + ")";
}

}  // namespace weft::runtime
