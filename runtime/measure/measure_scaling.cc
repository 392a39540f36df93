#include "runtime/measure/measure_scaling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/backend/ceilings.h"
#include "kernels/quantised.h"
#include "policy/base/json.h"
#include "runtime/measure/measure_ops.h"

namespace weft::runtime {
namespace {

using kernels::Memory;
using kernels::Stream;
using nlohmann::ordered_json;

constexpr int kScaledDim = 128;  // of heads

/// All ops on some threads, over operands of their own.
class HostOps {
 public:
  struct Case {
    std::string name;
    double bytes;  // that a call moves, at least
    Timer::Queue queue;
  };

  HostOps(int threads, const ScalingSizes& sizes)
      : sizes_(sizes), backend_(kernels::make_cpu_backend({.threads = threads})), bench_(*backend_, Side::host),
        pool_(threads) {
    memory_ = bench_.random(sizes.kv / sizeof(float), DType::f32);
    add("memory_read", double(memory_->bytes()),
        [this](Stream&) { kernels::read_memory(pool_, memory_->data(), memory_->bytes(), 1024); });
    add_rows();
    add_products();
    add_attention();
    add_slots();
    add_sampling();
  }

  const std::vector<Case>& cases() const { return cases_; }
  double seconds(std::size_t i, int count) { return bench_.timer().run(cases_[i].queue, count) / count; }

 private:
  void add(std::string name, double bytes, Timer::Queue queue) {
    cases_.push_back({std::move(name), bytes, std::move(queue)});
  }
  template <class Op> void add_op(std::string name, double bytes, const Op& op) {
    add(std::move(name), bytes, [this, op](Stream& stream) { bench_.ops().run(op, stream); });
  }
  std::byte* numbers(std::int64_t count, DType type = DType::f32) {
    return kept_.emplace_back(bench_.random(static_cast<std::size_t>(count), type))->data();
  }
  View matrix(std::int64_t rows, std::int64_t cols, DType type = DType::f32) {
    return View(numbers(rows * cols, type), type, rows, cols);
  }

  /// Ops on single rows.
  void add_rows() {
    const int rows = sizes_.rows, width = sizes_.width;
    const double bytes = double(rows) * width * sizeof(float);
    const View x = matrix(rows, width), y = matrix(rows, width), scale = matrix(1, width),
               half = matrix(rows, width, DType::f16), table = matrix(2 * rows, width, DType::f16);
    for (int i = 0; i < rows; ++i) ids_.push_back(i * 7 % (2 * rows)), position_.push_back(i);
    for (int i = 0; i < kScaledDim / 2; ++i)
      frequencies_.push_back(std::pow(10000.0f, -2 * static_cast<float>(i) / kScaledDim));
    add_op("convert", 1.5 * bytes, kernels::Convert{x, half});
    add_op("add", 3 * bytes, kernels::Add{y, x});
    add_op("scale", 2 * bytes, kernels::Scale{y, 1, 30});
    add_op("multiply", 3 * bytes, kernels::Multiply{y, scale_like(y)});
    add_op("gather", 1.5 * bytes, kernels::Gather{table, ids_, {}, y});
    add_op("layer_norm", 2 * bytes, kernels::LayerNorm{x, scale, scale, y});
    add_op("take_heads", 2 * bytes, kernels::TakeHeads{.in = x, .head_dim = kScaledDim, .out = y});
    add_op("rotary", 2 * bytes, kernels::Rotary{y, position_, frequencies_, kScaledDim});
    add_op("hadamard", 2 * bytes, kernels::Hadamard{y, kScaledDim});
  }
  /// Ones in the shape of y, so that products stay as they are.
  ConstView scale_like(const View& y) {
    const View ones = matrix(y.rows, y.cols);
    std::fill_n(ones.as<float>(), y.rows * y.cols, 1.0f);
    return ones;
  }

  void add_products() {
    const int width = sizes_.width;
    for (const DType type : {DType::f32, DType::f16, DType::bf16, DType::i8, DType::i4}) {
      const std::size_t matrix_bytes = is_quantised(type)
                                           ? static_cast<std::size_t>(QuantisedLayout{type, 64, width, width}.bytes())
                                           : bytes_of(type, std::int64_t{width} * width);
      Memory& weights = *kept_.emplace_back(bench_.allocate(std::max(sizes_.kv, matrix_bytes)));
      if (is_quantised(type)) bench_.fill_groups({weights.data(), weights.bytes()}, type);
      else bench_.fill(weights.data(), weights.bytes() / size_of(type), type);
      for (const int rows : {1, sizes_.rows}) {
        auto work = std::make_shared<LinearWork>(bench_, type, rows, width, width,
                                                 std::span(weights.data(), weights.bytes()), false);
        add(std::string("linear_") + name_of(type) + ", " + std::to_string(rows) + (rows == 1 ? " row" : " rows"),
            double(matrix_bytes), [work](Stream& stream) { work->queue(stream); });
      }
      if (is_quantised(type)) add_levels(type, weights.data());
    }
  }
  /// What is done with a matrix when it is loaded, or unpacked.
  void add_levels(DType type, std::byte* levels) {
    const int width = sizes_.width;
    const QuantisedLayout layout{type, 64, width, width};
    ConstView weight(levels, type, width, width);
    weight.group = layout.group;
    const double numbers = double(width) * width;
    add_op(std::string("unpack_") + name_of(type), 2 * numbers + double(layout.bytes()),
           kernels::UnpackWeights{weight, matrix(width, width, DType::f16)});
    const View from = matrix(width, width, DType::f16);
    std::byte* const to = kept_.emplace_back(bench_.allocate(static_cast<std::size_t>(layout.bytes())))->data();
    add(std::string("quantise_") + name_of(type), 2 * numbers + double(layout.bytes()), [=, this](Stream&) {
      constexpr std::int64_t rows = QuantisedLayout::kTileRows;
      pool_.run(layout.tiles(), [&](std::int64_t tile, int) {
        kernels::quantise_tile(layout, from.slice(tile * rows, std::min(rows, from.rows - tile * rows)),
                               to + tile * layout.tile_bytes());
      });
    });
  }

  void add_attention() {
    auto prefill = std::make_shared<PrefillWork>(bench_, sizes_.heads, kScaledDim, sizes_.prompt, 1);
    const double bytes = 3.0 * sizes_.prompt * sizes_.heads * kScaledDim * sizeof(float);
    add("prefill_attention", bytes, [prefill](Stream& stream) { prefill->attend(stream); });
    add("column_sums", bytes, [prefill](Stream& stream) { prefill->column_sums(stream); });
    for (const DType type : {DType::f16, DType::i8, DType::i4}) {
      auto decode = std::make_shared<DecodeWork>(bench_, sizes_.heads, sizes_.slots, kScaledDim, type, sizes_.kv);
      add(std::string("decode_attention_") + name_of(type), decode->bytes(),
          [decode](Stream& stream) { decode->queue(stream); });
    }
  }

  /// Ops that write or move what the slots hold.
  void add_slots() {
    const int prompt = sizes_.prompt, slots = std::min(sizes_.slots, prompt), heads = sizes_.heads;
    const std::int64_t cols = std::int64_t{heads} * kScaledDim;
    shape_ = {.sequences = 1, .kv_heads = heads, .slots = slots, .head_dim = kScaledDim};
    cache_ = bench_.full_cache(shape_);
    offsets_ = {0, prompt};
    keep_ = {kernels::Keep{(slots - 1) / 2, slots - 1 - (slots - 1) / 2, 0, 0}};
    kernels::KeepPrompt keep;
    keep.k = keep.v = matrix(prompt, cols, DType::f16);
    keep.score = matrix(heads, prompt);
    keep.offsets = offsets_, keep.sequence = first_, keep.keep = keep_, keep.slots = shape_.view(cache_->data());
    keep.scoring = kernels::Scoring::attention;
    const double bytes = 2.0 * slots * double(cols) * size_of(DType::f16);
    add_op("keep_prompt", 2 * bytes, keep);
    next_ = {prompt};
    const kernels::Reposition move{
        .sequence = first_, .next = next_, .frequencies = frequencies_, .slots = keep.slots, .home = {}};
    add("reposition", bytes, [this, move](Stream& stream) {
      ++next_.front();  // so that every key turns
      bench_.ops().run(move, stream);
    });
  }

  void add_sampling() {
    constexpr int rows = 32;
    const View logits = matrix(rows, sizes_.vocab);
    const double bytes = double(rows) * sizes_.vocab * sizeof(float);
    params_.assign(rows, {.temperature = 0.8f, .top_p = 0.9f});
    token_.assign(rows, 0), chosen_.assign(rows, 0), logprob_.assign(rows, 0), greedy_.assign(rows, 0);
    log_sum_.assign(rows, 0);
    add_op("sample", bytes, kernels::Sample{logits, params_, chosen_});
    add_op("log_probs", bytes, kernels::LogProbs{logits, token_, logprob_, greedy_});
    for (int i = 0; i < rows; ++i) asked_.push_back(i);
    add_op("top_log_probs", bytes, kernels::TopLogProbs{logits, asked_, 1, chosen_, logprob_, log_sum_});
  }

  const ScalingSizes& sizes_;
  std::unique_ptr<kernels::Backend> backend_;
  Workbench bench_;
  kernels::ThreadPool pool_;  // for what is no op
  std::vector<std::unique_ptr<Memory>> kept_;
  std::unique_ptr<Memory> memory_, cache_;
  offload::KvShape shape_;
  std::vector<std::int32_t> ids_, position_, offsets_, first_{0}, next_, token_, chosen_, asked_;
  std::vector<float> frequencies_, logprob_;
  std::vector<double> log_sum_;
  std::vector<std::uint8_t> greedy_;
  std::vector<kernels::Keep> keep_;
  std::vector<kernels::SampleParams> params_;
  std::vector<Case> cases_;
};

}  // namespace

ordered_json measure_scaling(const ScalingSizes& sizes) {
  HostOps one(1, sizes), two(2, sizes);
  ordered_json report = ordered_json::object();
  double memory = 0;
  for (std::size_t i = 0; i < one.cases().size(); ++i) {
    two.seconds(i, 1);
    const double once = std::max(1e-9, one.seconds(i, 1));
    const auto count = static_cast<int>(std::ceil(sizes.seconds / once));
    double single = std::numeric_limits<double>::infinity(), both = single;
    for (int repetition = 0; repetition < sizes.repetitions; ++repetition) {
      single = std::min(single, one.seconds(i, count));
      both = std::min(both, two.seconds(i, count));
    }
    const double moved = one.cases()[i].bytes / both;
    if (i == 0) memory = moved;
    policy::object_at(report, one.cases()[i].name) = {{"one_thread_seconds", single},
                                                      {"two_threads_seconds", both},
                                                      {"times", single / both},
                                                      {"of_memory_read", moved / memory}};
  }
  return report;
}

}  // namespace weft::runtime
