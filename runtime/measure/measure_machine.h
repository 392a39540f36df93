// runtime/measure/measure_machine.h: measures this machine for plans: what it has, and how fast it does the work of
// runs.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/planner/machine.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// brief: half a second and some 64 MiB, for a run that plans itself; caches make the figures of memory too good. It
/// takes some 16 MiB if a run may use less than 256 MiB of memory. full: under a minute on two cores, over more memory
/// than caches hold.
enum class Effort : std::uint8_t { brief, full };

/// Measures the backend that `options` choose. Every figure is the median of several repetitions of what a run does,
/// with the shapes and the ops of its layers. Nothing else should run on the machine. The disk is measured in
/// options.disk_directory. Throws CapacityError, DeviceError, and what make_backend() throws.
policy::Machine measure_machine(const MachineOptions& options, Effort effort);
/// Measures an existing backend, for a run that may use `memory` bytes of host memory. Effort::brief then also measures
/// weights of the `quantised` types, which otherwise only Effort::full does.
policy::Machine measure_machine(kernels::Backend& backend, const MachineOptions& options, Effort effort,
                                std::uint64_t memory = UINT64_MAX, const std::vector<DType>& quantised = {});

}  // namespace weft::runtime
