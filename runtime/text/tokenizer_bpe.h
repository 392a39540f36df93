// runtime/text/tokenizer_bpe.h: the merge loop of byte-pair encoding.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace weft::runtime {

/// The pairs of neighbouring tokens that become one, in order of precedence. Const calls may run on many threads at
/// once.
class BpeMerges {
 public:
  /// Memory for the loop. Keep one per thread and pass it again, so that nothing is allocated per word.
  struct Scratch {
    struct Symbol {
      std::int32_t id, previous, next;  // -1: merged away, or no such neighbour
    };
    struct Candidate {
      std::uint32_t rank, position;
      std::int32_t result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  /// Adds a merge of the pair into `result`. Earlier merges take precedence. Returns false, and changes nothing, if the
  /// pair has a merge already.
  bool add(std::int32_t left, std::int32_t right, std::int32_t result);
  std::size_t size() const { return merges_.size(); }

  /// Merges ids[from, end) in place and shortens `ids`; n ids take O(n log n). Ties go to the leftmost pair, as in
  /// Hugging Face's tokenizers. Throws CapacityError if there are 2^31 ids or more.
  void apply(std::vector<std::int32_t>& ids, std::size_t from, Scratch& scratch) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t result;
  };
  struct Mix {
    std::size_t operator()(std::uint64_t pair) const {
      pair *= 0x9E3779B97F4A7C15u;  // neighbouring ids must not fall into neighbouring buckets
      return pair ^ pair >> 32;
    }
  };

  static std::uint64_t key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  void propose(std::size_t position, Scratch& scratch) const;

  std::unordered_map<std::uint64_t, Merge, Mix> merges_;
};

}  // namespace weft::runtime
