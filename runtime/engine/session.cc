#include "runtime/engine/session.h"

#include <sys/statvfs.h>

#include <algorithm>
#include <chrono>

#include "kernels/error.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/machine/host_machine.h"
#include "policy/layout/placement.h"
#include "policy/layout/policy_text.h"
#include "policy/layout/rolling.h"
#include "runtime/model/packed_copy.h"

namespace weft::runtime {
namespace {

// Shares that a run may take if the user names no budget. The rest is left to the process and the machine.
constexpr double kMemoryShare = 0.85, kDiskShare = 0.9;
constexpr int kMostThreads = 1024;

void require_arithmetic(const std::optional<policy::WeightFormat>& format, const kernels::Backend& backend) {
  if (format && format->arithmetic == Arithmetic::bfloat16 && backend.name() == "cpu" && !kernels::multiplies_bf16())
    throw UsageError(
        std::string("--weight-arithmetic bfloat16: this processor does not multiply bfloat16 numbers (AVX512-BF16); "
                    "leave it out, and products are ") +
        (format->quantised() ? "of integers" : "exact"));
}

/// Refuses a run whose answers would depend on what else is computed with them, because a GPU and the host, which round
/// differently, share what they compute between sequences.
void require_invariance(const policy::Policy& policy, const policy::ScheduleShape& shape) {
  if (policy.experts_on_host > 0)
    throw UsageError(
        "--deterministic: the device computes all experts in a block's first sweep and the host a share of them later, "
        "so an answer would depend on when its prompt begins; leave --experts and \"experts\" out");
  for (int layer = 0; layer < shape.layers; ++layer)
    for (int batch = 1; batch < shape.batches; ++batch)
      if (shape.host_attends[shape.kv_index(layer, batch)] != shape.host_attends[shape.kv_index(layer, 0)])
        throw UsageError(
            "--deterministic: the host attends to the KV of some gpu batches and the device to that of others, so an "
            "answer would depend on its batch; give --attention device, or --num-gpu-batches 1");
}

/// source.weight_format with the arithmetic that products have on this backend: bf16 weights are multiplied by rounded
/// numbers where a CPU can, as vLLM and transformers do, unless a user asks for exact products.
std::optional<policy::WeightFormat> format_on(const kernels::Backend& backend, const ModelSource& source) {
  const auto format = source.weight_format.value_or(policy::WeightFormat{.dtype = source.type});
  if (format.dtype != DType::bf16 || format.arithmetic != Arithmetic::int8 || backend.name() != "cpu" ||
      !kernels::multiplies_bf16())
    return source.weight_format;
  return policy::WeightFormat{.dtype = DType::bf16, .arithmetic = Arithmetic::bfloat16};
}

/// What a run may take of the memory that is free: a share of it, and where there is little, not what the process needs
/// besides its buffers (threads, the measurements of a plan, pages of the program).
std::uint64_t share_of(std::uint64_t free) {
  constexpr std::uint64_t kProcess = std::uint64_t{16} << 20;
  const auto share = static_cast<std::uint64_t>(kMemoryShare * double(free));
  return std::min(share, free - std::min(free / 2, kProcess));
}

/// [layers, heads] As LayersPlan has them: a host that attends has no unit of weights at hand.
std::vector<std::vector<float>> sink_logits_of(const ModelSource& source) {
  std::vector<std::vector<float>> logits;
  for (std::size_t u = 0; source.spec.sinks && u < source.units.size(); ++u)
    if (source.units[u].kind == policy::Unit::Kind::attention)
      logits.push_back(source.weights->numbers(u, policy::Role::sinks));
  return logits;
}

}  // namespace

policy::Budgets free_bytes(const kernels::Backend& backend, const std::string& disk_directory) {
  policy::Budgets budgets;
  // Memory that the backend has already taken counts as part of the budget (SizingInputs::device_overhead).
  budgets.bytes[0] = share_of(backend.device_bytes_free() + backend.device_overhead());
  budgets.bytes[1] = share_of(backend.host_bytes_free());
  struct statvfs disk {};
  if (statvfs(disk_directory.c_str(), &disk) == 0)
    budgets.bytes[2] = static_cast<std::uint64_t>(kDiskShare * double(disk.f_bavail) * double(disk.f_frsize));
  return budgets;
}

void require_memory(const MachineOptions& options, const kernels::Backend& backend) {
  const auto& [device, host, disk] = options.memory;
  const auto require = [](const char* flag, std::uint64_t asked, const char* place, std::uint64_t there) {
    if (asked > there)
      throw UsageError(std::string(flag) + " " + policy::bytes_to_text(asked) + ": " + place + " has " +
                       policy::bytes_to_text(there) +
                       "; ask for less, or leave it out to use what is free (weft plan --machine plans for others)");
  };
  const bool shared = backend.device_is_host_memory();
  if (device)
    require("--device-memory", *device, shared ? "this machine, whose memory plays the device," : "the device",
            shared ? kernels::memory_total() : backend.device_bytes_free() + backend.device_overhead());
  if (host) require("--host-memory", *host, "this machine", kernels::memory_total());
  if (shared && device && host)
    require("--device-memory and --host-memory, together", *device + *host,
            "this machine, whose memory plays the device,", kernels::memory_total());
  struct statvfs file_system {};
  if (disk && statvfs(options.disk_directory.c_str(), &file_system) == 0)
    require("--disk-memory", *disk, "the file system of --disk-dir",
            std::uint64_t{file_system.f_blocks} * file_system.f_frsize);
}

std::unique_ptr<kernels::Backend> make_backend(const MachineOptions& options, std::string* reason) {
  const auto say = [&](const std::string& text) {
    if (reason) *reason = text;
  };
  say("--backend " + options.backend);
  if (options.threads < 0 || options.threads > kMostThreads)
    throw UsageError("--threads must be from 1 to " + std::to_string(kMostThreads) + ", or 0 for all cores, got " +
                     std::to_string(options.threads));
  const kernels::CudaOptions cuda{.threads = options.threads, .batch_invariant = options.deterministic};
  if (options.backend == "cuda") return kernels::make_cuda_backend(cuda);
  if (options.backend == "auto") {
    try {
      say("--backend auto found a GPU");
      return kernels::make_cuda_backend(cuda);
    } catch (const DeviceError& missing) {  // no GPU, or a build without CUDA: the CPU plays the device
      say(std::string("--backend auto found no GPU: ") + missing.what());
    }
  } else if (options.backend != "cpu") {
    throw UsageError("--backend must be auto, cpu or cuda, got '" + options.backend.substr(0, 40) + "'");
  }
  return kernels::make_cpu_backend({.threads = options.threads, .separate_device = options.separate_device});
}

std::unique_ptr<offload::DiskStore> make_disk(const MachineOptions& options) {
  using offload::DiskEngine;
  const std::string& name = options.disk_engine;
  const auto engine = name == "auto"       ? DiskEngine::automatic
                      : name == "io_uring" ? DiskEngine::io_uring
                      : name == "threads"  ? DiskEngine::threads
                      : name == "buffered"
                          ? DiskEngine::buffered
                          : throw UsageError("--disk-engine must be auto, io_uring, threads or buffered, got '" +
                                             name.substr(0, 40) + "'");
  return std::make_unique<offload::DiskStore>(engine, options.decorate_disk, options.on_full_disk);
}

Session::Session(const ModelSource& source, const Decide& decide, const MachineOptions& machine,
                 const std::atomic<bool>& stop, const OnLoaded& on_loaded)
    : source_(source), stop_(stop), grace_(stop), backend_(make_backend(machine, &backend_reason_)),
      disk_(make_disk(machine)) {
  require_memory(machine, *backend_);
  sizing_.unit_bytes = source.weights->unit_bytes();
  for (std::size_t u = 0; u < source.units.size(); ++u) sizing_.unit_in_files.push_back(source.in_files(u));
  if (source.packs()) sizing_.copy_bytes = packed_copy_bytes(source);
  sizing_.kv = source.type;
  sizing_.weight_format = format_on(*backend_, source);
  sizing_.product = backend_->product_type(policy::multiplied_type(source.type, source.weight_format));
  if (backend_->unpacks_weights()) sizing_.unpacked_bytes = source.weights->unpacked_bytes();
  sizing_.disk_reads_device = backend_->device_is_host_memory();
  sizing_.device_overhead = backend_->device_overhead();
  sizing_.rows_that_fill = backend_->rows_that_fill();
  policy::Budgets free = free_bytes(*backend_, machine.disk_directory);
  if (source.packs()) free.bytes[2] += packed_copy_there(source, machine.disk_directory);
  require_arithmetic(source.weight_format, *backend_);
  Decision decision = decide(*backend_, free);
  decision.policy.weight_format = sizing_.weight_format;
  workload_ = decision.work;
  policy_ = policy::complete(decision.policy, source.spec, source.units, workload_, sizing_, free,
                             backend_->device_is_host_memory());
  footprint_ = policy::footprint(source.spec, source.units, policy_, workload_, sizing_);
  if (machine.deterministic && backend_->name() == "cuda") require_invariance(policy_, footprint_.shape);
  const auto begin = std::chrono::steady_clock::now();
  if (source.checkpoint && source.verify_crc) source.checkpoint->verify(stop);
  const auto& homes = footprint_.shape.unit_home;
  if (source.packs() && std::find(homes.begin(), homes.end(), policy::Tier::disk) != homes.end())
    copy_ = open_packed_copy(source, machine.disk_directory, stop);
  storage_ = std::make_unique<Storage>(source, copy_.get(), footprint_, *backend_, *disk_, machine.disk_directory, stop,
                                       on_loaded);
  load_seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const LayersPlan plan{.model = source.spec,
                        .retention = policy_.retention,
                        .types = footprint_.types,
                        .rotate = policy_.kv_format.rotates(),
                        .chunk_tokens = footprint_.workspace.chunk_tokens,
                        .piece_tokens = footprint_.workspace.piece_tokens,
                        .prefix_tokens = footprint_.workspace.prefix_tokens,
                        .arithmetic = policy_.weight_format.value_or(policy::WeightFormat{}).arithmetic,
                        .sink_logits = sink_logits_of(source)};
  layers_ = std::make_unique<Layers>(plan, storage_->workspace(), *storage_, *backend_, grace_);
  if (footprint_.workspace.host_experts.bytes > 0)
    host_experts_ = std::make_unique<HostExperts>(plan, footprint_, *storage_, *backend_, grace_);
  executor_ =
      std::make_unique<Executor>(policy_, footprint_, *layers_, host_experts_.get(), *storage_, *backend_, grace_);
}

void Session::require_weights() const {
  if (source_.checkpoint && storage_->reads_checkpoint()) source_.checkpoint->require_unchanged(stop_);
  if (copy_ && storage_->reads_copy()) copy_->file.require_unchanged(stop_);
}

std::string Session::plan_line() const {
  return policy_line(policy_) + "; " + policy::bytes_to_text(footprint_[policy::Tier::device]) + " of " +
         policy::bytes_to_text(policy_.budgets[policy::Tier::device]) + " device memory";
}

LayerKeeps Session::keep(std::int64_t prompt, std::int64_t generation) const {
  if (const auto why = policy::too_long(source_.spec, policy_.retention, prompt, generation);
      why && policy_.retention.rolled())
    throw UsageError("a sequence of " + std::to_string(prompt) + " and " + std::to_string(generation) +
                     " tokens: the model's context is " + policy::context_text(source_.spec) + *why);
  LayerKeeps keeps(footprint_.kv_shapes.size());
  for (std::size_t layer = 0; layer < keeps.size(); ++layer) {
    int head = 0;
    for (const offload::KvShape& run : footprint_.kv_shapes[layer]) {
      keeps[layer].push_back(policy_.retention.kept(prompt, generation, static_cast<int>(layer), head,
                                                    source_.spec.window(static_cast<int>(layer))));
      head += run.kv_heads;
    }
  }
  return keeps;
}

}  // namespace weft::runtime
