// runtime/pieces/charsmap.h: the normalisation that SentencePiece compiles into a model (precompiled_charsmap): a
// double array of characters and what stands for them (darts-clone), as Hugging Face's Precompiled normalizer applies
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

/// Const calls may run on many threads at once.
class Charsmap {
 public:
  /// Reads the bytes: the size of the array, its units of 4 bytes, then texts that each end with a zero. Throws
  /// UsageError, which says what is wrong and at which byte.
  explicit Charsmap(std::string_view bytes);

  /// The text with each grapheme of at most 5 bytes replaced, or else each of its characters. As in Hugging Face's
  /// library, what begins with an entry is replaced as a whole.
  std::string apply(std::string_view utf8) const;

 private:
  std::optional<std::string_view> replacement(std::string_view text) const;
  void apply_to_grapheme(std::string_view grapheme, std::string& out) const;

  std::vector<std::uint32_t> units_;
  std::string texts_;
};

}  // namespace weft::runtime
