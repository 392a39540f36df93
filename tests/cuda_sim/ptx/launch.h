// tests/cuda_sim/ptx/launch.h: launches of kernels as nvcc's PTX, in place of what the host's compiler made of them.
#pragma once

#include "internal.h"

namespace cusim::ptx {

/// Runs the grid by the PTX in Config::ptx; what goes wrong is a finding and breaks the device.
void launch(const cudaLaunchConfig_t& config, const void* kernel, const KernelCall& call);

}  // namespace cusim::ptx
