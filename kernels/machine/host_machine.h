// kernels/machine/host_machine.h: the machine that this process may use, according to the operating system.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace weft::kernels {

/// The numbers of the processors of this process's affinity mask; empty if there are too many for one.
std::vector<int> allowed_processors();
/// The seconds of processor time that this process may take in a second: the processors of its affinity mask, or less
/// if a control group (v1 or v2) of this process or above it has a quota of less time. `root` is put before every path,
/// for tests.
double processor_time(const std::string& root = "");
/// The number of processors that this process may keep busy: processor_time(), where a part of one counts as one.
int processors(const std::string& root = "");

/// Shares of the processors, where threads feed a GPU. These threads sleep nearly always, and must get a core at once
/// when they wake: while one waits, the link or the GPU may stand still. If all cores compute, it may have to wait for
/// the end of a time slice, which is 3 ms, or 160 MB of a fast link.
struct CoreShares {
  int computing = 0;         ///< threads that compute
  std::vector<int> feeding;  ///< processors that are left to the threads that feed the device; may be empty
  std::vector<int> others;   ///< those for the threads that compute; empty if `feeding` is
};
/// Leaves a quarter of `count` processors, the result of processors(), and at most one for each thread that feeds the
/// device: to it, from it, and the launches. That costs attention on the host little, because fewer cores saturate the
/// memory. They are the last of `allowed` that are also in `near`, the processors next to the device, so that they
/// share a cache, within which a system looks for a free core. `asked` threads, if not 0, are taken as given, and leave
/// only processors that they do not need.
CoreShares share_cores(int count, const std::vector<int>& allowed, const std::vector<int>& near, int asked);
/// Keeps the calling thread on these processors. Does nothing if there are none or the system refuses.
void stay_on(const std::vector<int>& processors);

/// The bytes of a third-level cache and of all processors' second-level caches, as far as the system names
/// them.
std::size_t processor_cache_bytes();

/// The name in /proc/cpuinfo, or "unknown processor" if there is none.
std::string processor_name();

/// Raises this process's limit of open files as far as it may: every shard of a checkpoint stays open.
void raise_open_files();

/// Bytes that could be allocated without swapping: MemAvailable, or less if a control group (v1 or v2) of this process
/// or above it leaves less, to its limit or to the one past which it is slowed down. A group's reclaimable file pages
/// count as free.
std::size_t memory_available(const std::string& root = "");
/// All of the memory that this process may use: MemTotal, or the limit of such a group if that is less.
std::size_t memory_total(const std::string& root = "");

/// The memory node next to the device at `pci` ("0000:3b:00.0", in any case), or -1 if the system names none.
int memory_node(const std::string& pci, const std::string& root = "");
/// The processors of a memory node; empty for -1.
std::vector<int> processors_of_node(int node, const std::string& root = "");
/// Takes pages that are first touched from now on from that node while it has any. Does nothing for -1, or if the
/// system does not know of nodes.
void prefer_node(void* begin, std::size_t bytes, int node);

}  // namespace weft::kernels
