// runtime/measure/measure_machine.h: measures this machine for plans: what it has, and how fast it does the work of
// runs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "policy/planner/machine.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// brief: half a second and some 64 MiB, for a run that plans itself; caches make the figures of memory too good. It
/// takes some 16 MiB if a run may use less than 256 MiB of memory. rough: a few points once each, for a job that takes
/// less time than a brief measurement. full: under a minute on two cores, over more memory than caches hold.
enum class Effort : std::uint8_t { rough, brief, full };

/// Measures the backend that `options` choose. Every figure is the median of several repetitions of what a run does,
/// with the shapes and the ops of its layers. Nothing else should run on the machine. The disk is measured in
/// options.disk_directory. Throws CapacityError, DeviceError, and what make_backend() throws.
policy::Machine measure_machine(const MachineOptions& options, Effort effort);
/// Measures an existing backend, for a run that may use `memory` bytes of host memory, and also weights of the
/// `quantised` types, which otherwise only Effort::full does. `weight_files`: LinkSizes::weight_files.
policy::Machine measure_machine(kernels::Backend& backend, const MachineOptions& options, Effort effort,
                                std::uint64_t memory = UINT64_MAX, const std::vector<DType>& quantised = {},
                                const std::vector<std::filesystem::path>& weight_files = {});
/// Measures the disk again for a second, which outlasts the period of a limit and the burst that it allows. For a
/// machine that was measured briefly, if the plan for it uses the disk.
void measure_disk_longer(kernels::Backend& backend, const MachineOptions& options,
                         const std::vector<std::filesystem::path>& weight_files, policy::Machine& machine);
/// The files that a run reads weights of `source` from; empty if it makes or packs them.
std::vector<std::filesystem::path> weight_files_of(const ModelSource& source);

}  // namespace weft::runtime
