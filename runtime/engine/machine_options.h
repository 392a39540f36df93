// runtime/engine/machine_options.h: the machine part of the flags.
#pragma once

#include <string>

#include "offload/disk_store.h"

namespace weft::runtime {

/// Which backend, disk engine and threads a run takes; the machine part of the flags.
struct MachineOptions {
  std::string backend = "auto", disk_engine = "auto", disk_directory = ".";
  int threads = 0;
  bool separate_device = false;  ///< kernels::CpuOptions: the CPU plays a card with memory of its own
  offload::DiskStore::Decorate decorate_disk = {};  ///< tests: faults
};

}  // namespace weft::runtime
