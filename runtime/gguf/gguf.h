// runtime/gguf/gguf.h: the strict reader of a GGUF file's header, after docs/gguf.md of github.com/ggml-org/ggml:
// little-endian, version 2 or 3. The header says what the model is and where its tensors lie.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "kernels/error.h"
#include "runtime/base/file_state.h"
#include "runtime/base/input_file.h"
#include "runtime/gguf/block_format.h"

namespace weft::runtime {

// clang-format off
enum class GgufFault : std::uint8_t {
  wrong_magic, bad_version, too_short, too_large,                                  // the file, and counts in it
  bad_key, duplicate_key, bad_value_type, bad_value, bad_alignment,                // metadata
  bad_name, duplicate_tensor, bad_shape, bad_type, bad_offset, past_end, overlap,  // tensors
  bad_parts,                                                                       // a model in several files
  bad_metadata, bad_tensor,                                                        // against what a model needs
  changed,                                                                         // since the header was read
};
constexpr const char* name_of(GgufFault fault) {
  constexpr std::array names{
      "wrong-magic", "bad-version", "too-short", "too-large",
      "bad-key", "duplicate-key", "bad-value-type", "bad-value", "bad-alignment",
      "bad-name", "duplicate-tensor", "bad-shape", "bad-type", "bad-offset", "past-end", "overlap",
      "bad-parts", "bad-metadata", "bad-tensor", "changed"};
  static_assert(names.size() == static_cast<std::size_t>(GgufFault::changed) + 1);
  return names[static_cast<std::size_t>(fault)];
}
// clang-format on

/// A DataError with its fault. The message begins with the file's path.
struct GgufError : DataError {
  GgufError(GgufFault f, const std::string& message) : DataError(message), fault(f) {}
  GgufFault fault;
};

/// A value of the metadata: a whole number (of any width, signed or not), a float, a bool, a text, or a list of these,
/// in which bools are numbers.
using GgufValue = std::variant<std::int64_t, double, bool, std::string, std::vector<std::int64_t>, std::vector<double>,
                               std::vector<std::string>>;

struct GgufTensor {
  std::string name;
  std::vector<std::int64_t> shape;  ///< the outermost size first, as in PyTorch: [rows, cols]
  const BlockFormat* format = nullptr;
  std::uint64_t offset = 0, bytes = 0;  ///< in the file
};

inline constexpr std::uint64_t kDefaultAlignment = 32;

/// A file's header.
struct Gguf {
  std::filesystem::path path;
  std::map<std::string, GgufValue> metadata;
  std::vector<GgufTensor> tensors;              ///< in the file's order
  std::uint64_t header_bytes = 0;               ///< all before the padding in front of the tensors
  std::uint64_t alignment = kDefaultAlignment;  ///< offsets of tensors among each other are multiples of it
  FileState state = {};                         ///< the file when its header was read

  bool has(const std::string& key) const { return metadata.contains(key); }
  /// The value of a key, which must have this type; `fallback` if there is no such key. Throws GgufError.
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high) const;
  std::int64_t integer(const std::string& key, std::int64_t low, std::int64_t high, std::int64_t fallback) const;
  double number(const std::string& key) const;
  bool boolean(const std::string& key, bool fallback) const;
  const std::string& text(const std::string& key) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  /// The list of a key; nullptr if there is no such key.
  const std::vector<std::string>* texts(const std::string& key) const;
  const std::vector<std::int64_t>* integers(const std::string& key) const;
  const std::vector<double>* numbers(const std::string& key) const;

  [[noreturn]] void refuse(GgufFault fault, const std::string& what) const;
};

/// Reads the header. Every length, count and offset is checked against the file before anything is allocated for it;
/// memory is at most a small multiple of the header's bytes. A later part of several is read beside the first part's
/// alignment, which it may have without saying so. Throws GgufError or IoError.
Gguf read_gguf(const InputFile& file, std::uint64_t alignment_of_first = kDefaultAlignment);

/// Whether a file begins as a GGUF file does; false if it cannot be read.
bool is_gguf(const std::filesystem::path& path);

/// The tensors that hold numbers by which the frequencies of rotary embeddings are divided: for all contexts, and for
/// short and long ones.
inline constexpr const char *kGgufDivisors = "rope_freqs.weight", *kGgufShort = "rope_factors_short.weight",
                            *kGgufLong = "rope_factors_long.weight";
inline constexpr std::array kGgufFactors{kGgufDivisors, kGgufShort, kGgufLong};

/// A model in one file or in several parts. The first has the metadata of all.
struct GgufModel {
  std::vector<Gguf> parts;
  std::map<std::string, std::vector<float>> factors;  ///< the tensors of kGgufFactors that it has

  /// Opens `path`, and with it all other parts if its metadata says that there are several; it must be the first.
  /// Throws GgufError or IoError.
  static GgufModel open(const std::filesystem::path& path);
  const Gguf& first() const { return parts.front(); }
  const GgufTensor* tensor(const std::string& name) const;  ///< null if no part has it
};

}  // namespace weft::runtime
