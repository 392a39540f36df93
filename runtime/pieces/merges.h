// runtime/pieces/merges.h: byte pairs for a vocabulary of SentencePiece, which has pieces but no merges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::runtime {

/// Two pieces that make a third one; all are ids.
struct PieceMerge {
  std::int32_t whole, left, right;
};

inline constexpr std::size_t kMostMerges = std::size_t{1} << 23;

/// All pairs of pieces whose texts make the text of a piece, by the whole's id, the shorter left piece first. Pieces
/// with an empty text take no part. Stops after kMostMerges + 1, which is more than a model may have.
std::vector<PieceMerge> piece_merges(const std::vector<std::string>& pieces);

}  // namespace weft::runtime
