#include "runtime/engine/executor.h"

#include <algorithm>
#include <cassert>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

using policy::Op;
using policy::Sublayer;

constexpr int kLastStep = 1 << 15;  // an op's number of its step is 16 bits; after this one they begin again at 1

/// Whether a decode step is one batch's ops on the device alone.
bool is_resident(const policy::ScheduleShape& shape) {
  const auto on_device = [](const std::vector<policy::Tier>& homes) {
    return std::all_of(homes.begin(), homes.end(), [](policy::Tier tier) { return tier == policy::Tier::device; });
  };
  return shape.batches == 1 && on_device(shape.unit_home) && on_device(shape.kv_home) &&
         on_device(shape.activation_home);
}

}  // namespace

Totals Totals::operator-(const Totals& before) const {
  Totals difference = *this;
  difference.prefill_seconds -= before.prefill_seconds;
  difference.decode_seconds -= before.decode_seconds;
  difference.prompt_tokens -= before.prompt_tokens;
  difference.first_tokens -= before.first_tokens;
  difference.decode_tokens -= before.decode_tokens;
  difference.late_prompt_tokens -= before.late_prompt_tokens;
  difference.shared_prompt_tokens -= before.shared_prompt_tokens;
  difference.decode_rows -= before.decode_rows;
  difference.decode_places -= before.decode_places;
  for (std::size_t lane = 0; lane < lane_bytes.size(); ++lane) {
    difference.lane_bytes[lane] -= before.lane_bytes[lane];
    difference.prefill_lane_bytes[lane] -= before.prefill_lane_bytes[lane];
    difference.lane_busy[lane] -= before.lane_busy[lane];
  }
  return difference;
}

Executor::Results::Results(kernels::Backend& backend, int rows) : done(backend.make_event()) {
  const auto count = static_cast<std::size_t>(rows);
  const auto each = sizeof(double) + 2 * sizeof(std::int32_t) + 2 * sizeof(float) + sizeof(std::uint8_t) +
                    kMostLogprobs * (sizeof(std::int32_t) + sizeof(float));
  memory = backend.allocate_host(count * each);
  std::byte* next = memory->data();
  const auto place = [&next]<class T>(std::span<T>& span, std::size_t size) {
    span = {reinterpret_cast<T*>(next), size};
    next += span.size_bytes();
  };
  place(log_sum, count);
  for (auto* ids : {&token, &sampled}) place(*ids, count);
  for (auto* numbers : {&logprob, &logit}) place(*numbers, count);
  place(top_token, count * kMostLogprobs);
  place(top_logprob, count * kMostLogprobs);
  place(greedy, count);
}

Executor::Executor(const policy::ModelSpec& model, const policy::Policy& policy, const policy::Footprint& footprint,
                   Layers& layers, Storage& storage, kernels::Backend& backend, const std::atomic<bool>& stop)
    : model_(model), policy_(policy), footprint_(footprint), layers_(layers), storage_(storage), stop_(stop),
      backend_(backend), lanes_(backend), results_(backend, policy.gpu_batch_size),
      rows_(static_cast<std::size_t>(policy.num_gpu_batches)), live_(static_cast<std::size_t>(policy.num_gpu_batches)),
      resident_(is_resident(footprint.shape)) {}

std::span<Sequence> Executor::sequences(int batch) const {
  const auto size = static_cast<std::size_t>(policy_.gpu_batch_size), first = static_cast<std::size_t>(batch) * size;
  return first >= block_.size() ? std::span<Sequence>{} : block_.subspan(first, std::min(size, block_.size() - first));
}

std::int64_t Executor::steps_left() const {
  std::int64_t left = 0;
  for (const Sequence& sequence : block_)
    if (sequence.finish == Finish::none) left = std::max(left, sequence.max_tokens - sequence.generated());
  return wait_ > 0 ? std::max<std::int64_t>(left, steps_per_segment_) : left;
}

void Executor::run(std::span<Sequence> block, const OnToken& on_token, const Waiting& waiting) {
  assert(waiting.count == 0 || footprint_.shape.refills);
  block_ = block;
  failed_ = false;
  on_token_ = &on_token;
  waiting_ = &waiting;
  wait_ = waiting.count;
  all_live_ = static_cast<std::int64_t>(block.size());
  for (int batch = 0; batch < policy_.num_gpu_batches; ++batch)
    live_[static_cast<std::size_t>(batch)] = static_cast<std::int64_t>(sequences(batch).size());

  const Totals before = totals();
  const double begin = lanes_.now();
  double prefill_end = begin;
  int steps = 1;  // prefill by itself, so that its end is seen
  for (int step = 0; all_live_ > 0 || wait_ > 0; step = step + steps < kLastStep ? step + steps : 1) {
    if (step > 0) steps = static_cast<int>(std::min<std::int64_t>(steps_per_segment_, steps_left()));
    policy::Schedule schedule = policy::zigzag(footprint_.shape, step, steps);
    if (!policy_.overlap) schedule = policy::serialize(std::move(schedule));
    run_segment(schedule);
    if (step == 0) {
      prefill_end = lanes_.now();
      for (std::size_t lane = 0; lane < lane_bytes_.size(); ++lane)
        totals_.prefill_lane_bytes[lane] += lane_bytes_[lane] - before.lane_bytes[lane];
      steps_per_segment_ = policy::steps_per_segment(schedule);
    }
  }
  const double end = lanes_.now();
  totals_.prefill_seconds += prefill_end - begin;
  totals_.decode_seconds += end - prefill_end;
}

void Executor::run_segment(const policy::Schedule& schedule) {
  tickets_.assign(schedule.ops.size(), {});
  std::vector<offload::Ticket> deps;
  for (std::size_t i = 0; i < schedule.ops.size();) {
    const Op& op = schedule.ops[i];
    deps.clear();
    for (const std::uint32_t dep : schedule.deps_of(op)) deps.push_back(tickets_[dep]);
    const std::size_t count = ops_together(schedule, i);
    offload::Lanes::Work work;
    if (count == 1) work = [this, &op](kernels::Stream& stream) { run_op(op, stream); };
    else work = [this, ops = std::span(&op, count)](kernels::Stream& stream) { run_together(ops, stream); };
    const offload::Ticket ticket = lanes_.submit(op.lane, deps, std::move(work), static_cast<std::uint32_t>(i));
    std::fill_n(tickets_.begin() + static_cast<std::ptrdiff_t>(i), count, ticket);
    i += count;
  }
  lanes_.wait_all();
  if (!on_trace_) return;
  policy::Trace trace;
  trace.spans.resize(schedule.ops.size());
  for (const offload::LaneRecord& record : lanes_.take_records())
    trace.spans[record.label] = {record.begin, record.end};
  on_trace_(schedule, trace);
}

/// A batch whose sequences have all finished needs nothing any more unless others wait for their places; nor does a
/// block.
bool Executor::alive(const Op& op) const {
  const bool of_unit = op.kind != Op::Kind::compute && op.subject < footprint_.shape.kv_buffer(0, 0);
  return wait_ > 0 || (of_unit ? all_live_ > 0 : live_[op.batch] > 0);
}

std::size_t Executor::ops_together(const policy::Schedule& schedule, std::size_t first) const {
  const Op& op = schedule.ops[first];
  // Embedding reads the tables piece by piece, as the tokens say; what follows is the same ops in every step.
  if (!resident_ || on_trace_ || op.step == 0 || footprint_.shape.sublayers[op.subject].kind == Sublayer::Kind::embed)
    return 1;
  std::size_t end = first;
  while (end < schedule.ops.size() && schedule.ops[end].step == op.step) ++end;
  return end - first;
}

void Executor::run_together(std::span<const Op> ops, kernels::Stream& stream) {
  if (failed_ || !alive(ops.front())) return;
  try {
    if (stop_) throw Interrupted{};
    const int batch = ops.front().batch;
    const BatchRows& rows = rows_[static_cast<std::size_t>(batch)];
    const auto all = [&] {
      for (const Op& op : ops) compute(op, stream);
    };
    if (rows.begun < rows.live()) all();  // prompts among them: no two such steps are alike
    else backend_.repeat(stream, wants_of(sequences(batch), rows).signature(rows), all);
    take_tokens(batch, stream);
  } catch (...) {
    failed_ = true;
    throw;
  }
}

bool Executor::ends_step(const Op& op) const {
  return op.kind == Op::Kind::compute && op.subject + 1 == footprint_.shape.sublayers.size();
}

void Executor::run_op(const Op& op, kernels::Stream& stream) {
  if (failed_ || !alive(op)) return;
  try {
    if (stop_) throw Interrupted{};
    if (op.kind == Op::Kind::compute) compute(op, stream);
    if (ends_step(op)) take_tokens(op.batch, stream);
    if (op.kind != Op::Kind::compute) lane_bytes_[static_cast<std::size_t>(op.lane)] += storage_.move(op, stream);
  } catch (...) {
    failed_ = true;  // ops that rely on the lane's order alone must not run on what this one left
    throw;
  }
}

void Executor::compute(const Op& op, kernels::Stream& stream) {
  const Sublayer& sub = footprint_.shape.sublayers[op.subject];
  const int batch = op.batch;
  BatchRows& rows = rows_[op.batch];
  if (sub.kind == Sublayer::Kind::embed) {
    gather_rows(op);
    if (rows.live() == 0) return;  // others took the last that waited
  }
  const UnitViews unit = sub.unit < 0 ? UnitViews{} : storage_.unit(sub.unit, op.unit_slot);
  const View hidden = storage_.hidden(batch, op.activation_slot, rows.rows());
  switch (sub.kind) {
    case Sublayer::Kind::embed: layers_.embed(unit, rows, hidden, stream); break;
    case Sublayer::Kind::attention:
      switch (op.part) {
        case Op::Part::whole:
          layers_.attention(sub.layer, unit, rows, hidden,
                            {storage_.kv(sub.layer, batch, op.kv_slot),
                             op.step == 0 ? kernels::KvSlots{} : storage_.kv_home(sub.layer, batch)},
                            stream);
          break;
        case Op::Part::in:
          layers_.attention_in(sub.layer, unit, rows, hidden, storage_.exchange(batch, false),
                               storage_.host_kv(sub.layer, batch, op.kv_slot), stream);
          break;
        case Op::Part::core:
          layers_.attention_core(sub.layer, rows, storage_.exchange(batch, true),
                                 storage_.host_kv(sub.layer, batch, op.kv_slot));
          break;
        case Op::Part::out:
          layers_.attention_out(sub.layer, unit, rows, hidden, storage_.exchange(batch, true).attended, stream);
          break;
      }
      break;
    case Sublayer::Kind::mlp: layers_.mlp(sub.layer, unit, hidden, stream); break;
    case Sublayer::Kind::output:
      layers_.output(unit, rows, hidden, storage_.last_hidden(batch), storage_.last_embed(batch), stream);
      break;
    case Sublayer::Kind::head: {
      const policy::TensorSpec& piece = storage_.piece(sub.unit);
      const View logits = storage_.logits(batch);
      const View columns(static_cast<float*>(logits.data) + piece.first_row, DType::f32, rows.live(), piece.rows,
                         logits.stride);
      layers_.head(unit, storage_.last_embed(batch).slice(0, rows.live()), columns, stream);
      if (ends_step(op)) choose_tokens(batch, stream);
      break;
    }
  }
}

/// Gives the places of finished sequences to those that wait, as many as a sweep takes along without decode standing
/// still: a quarter of what a batch's prefill is planned for. What they find in their places prefill overwrites.
void Executor::admit(int batch) {
  const std::int64_t most = std::max(footprint_.workspace.chunk_tokens, footprint_.workspace.batch_tokens / 4);
  std::int64_t admitted = 0;
  const Sequence* before = nullptr;  // those with its prompt cost nothing more
  for (Sequence& place : sequences(batch)) {
    if (wait_ == 0 || admitted >= most) return;
    if (place.finish == Finish::none) continue;
    waiting_->next(place);
    if (!before || before->tokens != place.tokens) admitted += place.prompt_tokens;
    before = &place;
    ++live_[static_cast<std::size_t>(batch)], ++all_live_;  // before there is one less that waits: see alive()
    --wait_;
  }
}

void Executor::gather_rows(const Op& op) {
  BatchRows& rows = rows_[op.batch];
  rows.clear();
  if (op.step > 0) admit(op.batch);
  const std::span<Sequence> all = sequences(op.batch);
  std::vector<std::int32_t> sharing;  // places
  for (const bool begun : {true, false}) {
    const Sequence* before = nullptr;
    for (std::int32_t place = 0; place < static_cast<std::int32_t>(all.size()); ++place) {
      const Sequence& sequence = all[static_cast<std::size_t>(place)];
      if (sequence.finish != Finish::none || (sequence.generated() > 0) != begun) continue;
      if (before && !begun && !layers_.synthetic_prefill() && before->tokens == sequence.tokens) {
        sharing.push_back(place);
        rows.shared.push_back(static_cast<std::int32_t>(rows.own()) - 1);
        totals_.shared_prompt_tokens += sequence.prompt_tokens;
        continue;
      }
      before = &sequence;
      const auto length = static_cast<std::int32_t>(sequence.tokens.size());
      for (std::int32_t p = begun || layers_.synthetic_prefill() ? length - 1 : 0; p < length; ++p) {
        rows.tokens.push_back(sequence.tokens[static_cast<std::size_t>(p)]);
        rows.position.push_back(p);
      }
      rows.add(place, sequence.keep, length);
      rows.offsets.push_back(static_cast<std::int32_t>(rows.tokens.size()));
      if (begun) continue;
      totals_.prompt_tokens += sequence.prompt_tokens;
      if (op.step > 0) totals_.late_prompt_tokens += sequence.prompt_tokens;
    }
    if (begun) rows.begun = rows.live();
  }
  for (const std::int32_t place : sharing) {
    const Sequence& sequence = all[static_cast<std::size_t>(place)];
    rows.add(place, sequence.keep, static_cast<std::int32_t>(sequence.tokens.size()));
  }
  if (op.step > 0) {
    totals_.decode_rows += rows.live();
    totals_.decode_places += policy_.gpu_batch_size;
  }
  storage_.set_rows(op.batch, rows.rows(), rows.begun);
}

void Executor::choose_tokens(int batch, kernels::Stream& stream) {
  const BatchRows& rows = rows_[static_cast<std::size_t>(batch)];
  const auto live = static_cast<std::size_t>(rows.live());
  const View logits = storage_.logits(batch).slice(0, rows.live());
  const std::span<Sequence> all = sequences(batch);
  const std::span<std::int32_t> token = results_.token.first(live);
  std::vector<kernels::SampleParams> params(live);
  for (std::size_t r = 0; r < live; ++r) {
    const Sequence& sequence = all[static_cast<std::size_t>(rows.sequence[r])];
    params[r] = sequence.sampling;
    token[r] = sequence.forced.empty() ? 0 : sequence.forced[static_cast<std::size_t>(sequence.generated())];
  }
  // A job scores or samples; where both occur each row takes its own.
  const kernels::Ops& ops = layers_.ops();
  wants_ = wants_of(all, rows);
  if (wants_.scores)
    ops.run(kernels::LogProbs{logits, token, results_.logprob.first(live), results_.greedy.first(live)}, stream);
  if (const std::size_t told = wants_.told.size(); told > 0) {  // of logits that nothing is forbidden in yet
    const std::size_t top = told * static_cast<std::size_t>(wants_.alternatives);
    ops.run(kernels::TopLogProbs{logits, wants_.told, wants_.alternatives, results_.top_token.first(top),
                                 results_.top_logprob.first(top), results_.log_sum.first(told)},
            stream);
  }
  if (!wants_.forbidden_row.empty())
    ops.run(kernels::Forbid{logits, wants_.forbidden_row, wants_.forbidden_token}, stream);
  if (wants_.samples)
    ops.run(kernels::Sample{logits, params, results_.sampled.first(live), results_.logit.first(live)}, stream);
}

void Executor::take_tokens(int batch, kernels::Stream& stream) {
  const BatchRows& rows = rows_[static_cast<std::size_t>(batch)];
  const auto live = static_cast<std::size_t>(rows.live());
  const std::span<Sequence> all = sequences(batch);
  const std::span<std::int32_t> token = results_.token.first(live), sampled = results_.sampled.first(live);
  backend_.record(*results_.done, stream);
  backend_.synchronize(*results_.done);
  for (std::size_t r = 0; r < live; ++r) {
    if (!all[static_cast<std::size_t>(rows.sequence[r])].forced.empty()) continue;
    token[r] = sampled[r];
    if (token[r] < 0)
      throw DataError("a row of logits has no finite number; the weights or --dtype do not fit the model");
  }
  for (std::size_t r = 0, told = 0; r < live; ++r) {
    Sequence& sequence = all[static_cast<std::size_t>(rows.sequence[r])];
    sequence.tokens.push_back(token[r]);
    if (told < wants_.told.size() && wants_.told[told] == static_cast<std::int32_t>(r))
      take_logprobs(sequence, r, told++);
    ++(sequence.generated() == 1 ? totals_.first_tokens : totals_.decode_tokens);
    ++sequence.sampling.counter;
    if (!sequence.forced.empty()) {
      sequence.logprobs.push_back(results_.logprob[r]);
      sequence.greedy.push_back(results_.greedy[r]);
    }
    if (sequence.generated() >= sequence.max_tokens) sequence.finish = Finish::length;
    (*on_token_)(sequence);
    if (sequence.finish != Finish::none) --live_[static_cast<std::size_t>(batch)], --all_live_;
  }
}

/// `told`: which of the rows of which log-probabilities are told this one is.
void Executor::take_logprobs(Sequence& sequence, std::size_t row, std::size_t told) const {
  sequence.told.chosen.push_back(static_cast<float>(double(results_.logit[row]) - results_.log_sum[told]));
  std::vector<TokenLogprob>& top = sequence.told.top.emplace_back();
  const std::size_t first = told * static_cast<std::size_t>(wants_.alternatives);
  for (std::size_t i = first; i < first + static_cast<std::size_t>(sequence.alternatives); ++i)
    if (results_.top_token[i] >= 0) top.push_back({results_.top_token[i], results_.top_logprob[i]});
}

void Executor::set_trace(OnTrace on_trace) {
  on_trace_ = std::move(on_trace);
  lanes_.start_recording();
}

Totals Executor::totals() const {
  Totals totals = totals_;
  totals.lane_busy = lanes_.busy_seconds();
  for (std::size_t lane = 0; lane < lane_bytes_.size(); ++lane) totals.lane_bytes[lane] = lane_bytes_[lane];
  return totals;
}

}  // namespace weft::runtime
