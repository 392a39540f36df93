// runtime/engine/machine_options.h: the options that choose which parts of the machine a run uses.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "offload/disk_store.h"

namespace weft::runtime {

/// The backend, disk engine, threads and memory of a run, as flags give them.
struct MachineOptions {
  std::string backend = "auto", disk_engine = "auto", disk_directory = ".";
  int threads = 0;
  bool deterministic = false;  ///< kernels::CudaOptions::batch_invariant; the CPU always is
  /// Bytes that --device-memory, --host-memory and --disk-memory ask for.
  std::array<std::optional<std::uint64_t>, 3> memory{};
  bool separate_device = false;                     ///< the CPU plays a GPU with separate memory (kernels::CpuOptions)
  offload::DiskStore::Decorate decorate_disk = {};  ///< tests inject faults here
  offload::OnFullDisk on_full_disk = {};
};

}  // namespace weft::runtime
