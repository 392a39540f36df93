// What kernels ask of memory and of tensor cores, counted as they run by nvcc's PTX (ptx.h).
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <string>

#include "cusim.h"
#include "kernels/quantised.h"
#include "ptx.h"
#include "tests/support/numbers.h"
#include "tests/support/slot_arrays.h"

using namespace weft;
using namespace weft::test;

namespace {

const Place& simulated_gpu() {
  return **std::find_if(every_place().begin(), every_place().end(), [](const Place* place) { return !place->on_host; });
}

/// False, and said, where kernels are not PTX: then nothing is counted.
bool counts() {
  if (cusim::config().ptx.empty()) WARN("skipped: without CUSIM_PTX nothing is counted");
  return !cusim::config().ptx.empty();
}

/// What one op costs, of the kernels whose names begin so, their namespaces aside.
template <class Op> cusim::PtxCounts cost_of(const Op& op, const std::string& kernel) {
  cusim::config().ptx_counts = true;
  cusim::clear_ptx_counts();
  simulated_gpu().run(op);
  cusim::config().ptx_counts = false;
  cusim::PtxCounts sum;
  for (const auto& [name, counted] : cusim::ptx_counts()) {
    UNSCOPED_INFO(name);
    if (name.find("::" + kernel + "<") == std::string::npos) continue;
    sum.launches += counted.launches, sum.tensor_operations += counted.tensor_operations;
    sum.global_requests += counted.global_requests, sum.global_bytes += counted.global_bytes;
    sum.shared_passes += counted.shared_passes, sum.least_passes += counted.least_passes;
  }
  INFO(kernel);
  REQUIRE(sum.launches > 0);
  return sum;
}

/// Of 16 bytes by each of a warp's lanes, 512 are the most; of single floats it asks for 128.
double bytes_a_request(const cusim::PtxCounts& c) { return double(c.global_bytes) / double(c.global_requests); }

/// Turing has half as many products in an instruction.
std::uint64_t instructions(std::uint64_t tiles) { return cusim::config().architecture < 80 ? 2 * tiles : tiles; }

constexpr int kRows = 4, kCols = 2048;

}  // namespace

TEST_CASE("costs: rows are rounded, finished and normalised by words of 16 bytes", "[gpu][costs]") {
  if (!counts()) return;
  const Place& gpu = simulated_gpu();
  constexpr int out_cols = 2048;
  const Array x(gpu, normal(kRows * kCols, 1), kRows, kCols), out(gpu, kRows, out_cols),
      weight(gpu, normal(std::int64_t{out_cols} * kCols, 2), out_cols, kCols, DType::f16),
      bias(gpu, normal(out_cols, 3), 1, out_cols, DType::f16);
  // No epilogue has this activation.
  const kernels::Linear linear{
      .x = x, .weight = weight, .bias = bias, .out = out, .activation = kernels::Activation::silu, .accumulate = false};
  CHECK(bytes_a_request(cost_of(linear, "round_rows")) > 300);
  CHECK(bytes_a_request(cost_of(linear, "finish_rows")) > 300);
  const Array scale(gpu, normal(kCols, 4), 1, kCols, DType::f16);
  CHECK(bytes_a_request(cost_of(kernels::LayerNorm{x, scale, scale, out}, "layer_norm")) > 300);
}

TEST_CASE("costs: what stays of a prompt is copied by words of 16 bytes", "[gpu][costs]") {
  if (!counts()) return;
  const Place& gpu = simulated_gpu();
  constexpr int tokens = 256, heads = 2, dim = 128;
  const Array rows(gpu, normal(tokens * heads * dim, 1), tokens, heads * dim, DType::f16);
  SlotArrays kv(gpu, 1, heads, tokens, dim, DType::f16);
  kv.block.score = nullptr;
  const std::int32_t offsets[] = {0, tokens}, sequence[] = {0};
  const kernels::Keep keep[] = {{0, tokens - 1, 0, 0}};
  const auto cost = cost_of(kernels::KeepPrompt{.k = rows,
                                                .v = rows,
                                                .score = {},
                                                .offsets = offsets,
                                                .sequence = sequence,
                                                .keep = keep,
                                                .scoring = kernels::Scoring::none,
                                                .seed = 0,
                                                .slots = kv.block,
                                                .work = {}},
                            "keep_prompt");
  const double copied = 4.0 * (tokens - 1) * heads * dim * 2;  // keys and values, read and written
  CHECK(double(cost.global_requests) < 2 * copied / 512);
}

TEST_CASE("costs: query heads that share a KV head are attended by tensor cores, one by full words", "[gpu][costs]") {
  if (!counts()) return;
  const Place& gpu = simulated_gpu();
  const int group = GENERATE(1, 4, 8);
  CAPTURE(group);
  constexpr int rows = 4, kv_heads = 2, slots = 200, dim = 128;
  const int heads = kv_heads * group;
  const Array q(gpu, normal(std::int64_t{rows} * heads * dim, 1), rows, heads * dim),
      k(gpu, normal(rows * kv_heads * dim, 2), rows, kv_heads * dim), out(gpu, rows, heads * dim);
  SlotArrays kv(gpu, rows, kv_heads, slots, dim, DType::f16);
  kv.k.set(std::vector<float>(std::size_t{rows} * kv_heads * slots * dim, 0.5f));
  kv.v.set(std::vector<float>(std::size_t{rows} * kv_heads * slots * dim, 0.5f));
  std::vector<std::int32_t> position;
  for (int i = 0; i < rows * kv_heads; ++i)
    for (int s = 0; s < slots; ++s) position.push_back(s == 0 ? -1 : s);
  kv.position.set(position);
  kv.block.score = nullptr;
  const std::vector<std::int32_t> sequence = {0, 1, 2, 3}, token(rows, slots);
  const std::vector<kernels::Keep> keep(rows, kernels::Keep{slots, slots, 0, 0});
  const kernels::DecodeAttention step{q, k,        k,  sequence, token, keep, heads, 0.1f, 1, kernels::Scoring::none,
                                      0, kv.block, {}, out,      {},    {}};
  const auto cost = cost_of(step, "decode_fused");
  CHECK((cost.tensor_operations > 0) == (group > 1));
  if (group == 1) CHECK(bytes_a_request(cost) > 250);
  // What is passed more than once is positions and weights; sums of values leave in words that meet in no bank.
  CHECK(double(cost.shared_passes) < (group == 1 ? 1.17 : 1.2) * double(cost.least_passes));
}

TEST_CASE("costs: slots are split over thread blocks where sequences are few, on tensor cores too", "[gpu][costs]") {
  if (!cusim::config().ptx.empty()) return;  // only kernels compiled as C++ are counted by name
  const Place& gpu = simulated_gpu();        // of 4 multiprocessors
  struct Shape {
    int rows, group, slots;
    const char* kernel;
  };
  for (const Shape s : {Shape{23, 1, 513, "decode_logits"},
                        {24, 1, 513, "decode_fused"},
                        {1, 1, 512, "decode_fused"},
                        {1, 8, 512, "decode_fused"},
                        {1, 8, 513, "decode_logits"},
                        {24, 8, 1000, "decode_logits"}}) {
    constexpr int dim = 64;
    CAPTURE(s.rows, s.group, s.slots);
    const Array q(gpu, normal(std::int64_t{s.rows} * s.group * dim, 1), s.rows, s.group * dim),
        k(gpu, normal(std::int64_t{s.rows} * dim, 2), s.rows, dim), out(gpu, s.rows, s.group * dim);
    SlotArrays kv(gpu, s.rows, 1, s.slots, dim, DType::f16);  // empty but for the new token
    kv.block.score = nullptr;
    std::vector<std::int32_t> sequence, token(static_cast<std::size_t>(s.rows), 0);
    for (int row = 0; row < s.rows; ++row) sequence.push_back(row);
    const std::vector<kernels::Keep> keep(sequence.size(), kernels::Keep{s.slots, s.slots, 0, 0});
    const std::string name =
        std::string(s.kernel) + "<weft::kernels::cuda::decode::" + (s.group > 1 ? "Group" : "Team");
    const std::uint64_t before = cusim::kernels_named(name), all = cusim::kernels_named("decode_");
    gpu.run(kernels::DecodeAttention{
        q, k, k, sequence, token, keep, s.group, 0.1f, 1, kernels::Scoring::none, 0, kv.block, {}, out, {}, {}});
    INFO(name << ", of " << cusim::kernels_named("decode_") - all);
    CHECK(cusim::kernels_named(name) == before + 1);
  }
}

TEST_CASE("costs: levels of slots are attended by tensor cores", "[gpu][costs]") {
  if (!counts()) return;
  const Place& gpu = simulated_gpu();
  const DType type = GENERATE(DType::i8, DType::i4);
  constexpr int rows = 2, heads = 2, slots = 160, dim = 128;
  const Array q(gpu, normal(rows * heads * dim, 1), rows, heads * dim), out(gpu, rows, heads * dim);
  SlotArrays kv(gpu, rows, heads, slots, dim, type);
  kv.k.set(std::vector<std::int32_t>(rows * heads * slots * kernels::kv_row_bytes(type, dim) / 4, 0x11111111));
  kv.v.set(kv.k);
  std::vector<std::int32_t> position;
  for (int i = 0; i < rows * heads * slots; ++i) position.push_back(i % slots == 0 ? -1 : i % slots);
  kv.position.set(position);
  kv.block.score = nullptr;
  const std::vector<std::int32_t> sequence = {0, 1}, token(rows, slots);
  const std::vector<kernels::Keep> keep(rows, kernels::Keep{slots, slots, 0, 0});
  const kernels::DecodeAttention step{q, q,        q,  sequence, token, keep, heads, 0.1f, 1, kernels::Scoring::none,
                                      0, kv.block, {}, out,      {},    {}};
  const auto cost = cost_of(step, "decode_fused");
  // A product for each 256 levels of keys and of values, and no more of them for slots that are left over.
  CHECK(cost.tensor_operations == instructions(2 * rows * heads * slots * dim / 256));
}

TEST_CASE("costs: quantised weights are read by words of 16 bytes, by products and to be unpacked", "[gpu][costs]") {
  if (!counts()) return;
  const Place& gpu = simulated_gpu();
  const DType type = GENERATE(DType::i8, DType::i4);
  constexpr int out_cols = 256, cols = 512;
  const QuantisedLayout layout{type, 64, out_cols, cols};
  const Array w(gpu, std::vector<std::int32_t>(static_cast<std::size_t>(layout.bytes()) / 4, 0x10101010), 1,
                layout.bytes() / 4);
  ConstView weight(w.data(), type, out_cols, cols);
  weight.group = 64;
  const Array x(gpu, normal(16 * cols, 1), 16, cols), out(gpu, 16, out_cols), unpacked(gpu, out_cols, cols, DType::f16);
  const auto product = cost_of(kernels::Linear{.x = x, .weight = weight, .bias = {}, .out = out}, "multiply_levels");
  CHECK(bytes_a_request(product) > 300);
  CHECK(product.tensor_operations == instructions(2 * out_cols * cols / 256));  // each 16 x 16 weights by twice 8 rows
  CHECK(bytes_a_request(cost_of(kernels::UnpackWeights{weight, unpacked}, "unpack_tiles")) > 300);
}
