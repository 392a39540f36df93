// tests/support/files.h: finds the test data, and makes folders that a test may fill.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>

#include "tests/support/program.h"

namespace weft::test {

/// The path of a file or folder of the project, such as "models/demo". The environment variable WEFT_SOURCE_DIR names
/// the source tree if it is not where the tests were built.
inline std::filesystem::path source_path(const std::string& name) {
  const char* const elsewhere = std::getenv("WEFT_SOURCE_DIR");
  return std::filesystem::path(elsewhere != nullptr ? elsewhere : built_from()) / name;
}

/// The path of a file or folder of tests/data, such as "checkpoint/expected.tsv".
inline std::filesystem::path data_path(const std::string& name) { return source_path("tests/data") / name; }

/// A folder that begins empty. It is deleted with everything in it when this object is destroyed.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "weft-test-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) throw std::runtime_error("cannot create " + pattern);
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, std::string_view text) {
  std::ofstream file(path, std::ios::binary);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

inline std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace weft::test
