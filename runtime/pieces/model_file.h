// runtime/pieces/model_file.h: reads the tokenizer.model of SentencePiece: a message of protocol buffers, as
// sentencepiece_model.proto of github.com/google/sentencepiece defines it. The reader is by hand, because a tokenizer
// needs a dozen fields and every size in it must be checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace weft::runtime {

struct PieceModel {
  enum class Type : std::uint8_t { normal = 1, unknown, control, user_defined, unused, byte };
  enum class Algorithm : std::uint8_t { unigram = 1, bpe, word, character };
  struct Piece {
    std::string text;
    float score = 0;
    Type type = Type::normal;
  };

  std::vector<Piece> pieces;  ///< the place is the id
  // TrainerSpec
  Algorithm algorithm = Algorithm::unigram;
  bool byte_fallback = false, whitespace_as_suffix = false;
  std::int32_t unknown_id = 0, begin_id = 1, end_id = 2;  ///< negative: there is none
  std::string unknown = "<unk>", begin = "<s>", end = "</s>";
  // NormalizerSpec
  std::string charsmap;  ///< the bytes of a Charsmap; empty if nothing is normalised
  bool dummy_prefix = true, removes_extra_spaces = true, escapes_spaces = true;
};

inline constexpr std::size_t kLongestPiece = 1024;  ///< bytes

/// Reads the bytes of a file. Throws DataError: `where`, the byte at which the file is wrong, what was wanted and what
/// was found. The pieces are distinct texts of 1 to kLongestPiece bytes of UTF-8 with finite scores, and there is at
/// least one.
PieceModel read_piece_model(std::string_view bytes, const std::string& where);

}  // namespace weft::runtime
