// tests/support/attention.h: attention of prompts in fp64, computed straight from its definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace weft::test {

/// Ragged prompts: offsets [sequences + 1] as in PrefillAttention.
struct PromptShape {
  int heads, kv_heads, head_dim;
  std::vector<std::int32_t> offsets;
  int tokens() const { return offsets.back(); }
  int group() const { return heads / kv_heads; }
};

struct PromptResult {
  std::vector<double> out;  // [tokens, heads * head_dim]
  std::vector<double> lse;  // [heads, tokens]
  // [kv_heads, tokens]: the sum and the largest of a token's weights over the last `window` rows; 0: over all rows
  std::vector<double> score, largest;
};

/// A cap and sink logits: see PrefillAttention.
struct LogitShape {
  float cap = 0;
  std::vector<float> sink_logits = {};
  double capped(double logit) const {
    return cap > 0 ? static_cast<double>(cap) * std::tanh(logit / static_cast<double>(cap)) : logit;
  }
  /// The share of a head's sink logit in the sum of exp(logit - max).
  double of_sink(int head, double max) const {
    if (sink_logits.empty()) return 0;
    return std::exp(static_cast<double>(sink_logits[static_cast<std::size_t>(head)]) - max);
  }
};

/// `window`: ColumnSums::observation. `sliding`: PrefillAttention::window.
inline PromptResult attend_in_fp64(const PromptShape& s, const std::vector<float>& q, const std::vector<float>& k,
                                   const std::vector<float>& v, double scale, int window, int sliding = 0,
                                   const LogitShape& logits = {}) {
  const int tokens = s.tokens(), d = s.head_dim, q_cols = s.heads * d, kv_cols = s.kv_heads * d;
  PromptResult r{std::vector<double>(static_cast<std::size_t>(tokens * q_cols)),
                 std::vector<double>(static_cast<std::size_t>(s.heads * tokens)),
                 std::vector<double>(static_cast<std::size_t>(s.kv_heads * tokens)),
                 std::vector<double>(static_cast<std::size_t>(s.kv_heads * tokens))};
  const auto at = [](auto& matrix, int row, int cols, int col) -> auto& {
    return matrix[static_cast<std::size_t>(row) * static_cast<std::size_t>(cols) + static_cast<std::size_t>(col)];
  };
  for (std::size_t n = 0; n + 1 < s.offsets.size(); ++n)
    for (int h = 0; h < s.heads; ++h)
      for (int i = s.offsets[n]; i < s.offsets[n + 1]; ++i) {
        const int g = h / s.group();
        const int begin = sliding > 0 ? std::max(s.offsets[n], i - sliding + 1) : s.offsets[n];
        std::vector<double> p;
        double max = -INFINITY, sum = 0;
        for (int j = begin; j <= i; ++j) {
          double dot = 0;
          for (int c = 0; c < d; ++c)
            dot += static_cast<double>(at(q, i, q_cols, h * d + c)) * static_cast<double>(at(k, j, kv_cols, g * d + c));
          p.push_back(logits.capped(dot * scale));
          max = std::max(max, p.back());
        }
        for (double& x : p) sum += x = std::exp(x - max);
        sum += logits.of_sink(h, max);
        at(r.lse, h, tokens, i) = max + std::log(sum);
        for (int j = begin; j <= i; ++j) {
          const double weight = p[static_cast<std::size_t>(j - begin)] / sum;
          if (window == 0 || i >= s.offsets[n + 1] - window) {
            at(r.score, g, tokens, j) += weight;
            at(r.largest, g, tokens, j) = std::max(at(r.largest, g, tokens, j), weight);
          }
          for (int c = 0; c < d; ++c)
            at(r.out, i, q_cols, h * d + c) += weight * static_cast<double>(at(v, j, kv_cols, g * d + c));
        }
      }
  return r;
}

}  // namespace weft::test
