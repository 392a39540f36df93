// runtime/pieces/unigram.h: the Unigram model of SentencePiece (Kudo, "Subword Regularization", 2018), as Hugging
// Face's tokenizers runs it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/pieces/text_index.h"

namespace weft::runtime {

/// Cuts a text into the pieces whose scores, log-probabilities, have the largest sum. Const calls may run on many
/// threads at once.
class Unigram {
 public:
  /// Pieces by id with their scores, which must be finite.
  Unigram(std::vector<std::string> pieces, std::vector<double> scores, std::optional<std::int32_t> unknown);

  /// A part of the text: `id` is that of a piece, or -1 if no piece has that text.
  struct Part {
    std::string_view text;
    std::int32_t id = -1;
  };
  /// Memory for a cut. Keep one per thread and pass it again.
  struct Scratch {
    struct Node {
      double score = 0;             // of the best way here
      std::size_t from = SIZE_MAX;  // where its last piece begins; SIZE_MAX if there is no way here
      std::int32_t id = -1;
    };
    std::vector<Node> nodes;
  };
  /// The best cut into pieces. Characters in a row that are in no piece are one part. Takes time in proportion to the
  /// text times the longest piece. Of equal sums the one with the longer last piece wins.
  void cut(std::string_view text, std::vector<Part>& parts, Scratch& scratch) const;

 private:
  TextIndex pieces_;
  std::vector<double> scores_;
  double unknown_score_ = 0;
  std::int32_t unknown_ = -1;
};

}  // namespace weft::runtime
