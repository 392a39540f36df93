// runtime/engine/places.h: the places of a block in one run: which sequences take part in a sweep, and which wait.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "policy/layout/rolling.h"
#include "runtime/engine/batch_rows.h"
#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// Sequences that take the places of finished ones. `next` replaces a finished sequence; it is called on the device
/// lane's thread, at most `count` times.
struct Waiting {
  std::int64_t count = 0;
  std::function<void(Sequence& place)> next = {};
  /// Whether the next one has already begun. Such a sequence comes with its KV and takes its place between two sweeps.
  std::function<bool()> next_has_begun = {};
  /// Whether the next one has the same prompt as `place`, which has just been filled.
  std::function<bool(const Sequence& place)> next_shares = {};
};

/// Counts that one sweep of a batch adds to a run's totals.
struct RowCounts {
  std::int64_t prompt_tokens = 0;  ///< tokens of prompts that have rows
  std::int64_t shared_tokens = 0;  ///< tokens of prompts that are computed with another's; not in prompt_tokens
};

/// Belongs to one run of one block. gather() and finished() are for the device lane's thread, the rest for any thread.
class Places {
 public:
  struct Shape {
    int gpu_batch_size = 1, num_gpu_batches = 1;
    std::int64_t admitted_tokens = 0;       ///< prompt tokens that may join a later sweep of a batch
    std::int64_t first_tokens = INT64_MAX;  ///< prompt tokens that may begin in the first sweep of a batch, if not one
                                            ///< prompt has more
    bool last_token_only = false;           ///< prompts have one row, since their keys and values are made up
    std::int64_t prefix_tokens = 0;         ///< most tokens of a shared prefix; 0: prefixes are not shared
    std::int64_t prefix_step = 1;           ///< Backend::prefix_step()
    std::int64_t observation = 0;           ///< last rows of a prompt that it does not share (Retention::observation)
    policy::Rolling rolling = {};           ///< rule for rolled positions
    bool finds_alike = false;               ///< equal beginnings of prompts have the same slots (BatchRows::alike)
    bool holds_prefixes = false;            ///< slots have what attention reads of a prefix: floats, nothing evicted
  };
  /// `block` has at most as many sequences as there are places, none finished. It and `waiting` must outlive this.
  Places(const Shape& shape, std::span<Sequence> block, const Waiting& waiting);

  /// The sequences of a batch, finished ones too.
  std::span<Sequence> batch(int batch) const;
  const BatchRows& rows(int batch) const { return rows_[batch]; }

  /// False once all sequences of the batch have finished and no others wait for their places.
  bool alive(int batch) const { return waiting_count_ > 0 || live_[batch] > 0; }
  bool any_alive() const { return waiting_count_ > 0 || all_live_ > 0; }
  bool any_waiting() const { return waiting_count_ > 0; }
  /// Sweeps that the sequences with places still need.
  std::int64_t sweeps_left() const;

  /// Whether a waiting sequence has already begun and there is a place for it.
  bool can_place_begun() const;
  /// Gives free places of the block to such sequences, between two sweeps. Returns the places.
  std::vector<std::size_t> place_begun();

  /// Makes the rows of the batch's next sweep: first sequences that have begun, then those that begin. Prompts that are
  /// more than may begin wait in their places. Except in the block's first sweep, waiting sequences get the places of
  /// finished ones before that, and a sequence whose prompt begins as others do may wait in its place until more of
  /// them have one, so that they share a prefix.
  RowCounts gather(int batch, bool prefill);
  /// One sequence of the batch has finished.
  void finished(int batch);

 private:
  /// Tokens whose keys and values the slots of a place have.
  struct Held {
    std::int32_t place = -1;
    std::int64_t tokens = 0;
  };
  /// Neighbours that begin alike, or a sequence by itself.
  struct Group {
    std::size_t first, last;
    std::int64_t lengths;  // of their prompts together
    std::int64_t common;   // tokens that all prompts begin with
    Held held;             // of the first one's tokens
  };
  /// The prefix that a group shares, which slots have or which it computes (Held::place -1), if any, and its rows then.
  struct Shared {
    Held prefix;
    std::int64_t rows = 0;
  };
  static Shared shared(const Group& group);
  /// Sequences that begin in a sweep, in order: places with a prompt of their own, and those with the same after each.
  struct Beginning {
    std::vector<std::int32_t> own;
    std::vector<std::vector<std::int32_t>> alike;
  };
  void admit(int batch);
  bool shares_prefixes() const { return shape_.prefix_tokens > 0 && !shape_.last_token_only; }
  /// The places of the sequences that begin in this sweep. Those that may share a prefix are neighbours.
  std::vector<std::int32_t> beginning(int batch, bool prefill);
  /// Whether sequences that could begin wait for others with the same prefix.
  bool hold(int batch, std::int64_t sharers, std::int64_t tokens);
  std::size_t first_place(int batch) const {
    return static_cast<std::size_t>(batch) * static_cast<std::size_t>(shape_.gpu_batch_size);
  }
  /// Most of the first tokens of `sequence`, up to `most`, that the slots of one of the batch's places have, before any
  /// is written whose `turn`, if there are turns, comes before `now`.
  Held held(int batch, const Sequence& sequence, std::int64_t most, std::span<const std::size_t> turn = {},
            std::size_t now = 0) const;
  /// Groups of sequences that begin, in their order, as many as do so in this sweep.
  std::vector<Group> groups(int batch, const Beginning& beginning, bool prefill) const;
  /// Finds begun sequences whose prompts begin alike.
  void find_alike(BatchRows& rows, std::span<const Sequence> all) const;
  void add_rows(BatchRows& rows, std::int32_t place, const Sequence& sequence, std::int64_t from) const;
  void fill(Sequence& place, int batch);

  const Shape shape_;
  const std::span<Sequence> block_;
  const Waiting& waiting_;
  std::atomic<std::int64_t> waiting_count_;
  std::vector<BatchRows> rows_;  // [batches]
  /// [block] Of the prompt whose keys and values each place's slots have, the tokens with which others begin too.
  std::vector<std::vector<std::int32_t>> written_;
  std::vector<std::int64_t> waited_;             // [batches] places in which sequences waited, summed over sweeps
  std::vector<std::atomic<std::int64_t>> live_;  // [batches] sequences not finished
  std::atomic<std::int64_t> all_live_;
};

}  // namespace weft::runtime
