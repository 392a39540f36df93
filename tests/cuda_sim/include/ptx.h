// tests/cuda_sim/include/ptx.h: what kernels cost that ran as nvcc's PTX (Config::ptx), for tests and reports.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace cusim {

/// Of all launches of a kernel, per warp: an instruction counts once, whatever the number of lanes.
struct PtxCounts {
  std::uint64_t launches = 0, instructions = 0;
  std::uint64_t global_requests = 0, global_bytes = 0;  ///< loads and stores; bytes that lanes asked for
  std::uint64_t sectors = 0;                            ///< of 32 bytes, that these requests touch
  std::uint64_t shared_requests = 0;
  std::uint64_t shared_passes = 0;  ///< over the banks; more than least_passes where lanes want one bank
  std::uint64_t least_passes = 0;
  std::uint64_t tensor_operations = 0;  ///< instructions on tensor cores
};

/// By the kernel's readable name. Requests are looked at only where Config::ptx_counts is set.
std::map<std::string, PtxCounts> ptx_counts();
void clear_ptx_counts();

}  // namespace cusim
