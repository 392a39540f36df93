// tests/fuzz/files.h: bytes as a file or a folder, for parsers that open what they read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <system_error>

#include <unistd.h>

namespace weft::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// A folder of this process alone, in memory where the system has such a place; it goes when the process ends well.
inline const std::filesystem::path& folder() {
  static const struct Folder {
    std::filesystem::path path;
    Folder() {
      const std::filesystem::path memory = "/dev/shm";
      path = (std::filesystem::is_directory(memory) ? memory : std::filesystem::temp_directory_path()) /
             ("weft-fuzz-" + std::to_string(getpid()));
      std::filesystem::create_directory(path);
    }
    ~Folder() {
      std::error_code ignored;
      std::filesystem::remove_all(path, ignored);
    }
  } made;
  return made.path;
}

inline std::filesystem::path file_of(std::string_view name, std::string_view bytes) {
  const std::filesystem::path path = folder() / name;
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  return path;
}

}  // namespace weft::fuzz
