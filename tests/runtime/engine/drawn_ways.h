// tests/runtime/engine/drawn_ways.h: ways to run requests, drawn by chance from a product of all parameters.
#pragma once

#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "policy/layout/policy.h"

namespace weft::test {

using policy::Fractions;

constexpr int kMostBatches = 8, kMostInBatch = 16;

/// A number for each use: the same for the same seed on every machine.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : random_(seed) {}
  int pick(int low, int high) { return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1)); }
  /// Shares of the three tiers.
  Fractions fractions() {
    Fractions f{{double(pick(1, 100)), double(pick(1, 100)), double(pick(1, 100))}};
    const double sum = f.device() + f.host() + f.disk();
    for (double& value : f.of) value /= sum;
    return f;
  }
  template <class T> void shuffle(std::vector<T>& list) {
    for (std::size_t i = list.size(); i > 1; --i)
      std::swap(list[i - 1], list[static_cast<std::size_t>(pick(0, static_cast<int>(i) - 1))]);
  }

 private:
  std::mt19937_64 random_;
};

/// The values of one parameter, dealt like cards: every value once in an order by chance, then again.
template <class T> class Deck {
 public:
  Deck(std::vector<T> values, Dice& dice) : values_(std::move(values)), dice_(dice) {}
  T draw() {
    if (left_.empty()) left_ = values_, dice_.shuffle(left_);
    T value = left_.back();
    left_.pop_back();
    return value;
  }

 private:
  std::vector<T> values_, left_;
  Dice& dice_;
};

/// One way to run the same requests.
struct Way {
  Fractions weights, kv, activations;
  int gpu_batch_size = 1, num_gpu_batches = 1;
  double attention_on_host = 0;
  double experts_on_host = 0;  ///< of a model that has experts
  bool overlap = false, continuous = false;
  int threads = 1;
  std::string engine = "auto";
  bool separate_device = false;
  bool in_order = false;  ///< requests as they come, so that those with one prompt are neighbours; else shuffled
  bool shares = false;    ///< prefixes are computed once
  int tokens = 0;         ///< Policy::max_batched_tokens; 0: as it is by itself

  std::string text() const {
    std::ostringstream out;
    for (const Fractions& f : {weights, kv, activations})
      out << f.device() << "/" << f.host() << "/" << f.disk() << " ";
    out << gpu_batch_size << "x" << num_gpu_batches << " host attends " << attention_on_host << " computes "
        << experts_on_host << " " << (overlap ? "overlap " : "serial ") << (continuous ? "continuous " : "static ")
        << threads << " " << engine << (separate_device ? " separate device" : "") << (in_order ? " in order" : "")
        << (shares ? " shares prefixes" : "");
    if (tokens > 0) out << " " << tokens << " tokens at once";
    return out.str();
  }
};

/// Deals the ways to run: a placement is all on one tier, on all three, or by chance.
class Ways {
 public:
  explicit Ways(Dice& dice)
      : dice_(dice), weights_(placements(), dice), kv_(placements(), dice), activations_(placements(), dice),
        size_({1, 2, 3, 4, 6, 8, kMostInBatch}, dice), batches_({1, 2, 3, 4, kMostBatches}, dice),
        on_host_({0.0, 0.5, 1.0, 1 / 3.0}, dice), experts_({0.0, 0.5, 1.0, 0.25}, dice), flags_(combinations(), dice),
        engine_({"io_uring", "threads", "buffered"}, dice), tokens_({0, 64, 0, 80}, dice) {}

  Way draw() {
    const int flags = flags_.draw();
    return {.weights = fractions(weights_),
            .kv = fractions(kv_),
            .activations = fractions(activations_),
            .gpu_batch_size = size_.draw(),
            .num_gpu_batches = batches_.draw(),
            .attention_on_host = on_host_.draw(),
            .experts_on_host = experts_.draw(),
            .overlap = (flags & 1) != 0,
            .continuous = (flags & 2) != 0,
            .threads = (flags & 4) != 0 ? 2 : 1,
            .engine = engine_.draw(),
            .separate_device = (flags & 8) != 0,
            .in_order = (flags & 16) != 0,
            .shares = (flags & 32) != 0,
            .tokens = tokens_.draw()};
  }

 private:
  using Placement = std::optional<Fractions>;
  static std::vector<Placement> placements() {
    return {Fractions{{1, 0, 0}}, Fractions{{0, 1, 0}}, Fractions{{0, 0, 1}}, Fractions{{0.34, 0.33, 0.33}}, {}};
  }
  static std::vector<int> combinations() {
    std::vector<int> all(64);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  Fractions fractions(Deck<Placement>& deck) {
    const Placement drawn = deck.draw();
    return drawn ? *drawn : dice_.fractions();
  }

  Dice& dice_;
  Deck<Placement> weights_, kv_, activations_;
  Deck<int> size_, batches_;
  Deck<double> on_host_, experts_;
  Deck<int> flags_;
  Deck<std::string> engine_;
  Deck<int> tokens_;
};

}  // namespace weft::test
