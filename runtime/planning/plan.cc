#include "runtime/planning/plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "kernels/error.h"
#include "runtime/model/packed_copy.h"

namespace weft::runtime {
namespace {

using policy::Candidate;
using policy::Machine;

constexpr double kWorthSaying = 1.05;  // the least gain that is reported

double& rate(Machine& machine, offload::Lane lane) { return machine.bytes_per_second[static_cast<std::size_t>(lane)]; }

void scale(policy::RateTable& table, double factor) {
  for (policy::RateTable::Point& point : table.points) point.rate *= factor;
}

void scale(policy::Engine& engine, double factor) {
  for (policy::RateTable& table : engine.linear) scale(table, factor);
  for (policy::RateTable* table : {&engine.prefill_attention, &engine.column_sums, &engine.decode_attention,
                                   &engine.decode_int8, &engine.decode_int4})
    scale(*table, factor);
  engine.pointwise *= factor;
  engine.launch /= factor;
}

/// The sizing inputs of `source` with its weights in another format.
policy::SizingInputs sizing_in(const ModelSource& source, const Machine& machine, const policy::WeightFormat& format) {
  policy::SizingInputs sizing = sizing_inputs(source, machine);
  const Weights weights(source.spec, source.units, 1, source.type, format);
  sizing.unit_bytes = weights.unit_bytes();
  if (machine.unpacks_weights) sizing.unpacked_bytes = weights.unpacked_bytes();
  sizing.weight_format = format;
  if (machine.unpacks_weights) sizing.product = policy::multiplied_type(source.type, format);
  if (!source.checkpoint) return sizing;
  sizing.unit_in_files.assign(source.units.size(), true);
  sizing.copy_bytes = std::accumulate(sizing.unit_bytes.begin(), sizing.unit_bytes.end(), std::uint64_t{0});
  return sizing;
}

/// One of the formats and retentions that a request allows.
struct Variant {
  const ModelSource* source;
  policy::KvFormat kv_format;
  policy::Retention retention;
};

template <class T> void add_new(std::vector<T>& all, const T& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

/// All variants that a request allows. Its own retention and formats come first.
std::vector<Variant> choices(const PlanRequest& request) {
  std::vector<policy::Retention> retentions{request.policy.retention.value_or(policy::Retention{})};
  for (const policy::Retention& other : request.retentions) add_new(retentions, other);
  std::vector<policy::KvFormat> formats{request.policy.kv_format.value_or(policy::KvFormat{})};
  for (const policy::KvFormat& other : request.kv_formats) add_new(formats, other);
  std::vector<const ModelSource*> sources{&request.source};
  sources.insert(sources.end(), request.sources.begin(), request.sources.end());
  std::vector<Variant> all;
  for (const ModelSource* source : sources)
    for (const policy::KvFormat& format : formats)
      for (const policy::Retention& retention : retentions) all.push_back({source, format, retention});
  return all;
}

/// Plans again with one thing changed, by the linear program alone.
class WhatIf {
 public:
  WhatIf(const PlanRequest& request, const Planned& planned)
      : request_(request), planned_(planned), partial_(partial_of(request, planned)), now_(planned.plan.relaxed) {}

  double gain(const Machine& machine, const policy::Budgets& free) const {
    return now_ > 0 ? ask(machine, free) / now_ : 0;
  }
  double gain_of(const policy::Retention& retention) const {
    policy::PartialPolicy partial = partial_;
    partial.retention = retention;
    return gain_of(partial, retention);
  }
  double gain_of(const policy::KvFormat& format) const {
    policy::PartialPolicy partial = partial_;
    partial.retention = planned_.retention;
    partial.kv_format = format;
    return gain_of(partial, planned_.retention);
  }
  double gain_of(const policy::WeightFormat& format) const {
    policy::PartialPolicy partial = partial_;
    partial.retention = planned_.retention;
    const policy::SizingInputs sizing = sizing_in(*planned_.source, request_.machine, format);
    const policy::Problem problem{request_.source.spec, request_.source.units, planned_.work, sizing, request_.machine};
    return now_ > 0 ? relaxed_tokens_per_second(problem, partial, request_.free) / now_ : 0;
  }

 private:
  double gain_of(const policy::PartialPolicy& partial, const policy::Retention& retention) const {
    const policy::Workload work = request_.work(retention);
    const policy::Problem problem{request_.source.spec, request_.source.units, work, planned_.sizing, request_.machine};
    return now_ > 0 ? relaxed_tokens_per_second(problem, partial, request_.free) / now_ : 0;
  }

  static policy::PartialPolicy partial_of(const PlanRequest& request, const Planned& planned) {
    policy::PartialPolicy partial = request.policy;
    partial.kv_format = planned.kv_format;
    partial.weight_format = planned.source->weight_format;
    partial.experts_on_host = planned.best().policy.experts_on_host;
    return partial;
  }

  double ask(const Machine& machine, const policy::Budgets& free) const {
    policy::PartialPolicy partial = partial_;
    partial.retention = planned_.retention;
    const policy::Problem problem{request_.source.spec, request_.source.units, planned_.work, planned_.sizing, machine};
    return relaxed_tokens_per_second(problem, partial, free);
  }

  const PlanRequest& request_;
  const Planned& planned_;
  const policy::PartialPolicy partial_;
  const double now_;
};

}  // namespace

policy::SizingInputs sizing_inputs(const ModelSource& source, const Machine& machine) {
  policy::SizingInputs sizing;
  sizing.unit_bytes = source.weights->unit_bytes();
  if (machine.unpacks_weights) {
    sizing.unpacked_bytes = source.weights->unpacked_bytes();
    sizing.product = policy::multiplied_type(source.type, source.weight_format);
  }
  if (source.packs()) sizing.copy_bytes = packed_copy_bytes(source);
  sizing.kv = source.type;
  sizing.disk_reads_device = machine.device_is_host_memory;
  sizing.device_overhead = machine.device_overhead;
  sizing.rows_that_fill = machine.rows_that_fill;
  sizing.weight_format = source.weight_format;
  for (std::size_t unit = 0; unit < source.units.size(); ++unit) sizing.unit_in_files.push_back(source.in_files(unit));
  return sizing;
}

namespace {

Planned plan_of(const PlanRequest& request, const Variant& choice) {
  Planned planned{choice.source,
                  choice.retention,
                  choice.kv_format,
                  request.work(choice.retention),
                  sizing_inputs(*choice.source, request.machine),
                  {}};
  policy::PartialPolicy partial = request.policy;
  partial.retention = choice.retention;
  partial.kv_format = choice.kv_format;
  partial.weight_format = choice.source->weight_format;
  const policy::Problem problem{choice.source->spec, choice.source->units, planned.work, planned.sizing,
                                request.machine};
  planned.plan = policy::search(problem, partial, request.free);
  return planned;
}

}  // namespace

Planned make_plan(const PlanRequest& request) {
  std::optional<Planned> best;
  std::vector<Candidate> others;
  const std::vector<Variant> all = choices(request);
  for (const Variant& choice : all) {
    try {
      Planned planned = plan_of(request, choice);
      if (best && best->best().prediction.tokens_per_second() >= planned.best().prediction.tokens_per_second()) {
        others.push_back(planned.best());
        continue;
      }
      if (best) others.push_back(best->best());
      best = std::move(planned);
    } catch (const CapacityError&) {  // another variant may fit
      if (&choice == &all.back() && !best) throw;
    }
  }
  best->plan.candidates.insert(best->plan.candidates.end(), others.begin(), others.end());
  return std::move(*best);
}

Candidate predict_policy(const PlanRequest& request, const policy::Policy& policy) {
  const policy::SizingInputs sizing = sizing_inputs(request.source, request.machine);
  const policy::Workload work = request.work(policy.retention);
  const policy::Problem problem{request.source.spec, request.source.units, work, sizing, request.machine};
  return {policy,
          policy::predict(problem, policy, footprint(request.source.spec, request.source.units, policy, work, sizing))};
}

std::vector<Gain> what_would_help(const PlanRequest& request, const Planned& planned) {
  using offload::Lane;
  const Machine& machine = request.machine;
  const WhatIf what_if(request, planned);
  std::vector<Gain> gains;
  const auto offer = [&](std::string what, double factor) {
    if (factor >= kWorthSaying) gains.push_back({std::move(what), factor});
  };
  if (!(planned.source->weight_format && planned.source->weight_format->quantised()))
    for (const DType dtype : {DType::i8, DType::i4})
      offer(std::string("--weight-dtype ") + name_of(dtype), what_if.gain_of(policy::WeightFormat{.dtype = dtype}));
  if (!planned.best().policy.kv_format.quantised())
    for (const DType dtype : {DType::i8, DType::i4})
      offer(std::string("--kv-dtype ") + name_of(dtype), what_if.gain_of(policy::KvFormat::of(dtype)));
  if (planned.retention.rule == policy::Retention::Rule::full)
    offer("retention h2o:0.1:0.1", what_if.gain_of(policy::Retention::from_text("h2o:0.1:0.1")));
  for (const auto& [lane, back, name] : {std::tuple{Lane::host_to_device, Lane::device_to_host, "twice the link"},
                                         std::tuple{Lane::disk_read, Lane::disk_write, "twice the disk"}}) {
    // A block that no longer fits in memory would use a faster disk; a plan that leaves the disk alone does not.
    if (lane == Lane::disk_read && planned.best().prediction.bytes[static_cast<std::size_t>(offload::Tier::disk)] == 0)
      continue;
    Machine faster = machine;
    rate(faster, lane) *= 2;
    rate(faster, back) *= 2;
    if (lane == Lane::disk_read) faster.disk_rows_per_second *= 2, faster.spilled_read *= 2;
    offer(name, what_if.gain(faster, request.free));
  }
  Machine faster = machine;
  scale(faster.device, 2);
  offer("a device twice as fast", what_if.gain(faster, request.free));
  faster = machine;
  scale(faster.host, 2);
  offer(planned.best().policy.experts_on_host > 0 ? "a host twice as fast" : "twice the speed of attention on the host",
        what_if.gain(faster, request.free));
  for (const offload::Tier tier : offload::kTiers) {
    const auto index = static_cast<std::size_t>(tier);
    if (tier == offload::Tier::disk || request.policy.budgets[index]) continue;
    policy::Budgets more = request.free;
    more.bytes[index] += more.bytes[index] / 2;
    offer("+ " + policy::bytes_to_text(more.bytes[index] - request.free.bytes[index]) + " of " + name_of(tier) +
              " memory",
          what_if.gain(machine, more));
  }
  std::stable_sort(gains.begin(), gains.end(), [](const Gain& a, const Gain& b) { return a.factor > b.factor; });
  return gains;
}

}  // namespace weft::runtime
