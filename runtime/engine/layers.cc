#include "runtime/engine/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

using policy::Role;

const ConstView& of(const UnitViews& unit, Role role) { return unit[static_cast<std::size_t>(role)]; }

kernels::Scoring scoring_of(const policy::Retention& retention) {
  if (retention.scored()) return kernels::Scoring::attention;
  return retention.rule == policy::Retention::Rule::random ? kernels::Scoring::random : kernels::Scoring::none;
}

template <class T> std::span<const T> part(const std::vector<T>& v, std::int64_t first, std::int64_t last) {
  return std::span<const T>(v).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(last - first));
}

}  // namespace

kernels::Activation activation_named(const std::string& name, const std::string& where) {
  using kernels::Activation;
  constexpr std::array<std::pair<const char*, Activation>, 9> known{{{"relu", Activation::relu},
                                                                     {"gelu", Activation::gelu},
                                                                     {"gelu_new", Activation::gelu_tanh},
                                                                     {"gelu_fast", Activation::gelu_tanh},
                                                                     {"gelu_pytorch_tanh", Activation::gelu_tanh},
                                                                     {"quick_gelu", Activation::quick_gelu},
                                                                     {"silu", Activation::silu},
                                                                     {"swish", Activation::silu},
                                                                     {"tanh", Activation::tanh}}};
  std::string names;
  for (const auto& [known_name, activation] : known) {
    if (name == known_name) return activation;
    names += (names.empty() ? "" : ", ") + std::string(known_name);
  }
  throw DataError(where + ": activation '" + name.substr(0, 40) + "' is not supported; supported: " + names);
}

Layers::Layers(const policy::ModelSpec& model, const policy::Retention& retention, DType kv_type,
               std::int64_t chunk_tokens, kernels::Backend& backend, Storage& storage, const std::atomic<bool>& stop)
    : model_(model), retention_(retention), activation_(activation_named(model.activation, model.architecture)),
      scoring_(scoring_of(retention)), kv_type_(kv_type), chunk_tokens_(chunk_tokens),
      scale_(1 / std::sqrt(static_cast<float>(model.head_dim))), backend_(backend), ops_(backend.ops()),
      storage_(storage), stop_(stop) {}

void Layers::begin_chunk() {
  if (stop_) throw Interrupted{};
  storage_.scratch().reset();
}

std::uint64_t Layers::seed(int layer) const {
  return retention_.seed * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(layer);
}

std::vector<std::int64_t> Layers::chunks(const BatchRows& rows, std::int64_t first) const {
  std::vector<std::int64_t> ends;
  std::int64_t begin = first;
  for (std::int64_t s = first + 1; s <= rows.own(); ++s) {
    const auto tokens = rows.offsets[static_cast<std::size_t>(s)] - rows.offsets[static_cast<std::size_t>(begin)];
    if (s > begin + 1 && (tokens > chunk_tokens_ || s - 1 == rows.begun)) {
      ends.push_back(s - 1);
      begin = s - 1;
    }
  }
  if (rows.own() > begin) ends.push_back(rows.own());
  return ends;
}

void Layers::embed(const UnitViews& unit, const BatchRows& rows, View hidden, kernels::Stream& stream) {
  Scratch& scratch = storage_.scratch();
  std::vector<std::int32_t> places;
  for (std::int64_t first = 0; first < rows.rows(); first += chunk_tokens_) {
    const std::int64_t last = std::min(first + chunk_tokens_, rows.rows());
    begin_chunk();
    const View x = hidden.slice(first, last - first);
    const std::span<const std::int32_t> tokens = part(rows.tokens, first, last);
    if (of(unit, Role::project_in)) {
      const View wide = scratch.take(hidden.dtype, last - first, model_.embed);
      storage_.gather(policy::Unit::Kind::embedding, tokens, wide, stream);
      ops_.run(kernels::Linear{.x = wide, .weight = of(unit, Role::project_in), .bias = {}, .out = x}, stream);
    } else {
      storage_.gather(policy::Unit::Kind::embedding, tokens, x, stream);
    }
    if (!model_.rotary.empty()) continue;
    places.assign(rows.position.begin() + first, rows.position.begin() + last);
    for (std::int32_t& place : places) place += model_.position_offset;
    const View positions = scratch.take(hidden.dtype, last - first, model_.hidden);
    storage_.gather(policy::Unit::Kind::positions, places, positions, stream);
    ops_.run(kernels::Add{x, positions}, stream);
  }
}

void Layers::norm(const UnitViews& unit, Role weight, Role bias, ConstView x, View out, kernels::Stream& stream) const {
  ops_.run(kernels::LayerNorm{x, of(unit, weight), of(unit, bias), out, model_.norm_epsilon, model_.rms_norm}, stream);
}

/// What a sublayer reads: the hidden states, normed if the model norms before.
View Layers::normed(const UnitViews& unit, Role weight, Role bias, View hidden, kernels::Stream& stream) {
  if (!model_.pre_norm) return hidden;
  const View out = storage_.scratch().take(hidden.dtype, hidden.rows, hidden.cols);
  norm(unit, weight, bias, hidden, out, stream);
  return out;
}

/// Queries, keys and values of rows at `position`.
void Layers::project(const UnitViews& unit, std::span<const std::int32_t> position, View hidden, const Projected& out,
                     kernels::Stream& stream) {
  const View x = normed(unit, Role::norm1_weight, Role::norm1_bias, hidden, stream);
  if (model_.fused_qkv) {
    const View all = storage_.scratch().take(hidden.dtype, hidden.rows, out.q.cols + out.k.cols + out.v.cols);
    ops_.run(kernels::Linear{x, of(unit, Role::qkv_weight), of(unit, Role::qkv_bias), all}, stream);
    int first = 0;
    for (const View& part : {out.q, out.k, out.v})
      ops_.run(kernels::TakeHeads{all, first++, 3, model_.head_dim, part}, stream);
  } else {
    ops_.run(kernels::Linear{x, of(unit, Role::q_weight), of(unit, Role::q_bias), out.q}, stream);
    ops_.run(kernels::Linear{x, of(unit, Role::k_weight), of(unit, Role::k_bias), out.k}, stream);
    ops_.run(kernels::Linear{x, of(unit, Role::v_weight), of(unit, Role::v_bias), out.v}, stream);
  }
  if (model_.rotary.empty()) return;
  for (const View& part : {out.q, out.k})
    ops_.run(kernels::Rotary{part, position, model_.rotary, model_.head_dim}, stream);
}

/// The end of attention. With a parallel residual the mlp comes with it, for it reads what attention read.
void Layers::project_back(const UnitViews& unit, ConstView attended, View hidden, kernels::Stream& stream) {
  const View parallel =
      model_.parallel_residual ? normed(unit, Role::norm2_weight, Role::norm2_bias, hidden, stream) : View{};
  ops_.run(kernels::Linear{.x = attended,
                           .weight = of(unit, Role::o_weight),
                           .bias = of(unit, Role::o_bias),
                           .out = hidden,
                           .accumulate = true},
           stream);
  if (!model_.pre_norm) norm(unit, Role::norm1_weight, Role::norm1_bias, hidden, hidden, stream);
  if (model_.parallel_residual) feed_forward(unit, parallel, hidden, stream);
}

/// hidden += the mlp of `in`.
void Layers::feed_forward(const UnitViews& unit, ConstView in, View hidden, kernels::Stream& stream) {
  Scratch& scratch = storage_.scratch();
  const View inner = scratch.take(hidden.dtype, hidden.rows, model_.ffn);
  if (model_.gated_mlp) {
    const View up = scratch.take(hidden.dtype, hidden.rows, model_.ffn);
    ops_.run(kernels::Linear{in, of(unit, Role::gate_weight), of(unit, Role::gate_bias), inner, activation_}, stream);
    ops_.run(kernels::Linear{in, of(unit, Role::up_weight), of(unit, Role::up_bias), up}, stream);
    ops_.run(kernels::Multiply{inner, up}, stream);
  } else {
    ops_.run(kernels::Linear{in, of(unit, Role::up_weight), of(unit, Role::up_bias), inner, activation_}, stream);
  }
  ops_.run(kernels::Linear{.x = inner,
                           .weight = of(unit, Role::down_weight),
                           .bias = of(unit, Role::down_bias),
                           .out = hidden,
                           .accumulate = true},
           stream);
}

void Layers::prefill(int layer, const BatchRows& rows, std::int64_t first, std::int64_t last, const Projected& in,
                     View attended, const Cache& kv, kernels::Stream& stream) {
  Scratch& scratch = storage_.scratch();
  const View k = scratch.take(kv_type_, in.k.rows, in.k.cols), v = scratch.take(kv_type_, in.v.rows, in.v.cols);
  ops_.run(kernels::Convert{in.k, k}, stream);
  ops_.run(kernels::Convert{in.v, v}, stream);
  std::vector<std::int32_t> offsets(rows.offsets.begin() + first, rows.offsets.begin() + last + 1);
  for (std::int32_t& offset : offsets) offset -= rows.offsets[static_cast<std::size_t>(first)];

  const bool scored = scoring_ == kernels::Scoring::attention;
  const View lse = scored ? scratch.take(DType::f32, model_.heads, in.q.rows) : View{};
  ops_.run(kernels::PrefillAttention{.q = in.q,
                                     .k = k,
                                     .v = v,
                                     .offsets = offsets,
                                     .heads = model_.heads,
                                     .kv_heads = model_.kv_heads,
                                     .head_dim = model_.head_dim,
                                     .scale = scale_,
                                     .out = attended,
                                     .lse = lse},
           stream);
  View score;
  if (scored) {
    score = scratch.take(DType::f32, model_.kv_heads, in.q.rows);
    ops_.run(kernels::ColumnSums{.q = in.q,
                                 .k = k,
                                 .lse = lse,
                                 .offsets = offsets,
                                 .heads = model_.heads,
                                 .kv_heads = model_.kv_heads,
                                 .head_dim = model_.head_dim,
                                 .scale = scale_,
                                 .window = retention_.window,
                                 .score = score},
             stream);
  }
  kernels::KeepPrompt keep{.k = k,
                           .v = v,
                           .score = score,
                           .offsets = offsets,
                           .sequence = part(rows.sequence, first, last),
                           .keep = part(rows.keep, first, last),
                           .scoring = scoring_,
                           .seed = seed(layer),
                           .slots = {}};
  keep_prompts(keep, kv, stream);
  for (std::int64_t s = rows.own(); s < rows.live(); ++s) {
    const std::int64_t from = rows.shared[static_cast<std::size_t>(s - rows.own())];
    if (from < first || from >= last) continue;
    const std::int64_t begin = offsets[static_cast<std::size_t>(from - first)],
                       count = offsets[static_cast<std::size_t>(from - first + 1)] - begin;
    const std::array<std::int32_t, 2> whole{0, static_cast<std::int32_t>(count)};
    keep.k = k.slice(begin, count), keep.v = v.slice(begin, count), keep.offsets = whole;
    if (scored) keep.score = View(static_cast<float*>(score.data) + begin, DType::f32, score.rows, count, score.stride);
    keep.sequence = part(rows.sequence, s, s + 1), keep.keep = part(rows.keep, s, s + 1);
    keep_prompts(keep, kv, stream);
  }
}

void Layers::keep_prompts(kernels::KeepPrompt& op, const Cache& kv, kernels::Stream& stream) const {
  for (const kernels::KvSlots* slots : {&kv.slots, &kv.home}) {
    if (!slots->k) continue;
    op.slots = *slots;
    ops_.run(op, stream);
  }
}

void Layers::decode(const kernels::Ops& ops, int layer, const BatchRows& rows, std::int64_t first, std::int64_t last,
                    const Projected& in, View attended, const Cache& kv, kernels::Stream& stream) const {
  ops.run(kernels::DecodeAttention{.q = in.q,
                                   .k = in.k,
                                   .v = in.v,
                                   .sequence = part(rows.sequence, first, last),
                                   .position = part(rows.position, first, last),
                                   .keep = part(rows.keep, first, last),
                                   .heads = model_.heads,
                                   .scale = scale_,
                                   .decay = static_cast<float>(retention_.decay),
                                   .scoring = scoring_,
                                   .seed = seed(layer),
                                   .slots = kv.slots,
                                   .home = kv.home,
                                   .out = attended,
                                   .probabilities = {},
                                   .evicted = {}},
          stream);
}

void Layers::attention(int layer, const UnitViews& unit, const BatchRows& rows, View hidden, const Cache& kv,
                       kernels::Stream& stream) {
  if (rows.begun == 0 && synthetic_) return fill_cache(layer, rows, kv.slots, stream);
  attend(layer, unit, rows, 0, hidden, kv, stream);
}

void Layers::attend(int layer, const UnitViews& unit, const BatchRows& rows, std::int64_t first, View hidden,
                    const Cache& kv, kernels::Stream& stream) {
  Scratch& scratch = storage_.scratch();
  const std::int64_t q_cols = std::int64_t{model_.heads} * model_.head_dim,
                     kv_cols = std::int64_t{model_.kv_heads} * model_.head_dim;
  for (const std::int64_t last : chunks(rows, first)) {
    begin_chunk();
    const std::int64_t begin = rows.offsets[static_cast<std::size_t>(first)],
                       count = rows.offsets[static_cast<std::size_t>(last)] - begin;
    const View x = hidden.slice(begin, count);
    const Projected in{scratch.take(hidden.dtype, count, q_cols), scratch.take(hidden.dtype, count, kv_cols),
                       scratch.take(hidden.dtype, count, kv_cols)};
    project(unit, part(rows.position, begin, begin + count), x, in, stream);
    const View attended = scratch.take(hidden.dtype, count, q_cols);
    if (first >= rows.begun) prefill(layer, rows, first, last, in, attended, kv, stream);
    else decode(ops_, layer, rows, first, last, in, attended, kv, stream);
    project_back(unit, attended, x, stream);
    first = last;
  }
}

void Layers::fill_cache(int layer, const BatchRows& rows, const kernels::KvSlots& kv, kernels::Stream& stream) {
  const std::int64_t cols = std::int64_t{model_.kv_heads} * model_.head_dim;
  if (random_tokens_ < kv.slots) {
    random_tokens_ = kv.slots;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto bytes = static_cast<std::size_t>(random_tokens_ * cols) * size_of(kv_type_);
    const auto count = static_cast<std::size_t>(random_tokens_ * cols), size = count * sizeof(float);
    const auto values = backend_.allocate_host(size);
    for (std::size_t i = 0; i < count; ++i) reinterpret_cast<float*>(values->data())[i] = normal(random);
    random_cache_ = backend_.allocate_device(bytes + size);
    View wide(random_cache_->data() + bytes, DType::f32, random_tokens_, cols);
    const auto copied = backend_.make_event();
    backend_.copy(wide.data, values->data(), size, stream);
    backend_.record(*copied, stream);
    backend_.synchronize(*copied);
    ops_.run(kernels::Convert{wide, View(random_cache_->data(), kv_type_, random_tokens_, cols)}, stream);
  }
  // The scores are taken from the same random numbers, [kv_heads, tokens].
  const auto* scores = random_cache_->data() + static_cast<std::size_t>(random_tokens_ * cols) * size_of(kv_type_);
  for (std::int64_t s = 0; s < rows.live(); ++s) {
    const auto index = static_cast<std::size_t>(s);
    const std::int32_t tokens =
        std::min({rows.keep[index].budget(), rows.context[index], static_cast<std::int32_t>(kv.slots)});
    const std::array<std::int32_t, 2> offsets{0, tokens};
    const ConstView both(random_cache_->data(), kv_type_, tokens, cols);
    ops_.run(kernels::KeepPrompt{.k = both,
                                 .v = both,
                                 .score = scoring_ == kernels::Scoring::attention
                                              ? ConstView(scores, DType::f32, model_.kv_heads, tokens)
                                              : ConstView{},
                                 .offsets = offsets,
                                 .sequence = part(rows.sequence, s, s + 1),
                                 .keep = part(rows.keep, s, s + 1),
                                 .scoring = scoring_,
                                 .seed = seed(layer),
                                 .slots = kv},
             stream);
  }
}

void Layers::attention_in(int layer, const UnitViews& unit, const BatchRows& rows, View hidden,
                          const Storage::Exchange& out, const kernels::KvSlots& kv, kernels::Stream& stream) {
  for (std::int64_t first = 0; first < rows.begun; first += chunk_tokens_) {  // one row each
    const std::int64_t count = std::min(chunk_tokens_, rows.begun - first);
    begin_chunk();
    project(unit, part(rows.position, first, first + count), hidden.slice(first, count),
            {out.q.slice(first, count), out.k.slice(first, count), out.v.slice(first, count)}, stream);
  }
  attend(layer, unit, rows, rows.begun, hidden, {.slots = kv, .home = {}}, stream);
}

void Layers::attention_core(int layer, const BatchRows& rows, const Storage::Exchange& host,
                            const kernels::KvSlots& kv) {
  const std::int64_t begun = rows.begun;
  if (begun == 0) return;
  decode(backend_.host_ops(), layer, rows, 0, begun,
         {host.q.slice(0, begun), host.k.slice(0, begun), host.v.slice(0, begun)}, host.out.slice(0, begun), {kv, {}},
         backend_.host_stream());
}

void Layers::attention_out(const UnitViews& unit, const BatchRows& rows, View hidden, ConstView attended,
                           kernels::Stream& stream) {
  for (std::int64_t first = 0; first < rows.begun; first += chunk_tokens_) {
    const std::int64_t count = std::min(chunk_tokens_, rows.begun - first);
    begin_chunk();
    project_back(unit, attended.slice(first, count), hidden.slice(first, count), stream);
  }
}

void Layers::mlp(const UnitViews& unit, View hidden, kernels::Stream& stream) {
  for (std::int64_t first = 0; first < hidden.rows; first += chunk_tokens_) {
    begin_chunk();
    const View x = hidden.slice(first, std::min(chunk_tokens_, hidden.rows - first));
    feed_forward(unit, normed(unit, Role::norm2_weight, Role::norm2_bias, x, stream), x, stream);
    if (!model_.pre_norm) norm(unit, Role::norm2_weight, Role::norm2_bias, x, x, stream);
  }
}

void Layers::output(const UnitViews& unit, const BatchRows& rows, View hidden, View last_hidden, View last_embed,
                    kernels::Stream& stream) {
  const std::int64_t live = rows.live();
  const View x = last_hidden.slice(0, live), out = last_embed.slice(0, live);
  std::vector<std::int32_t> last;  // row of each sequence
  for (std::int64_t s = 0; s < live; ++s) {
    const std::int64_t own = s < rows.own() ? s : rows.shared[static_cast<std::size_t>(s - rows.own())];
    last.push_back(rows.offsets[static_cast<std::size_t>(own + 1)] - 1);
  }
  ops_.run(kernels::Gather{.table = hidden, .ids = last, .to = {}, .out = x}, stream);
  if (model_.final_norm) norm(unit, Role::final_norm_weight, Role::final_norm_bias, x, x, stream);
  if (of(unit, Role::project_out))
    ops_.run(kernels::Linear{.x = x, .weight = of(unit, Role::project_out), .bias = {}, .out = out}, stream);
  else ops_.run(kernels::Convert{x, out}, stream);
}

void Layers::head(ConstView piece, ConstView last_embed, View logits_columns, kernels::Stream& stream) {
  ops_.run(kernels::Linear{.x = last_embed, .weight = piece, .bias = {}, .out = logits_columns}, stream);
}

}  // namespace weft::runtime
