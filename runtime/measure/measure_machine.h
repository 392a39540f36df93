// runtime/measure/measure_machine.h: the machine at hand as plans need it: what it has, and how fast it does what runs
// do.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/machine.h"
#include "runtime/engine/session.h"

namespace weft::runtime {

/// brief: half a second and some 64 MiB, before a run plans itself; caches make the figures of memory too good. Where a
/// run may use less than 256 MiB of memory, some 16 MiB. full: under a minute on two cores, over more memory than
/// caches hold.
enum class Effort : std::uint8_t { brief, full };

/// Every figure is a median of several repetitions of what a run does, with the shapes and the ops of its layers, on
/// the backend that `options` choose. Nothing else should run on the machine; the disk is measured in
/// options.disk_directory. Throws CapacityError, DeviceError, and what make_backend() does.
policy::Machine measure_machine(const MachineOptions& options, Effort effort);
/// The same of a backend that is there already, for a run that may use `memory` bytes of the host's, and briefly also
/// with weights of `quantised` types, which otherwise only Effort::full measures.
policy::Machine measure_machine(kernels::Backend& backend, const MachineOptions& options, Effort effort,
                                std::uint64_t memory = UINT64_MAX, const std::vector<DType>& quantised = {});

}  // namespace weft::runtime
