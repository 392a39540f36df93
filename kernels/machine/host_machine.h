// kernels/machine/host_machine.h: the machine that this process may use, according to the operating system.
#pragma once

#include <cstddef>
#include <string>

namespace weft::kernels {

/// The processors of this process's affinity mask.
int processors();

/// The bytes of the largest shared cache and of all processors' own second ones, as the system names them; 0 if it does
/// not.
std::size_t processor_cache_bytes();

/// The name in /proc/cpuinfo, or "unknown processor" if there is none.
std::string processor_name();

/// Bytes that could be allocated without swapping: MemAvailable, or less if a control group (v1 or v2) of this process
/// or above it leaves less. A group's reclaimable file pages count as free. `root` is put before every path, for tests.
std::size_t memory_available(const std::string& root = "");
/// MemTotal, or the limit of such a group.
std::size_t memory_total(const std::string& root = "");

/// The memory node next to the device at `pci` ("0000:3b:00.0", in any case), or -1 if the system names none.
int memory_node(const std::string& pci, const std::string& root = "");
/// Takes pages that are first touched from now on from that node while it has any. Does nothing for -1, or if the
/// system does not know of nodes.
void prefer_node(void* begin, std::size_t bytes, int node);

}  // namespace weft::kernels
