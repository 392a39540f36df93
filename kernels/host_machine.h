// kernels/host_machine.h: what the operating system says about the machine that this process may use.
#pragma once

#include <cstddef>
#include <string>

namespace weft::kernels {

/// The processors of this process's affinity mask.
int processors();

/// As in /proc/cpuinfo; "unknown processor" if that says nothing.
std::string processor_name();

/// Bytes that could be allocated without swapping: MemAvailable, or less where a control group (v1 or v2) of this
/// process or above it leaves less; its reclaimable file pages count as free. `root` is put before every path, for
/// tests.
std::size_t memory_available(const std::string& root = "");
/// MemTotal, or the limit of such a group.
std::size_t memory_total(const std::string& root = "");

}  // namespace weft::kernels
