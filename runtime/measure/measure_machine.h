// runtime/measure/measure_machine.h: measures this machine for plans: what it has, and how fast it does the work of
// runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "policy/planner/machine.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// brief: half a second, for a run that plans itself, over 32 MiB or as much as MeasuredFor says; a run that may use
/// less than 256 MiB of memory is measured over less. rough: a few points once each, for a job that takes less time
/// than a brief measurement. full: under a minute on two cores, over more memory than caches hold.
enum class Effort : std::uint8_t { rough, brief, full };

/// The run that a machine is measured for, as far as it is known.
struct MeasuredFor {
  std::uint64_t memory = UINT64_MAX;  ///< bytes of host memory that it may use
  /// Bytes of weights and of KV that a sweep passes over. A brief measurement takes its figures over as many, up to
  /// twice what caches hold; 0, or unknown, is over little, so that caches make the figures too good.
  std::uint64_t weights = 0, kv = 0;
  std::vector<DType> quantised = {};  ///< types of its weights that only Effort::full measures unless they are named
  std::vector<std::filesystem::path> weight_files = {};  ///< LinkSizes::weight_files
};

/// Measures the backend that `options` choose. Every figure is the median of several repetitions of what a run does,
/// with the shapes and the ops of its layers. Nothing else should run on the machine. The disk is measured in
/// options.disk_directory. Throws CapacityError, DeviceError, and what make_backend() throws.
policy::Machine measure_machine(const MachineOptions& options, Effort effort);
/// Measures an existing backend.
policy::Machine measure_machine(kernels::Backend& backend, const MachineOptions& options, Effort effort,
                                const MeasuredFor& run = {});
/// Measures the disk again for a second, which outlasts the period of a limit and the burst that it allows, and for a
/// hundredth of a run that takes longer. For a machine that was measured briefly, if the plan for it uses the disk.
void measure_disk_longer(kernels::Backend& backend, const MachineOptions& options, double run_seconds,
                         const MeasuredFor& run, policy::Machine& machine);
/// Bytes of all weights of a model.
std::uint64_t weight_bytes_of(const ModelSource& source);
/// The files that a run reads weights of `source` from; empty if it makes or packs them.
std::vector<std::filesystem::path> weight_files_of(const ModelSource& source);

}  // namespace weft::runtime
