// tests/support/gguf.h: GGUF files made of parts, right or wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "tests/support/files.h"

namespace weft::test {

template <class T> std::string bytes_of_number(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline std::string gguf_text(std::string_view text) {
  return bytes_of_number(std::uint64_t{text.size()}) + std::string(text);
}

/// A file whose metadata and tensors are added one by one.
struct GgufFile {
  std::uint32_t version = 3;
  std::string metadata, infos, data;
  std::uint64_t entries = 0, tensors = 0;
  std::size_t alignment = 32;  // of the tensors, whatever the metadata says

  GgufFile& raw(std::string_view key, std::uint32_t type, const std::string& value) {
    metadata += gguf_text(key) + bytes_of_number(type) + value;
    ++entries;
    return *this;
  }
  GgufFile& integer(std::string_view key, std::uint32_t value) { return raw(key, 4, bytes_of_number(value)); }
  GgufFile& number(std::string_view key, float value) { return raw(key, 6, bytes_of_number(value)); }
  GgufFile& boolean(std::string_view key, bool value) { return raw(key, 7, std::string(1, value ? '\1' : '\0')); }
  GgufFile& text(std::string_view key, std::string_view value) { return raw(key, 8, gguf_text(value)); }
  GgufFile& texts(std::string_view key, const std::vector<std::string>& values) {
    std::string list = bytes_of_number(std::uint32_t{8}) + bytes_of_number(std::uint64_t{values.size()});
    for (const std::string& value : values) list += gguf_text(value);
    return raw(key, 9, list);
  }
  GgufFile& integers(std::string_view key, const std::vector<std::int32_t>& values) {
    std::string list = bytes_of_number(std::uint32_t{5}) + bytes_of_number(std::uint64_t{values.size()});
    for (const std::int32_t value : values) list += bytes_of_number(value);
    return raw(key, 9, list);
  }

  /// `sizes` as in the file: columns first.
  GgufFile& tensor_at(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                      std::uint64_t offset) {
    infos += gguf_text(name) + bytes_of_number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) infos += bytes_of_number(size);
    infos += bytes_of_number(type) + bytes_of_number(offset);
    ++tensors;
    return *this;
  }
  GgufFile& tensor(std::string_view name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                   const std::string& bytes) {
    tensor_at(name, sizes, type, data.size());
    data += bytes;
    pad(data);
    return *this;
  }

  std::string bytes() const {
    std::string file =
        "GGUF" + bytes_of_number(version) + bytes_of_number(tensors) + bytes_of_number(entries) + metadata + infos;
    pad(file);
    return file + data;
  }
  void pad(std::string& to) const { to.resize((to.size() + alignment - 1) / alignment * alignment); }
};

/// The metadata of a tiny llama, and its embedding.
inline GgufFile tiny_gguf(std::string_view architecture = "llama") {
  const std::string prefix = std::string(architecture) + ".";
  GgufFile file;
  file.text("general.architecture", architecture)
      .integer(prefix + "block_count", 1)
      .integer(prefix + "context_length", 64)
      .integer(prefix + "embedding_length", 32)
      .integer(prefix + "feed_forward_length", 32)
      .integer(prefix + "attention.head_count", 2)
      .number(prefix + "attention.layer_norm_rms_epsilon", 1e-5f)
      .tensor("token_embd.weight", {32, 8}, 0, std::string(32 * 8 * 4, '\0'));
  return file;
}

/// A file that lies in a folder of its own.
struct WrittenGguf {
  TemporaryFolder folder;
  std::filesystem::path path = folder / "model.gguf";
  explicit WrittenGguf(const std::string& bytes) { write_text(path, bytes); }
  runtime::Gguf read() const { return runtime::read_gguf(runtime::InputFile(path)); }
};

}  // namespace weft::test
