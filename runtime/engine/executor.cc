#include "runtime/engine/executor.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "kernels/error.h"

namespace weft::runtime {
namespace {

using policy::Op;
using policy::Sublayer;

constexpr double kLongestSweepRest = 4;  // seconds that a stopped run may take to end its sweep

/// Whether a decode sweep consists of one batch's ops on the device alone.
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

Executor::Executor(const policy::Policy& policy, const policy::Footprint& footprint, Layers& layers,
                   HostExperts* host_experts, Storage& storage, kernels::Backend& backend, GracePeriod& stop)
    : policy_(policy), footprint_(footprint), layers_(layers), host_experts_(host_experts), storage_(storage),
      stop_(stop), backend_(backend), lanes_(backend), token_choice_(backend, policy.gpu_batch_size),
      resident_(is_resident(footprint.shape) && layers.model().experts.count == 0),
      routing_(footprint.shape, layers.model().experts, backend), packed_(footprint.shape.sublayers.size(), 0) {}

std::uint32_t Executor::sweeps_ahead() const {
  const Places& places = run_->places;
  return places.any_waiting()
             ? sweeps_per_segment_
             : static_cast<std::uint32_t>(std::min<std::int64_t>(sweeps_per_segment_, places.sweeps_left()));
}

void Executor::run(std::span<Sequence> block, const OnToken& on_token, const Waiting& waiting, Pause* pause) {
  assert(waiting.count == 0 || footprint_.shape.refills);
  const Places::Shape shape{.gpu_batch_size = policy_.gpu_batch_size,
                            .num_gpu_batches = policy_.num_gpu_batches,
                            .admitted_tokens = footprint_.workspace.admitted_tokens,
                            .first_tokens = footprint_.workspace.first_tokens,
                            .last_token_only = layers_.synthetic_prefill(),
                            .prefix_tokens = layers_.prefix_tokens(),
                            .prefix_step = backend_.prefix_step(),
                            .observation = layers_.retention().observation,
                            .rolling = layers_.rolling(),
                            .finds_alike = backend_.batch_invariant() && !layers_.synthetic_prefill(),
                            .holds_prefixes = policy::holds_prefixes(layers_.model(), policy_)};
  run_ = std::make_unique<Run>(shape, block, waiting, on_token, pause);
  routing_.forget();
  if (host_experts_) host_experts_->forget();
  prefill_ops_ = 0;
  const Totals before = totals();
  const double begin = lanes_.now();
  double prefill_end = begin;
  std::uint32_t step = begin_amid() ? 1 : 0;
  if (step > 0) prefill_ops_ = footprint_.shape.sublayers.size() * static_cast<std::uint64_t>(policy_.num_gpu_batches);
  sweeps_per_segment_ = 1;
  for (bool first = true; run_->places.any_alive(); first = false) {
    if (!first) between_sweeps();
    const std::uint32_t steps = first ? 1 : sweeps_ahead();  // prefill is a segment, so that its end is seen
    policy::Schedule schedule = policy::zigzag(footprint_.shape, step, steps);
    if (!policy_.overlap) schedule = policy::serialize(std::move(schedule));
    const bool prefill = step == 0;
    step += run_segment(schedule, steps);
    if (!first) continue;
    sweeps_per_segment_ = policy::sweeps_per_segment(schedule);
    if (!prefill) continue;
    prefill_end = lanes_.now();
    for (std::size_t lane = 0; lane < lane_bytes_.size(); ++lane)
      totals_.prefill_lane_bytes[lane] += lane_bytes_[lane] - before.lane_bytes[lane];
  }
  const double end = lanes_.now();
  totals_.prefill_seconds += prefill_end - begin;
  totals_.decode_seconds += end - prefill_end;
}

bool Executor::begin_amid() {
  std::vector<std::size_t> begun;
  for (std::size_t place = 0; place < run_->block.size(); ++place)
    if (run_->block[place].generated() > 0) begun.push_back(place);
  if (begun.empty()) return false;
  assert(run_->pause && footprint_.shape.refills);
  run_->pause->restore(run_->block, begun, true);
  return true;
}

/// Gives places to sequences that come with their KV, and saves the block. The lanes are empty.
void Executor::between_sweeps() {
  if (!run_->pause) return;
  if (run_->places.can_place_begun()) {
    const std::vector<std::size_t> filled = run_->places.place_begun();
    run_->pause->restore(run_->block, filled, false);
  }
  const bool stopping = stop_.asked();
  if (stopping || run_->pause->due()) run_->pause->save(run_->block);
  if (stopping) throw Interrupted{};
}

/// Called on the device lane's thread by the first op of a sweep. Ends the segment before this sweep if there is
/// something to do between sweeps.
void Executor::begin_sweep(std::uint32_t step) {
  Run& run = *run_;
  if (step >= run.end) return;
  const double now = lanes_.now();
  if (step > run.segment_begin) run.sweep_seconds = now - run.sweep_begin;
  run.sweep_begin = now;
  if (run.pause && step > run.segment_begin && (stop_.asked() || run.pause->due() || run.places.can_place_begun()))
    run.end = step;
}

/// Called on the device lane's thread. Once the run is asked to stop, lets it continue only if this sweep should end
/// in time.
void Executor::look_for_stop() {
  Run& run = *run_;
  if (run.stopping || !stop_.asked()) return;
  run.stopping = true;
  const double left = run.sweep_begin + run.sweep_seconds - lanes_.now();
  if (!run.pause || run.sweep_seconds == 0 || left > kLongestSweepRest) stop_.allow({});
}

std::uint32_t Executor::run_segment(const policy::Schedule& schedule, std::uint32_t sweeps) {
  run_->segment_begin = schedule.ops.front().sweep;
  run_->end = UINT32_MAX;
  traced_ = on_trace_ ? schedule.ops.data() : nullptr;
  if (traced_) traced_bytes_.assign(schedule.ops.size(), 0);
  try {
    submit_ops(schedule);
  } catch (...) {  // no memory for the queue; queued ops refer to the schedule, so they end first
    run_->failed = true;
    try {
      lanes_.wait_all();
    } catch (...) {  // the first failure is what matters
    }
    throw;
  }
  lanes_.wait_all();
  const std::uint32_t done = std::min(sweeps, run_->end - run_->segment_begin);
  if (!on_trace_) return done;
  const policy::Schedule seen = done < sweeps ? policy::truncate(schedule, done) : schedule;
  policy::Trace trace;
  trace.spans.resize(seen.ops.size());
  for (const offload::LaneRecord& record : lanes_.take_records())
    if (record.label < trace.spans.size()) trace.spans[record.label] = {record.begin, record.end};
  trace.bytes = std::move(traced_bytes_);
  trace.bytes.resize(seen.ops.size());
  on_trace_(seen, trace);
  return done;
}

void Executor::submit_ops(const policy::Schedule& schedule) {
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
}

/// Ops that move or unpack a unit, and the host's work on experts, serve all batches of a pass over the weights, and so
/// are alive while any of these is.
bool Executor::alive(const Op& op) const {
  const bool experts = op.kind == Op::Kind::compute && op.part == Op::Part::core &&
                       footprint_.shape.computed_on_host(op.subject, op.prefill);
  const bool of_unit = op.kind == Op::Kind::compute ? op.part == Op::Part::unpack || experts
                                                    : op.subject < footprint_.shape.kv_buffer(0, 0);
  if (!of_unit) return run_->places.alive(op.batch);
  if (!op.prefill) return run_->places.any_alive();
  const int end = std::min(op.batch + footprint_.shape.batches_of_pass(true), footprint_.shape.batches);
  for (int batch = op.batch; batch < end; ++batch)
    if (run_->places.alive(batch)) return true;
  return false;
}

std::size_t Executor::ops_together(const policy::Schedule& schedule, std::size_t first) const {
  const Op& op = schedule.ops[first];
  // Embedding reads pieces of the tables that depend on the tokens. All other ops are the same in every sweep.
  if (!resident_ || on_trace_ || op.prefill || footprint_.shape.sublayers[op.subject].kind == Sublayer::Kind::embed)
    return 1;
  std::size_t end = first;
  while (end < schedule.ops.size() && schedule.ops[end].sweep == op.sweep) ++end;
  return end - first;
}

void Executor::run_together(std::span<const Op> ops, kernels::Stream& stream) {
  if (!wanted(ops.front())) return;
  try {
    look_for_stop();
    if (stop_.over()) throw Interrupted{};
    const int batch = ops.front().batch;
    const BatchRows& rows = run_->places.rows(batch);
    const std::uint64_t signature = prepare_step(batch);
    const auto all = [&] {
      for (const Op& op : ops) compute(op, stream);
    };
    // Sweeps with prompts differ from each other, and positions move rarely, so neither kind is recorded.
    if (rows.begun < rows.live() || !rows.moved.empty()) all();
    else backend_.repeat(stream, signature, all);
    finish_step(batch, stream);
  } catch (...) {
    run_->failed = true;
    throw;
  }
}

bool Executor::ends_step(const Op& op) const {
  return op.kind == Op::Kind::compute && op.part != Op::Part::unpack &&
         op.subject + 1 == footprint_.shape.sublayers.size();
}

void Executor::run_op(const Op& op, kernels::Stream& stream) {
  const bool on_device = op.lane == offload::Lane::device_compute;
  if (on_device && op.batch == 0 && footprint_.shape.sublayers[op.subject].kind == Sublayer::Kind::embed)
    begin_sweep(op.sweep);
  if (!wanted(op)) return;
  try {
    if (on_device) look_for_stop();
    if (stop_.over()) throw Interrupted{};
    if (ends_step(op)) prepare_step(op.batch);
    if (op.kind == Op::Kind::compute) compute(op, stream);
    if (op.prefill && op.kind == Op::Kind::compute && (op.part == Op::Part::whole || op.part == Op::Part::out))
      ++prefill_ops_;
    if (ends_step(op)) finish_step(op.batch, stream);
    if (op.kind != Op::Kind::compute) {
      const std::uint64_t bytes = move(op, stream);
      lane_bytes_[static_cast<std::size_t>(op.lane)] += bytes;
      if (traced_) traced_bytes_[static_cast<std::size_t>(&op - traced_)] = bytes;
    }
  } catch (...) {
    run_->failed = true;
    throw;
  }
}

std::uint64_t Executor::move(const Op& op, kernels::Stream& stream) {
  const std::vector<bool> wanted = routing_.wanted(op, [this](int batch) { return run_->places.alive(batch); });
  return wanted.empty() ? storage_.move(op, stream) : storage_.move_experts(op, wanted, stream);
}

void Executor::gather_rows(const Op& op) {
  const RowCounts counts = run_->places.gather(op.batch, op.prefill);
  const BatchRows& rows = run_->places.rows(op.batch);
  totals_.prompt_tokens += counts.prompt_tokens;
  totals_.shared_prompt_tokens += counts.shared_tokens;
  if (!op.prefill) {
    totals_.late_prompt_tokens += counts.prompt_tokens;
    totals_.decode_rows += rows.live();
    totals_.decode_places += policy_.gpu_batch_size;
  }
  storage_.set_rows(op, rows.rows(), rows.begun);
}

std::uint64_t Executor::prepare_step(int batch) {
  return token_choice_.prepare(run_->places.batch(batch), run_->places.rows(batch), layers_.model().vocab);
}

/// Gives the batch's sequences their new tokens and ends those that are done.
void Executor::finish_step(int batch, kernels::Stream& stream) {
  const BatchRows& rows = run_->places.rows(batch);
  const std::span<Sequence> all = run_->places.batch(batch);
  token_choice_.collect_tokens(all, rows, stream);
  for (const std::int32_t place : rows.sequence) {
    Sequence& sequence = all[place];
    if (sequence.finish != Finish::failed) {
      if (sequence.generated() <= sequence.prompt_tail) ++totals_.prompt_tokens, ++totals_.late_prompt_tokens;
      else ++(sequence.generated() == 1 ? totals_.first_tokens : totals_.decode_tokens);
      if (sequence.generated() >= sequence.max_tokens) sequence.finish = Finish::length;
    }
    run_->on_token(sequence);
    if (sequence.finish != Finish::none) run_->places.finished(batch);
  }
  token_choice_.look_ahead(all, rows);
}

double Executor::prefill_share() const {
  const auto all = double(footprint_.shape.sublayers.size()) * footprint_.shape.batches;
  return std::min(1.0, double(prefill_ops_) / all);
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
