// runtime/engine/machine_options.h: the machine part of the flags.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "offload/disk_store.h"

namespace weft::runtime {

/// Which backend, disk engine and threads a run takes; the machine part of the flags.
struct MachineOptions {
  std::string backend = "auto", disk_engine = "auto", disk_directory = ".";
  int threads = 0;
  /// What --device-memory, --host-memory and --disk-memory ask for.
  std::array<std::optional<std::uint64_t>, 3> memory{};
  bool separate_device = false;  ///< kernels::CpuOptions: the CPU plays a card with memory of its own
  offload::DiskStore::Decorate decorate_disk = {};  ///< tests: faults
};

}  // namespace weft::runtime
