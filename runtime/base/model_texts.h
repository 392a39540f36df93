// runtime/base/model_texts.h: the small files of a model, wherever their text comes from.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>

namespace weft::runtime {

inline constexpr std::size_t kLargestConfig = 1 << 20;  ///< bytes that a config.json may have

/// The small files of a model by the names that they have in a Hugging Face folder: config.json, tokenizer.json and so
/// on. They lie in a folder, or are made of what another file says.
class ModelTexts {
 public:
  using Makers = std::map<std::string, std::function<std::string()>>;

  /// The files of a folder. An empty path has none.
  ModelTexts(std::filesystem::path folder) : place_(std::move(folder)) {}
  /// Texts that are made whenever they are read, of the file `source`. Calls no maker yet.
  ModelTexts(std::filesystem::path source, Makers makers) : place_(std::move(source)), makers_(std::move(makers)) {}
  /// A config.json of any name, and nothing else.
  static ModelTexts config_alone(std::filesystem::path file);

  bool has(const std::string& name) const;
  /// The text of the file. Throws DataError or IoError if it cannot be read or has more than `limit_bytes`.
  std::string read(const std::string& name, std::size_t limit_bytes) const;
  /// The file's name for messages: "models/opt/config.json", or "x.gguf (as config.json)".
  std::string where(const std::string& name) const;
  /// The folder, or the file of which the texts are made.
  const std::filesystem::path& place() const { return place_; }
  bool in_folder() const { return makers_.empty(); }

 private:
  std::filesystem::path place_;
  Makers makers_;
  bool as_it_is_ = false;  // the one text is the file itself
};

}  // namespace weft::runtime
