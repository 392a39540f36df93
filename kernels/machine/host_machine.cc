#include "kernels/machine/host_machine.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string_view>
#include <thread>

namespace weft::kernels {
namespace {

std::optional<std::uint64_t> number_in(const std::string& text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return {};  // "max", or nothing
  return value;
}

std::optional<std::uint64_t> number_of(const std::string& path) {
  std::string text;
  std::ifstream file(path);
  return file >> text ? number_in(text) : std::nullopt;
}

constexpr std::size_t kMostNodes = 1024, kWordBits = 8 * sizeof(unsigned long);  // memory nodes

/// The number after `key` in a file of lines "key number".
std::optional<std::uint64_t> number_after(const std::string& path, std::string_view key) {
  std::string word, number;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const std::size_t digit = line.find_first_of("0123456789", key.size());
    if (digit != std::string::npos) return number_in(line.substr(digit));
  }
  return {};
}

/// The names of the files of one version of control groups. `high`: past it a process is not killed, but slowed down
/// for good.
struct GroupFiles {
  const char *mount, *limit, *high, *usage, *inactive, *active;
};
constexpr GroupFiles kVersion1 = {"/sys/fs/cgroup/memory",  "/memory.limit_in_bytes", nullptr,
                                  "/memory.usage_in_bytes", "total_inactive_file ",   "total_active_file "};
constexpr GroupFiles kVersion2 = {"/sys/fs/cgroup",  "/memory.max",    "/memory.high",
                                  "/memory.current", "inactive_file ", "active_file "};

std::optional<std::uint64_t> lesser(std::optional<std::uint64_t> a, std::optional<std::uint64_t> b) {
  return a && b ? std::min(*a, *b) : a ? a : b;
}

/// The file pages that a group can give back. Pages that were read again are given back later than others; a few of
/// them stay out of the count, for what is in use.
std::uint64_t reclaimable(const std::string& folder, const GroupFiles& files, std::uint64_t limit) {
  constexpr std::uint64_t kInUse = 32;  // this part of the limit
  const std::string stat = folder + "/memory.stat";
  const std::uint64_t active = number_after(stat, files.active).value_or(0);
  return number_after(stat, files.inactive).value_or(0) + active - std::min(active / 2, limit / kInUse);
}

/// Calls version_1(group) or version_2(group) with the path of each group of this process that controls `what`.
template <class Version1, class Version2>
void visit_groups(const std::string& root, const std::string& what, const Version1& version_1,
                  const Version2& version_2) {
  std::ifstream groups(root + "/proc/self/cgroup");  // lines "id:controllers:path"; version 2 is "0::path"
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") version_2(group);
    else if (controllers.find("," + what + ",") != std::string::npos) version_1(group);
  }
}

/// Takes the last name off the path of a group.
void to_parent(std::string& group) {
  group.erase(group.find_last_of('/') == std::string::npos ? 0 : group.find_last_of('/'));
}

/// The least time per second that the groups from `group` up to the root allow. `limit(folder)` is that of one group.
template <class Limit> double least_quota(std::string group, const Limit& limit) {
  double least = limit(group);
  while (!group.empty()) {
    to_parent(group);
    least = std::min(least, limit(group));
  }
  return least;
}

constexpr double kNoQuota = 1e9;

double quota(std::optional<std::uint64_t> microseconds, std::optional<std::uint64_t> period) {
  if (!microseconds || !period || *microseconds == 0 || *period == 0) return kNoQuota;  // "-1" is no number
  return static_cast<double>(*microseconds) / static_cast<double>(*period);
}

enum class Memory { all, left };

/// Lowers `bytes` to the memory that the groups from `group` up to the root allow, or to the part of it that they
/// leave. A container sees its own group as the root.
void lower_to_groups(const std::string& root, const GroupFiles& files, std::string group, Memory which,
                     std::uint64_t& bytes) {
  for (;;) {
    const std::string folder = root + files.mount + group;
    const auto limit = lesser(number_of(folder + files.limit),
                              files.high ? number_of(folder + files.high) : std::optional<std::uint64_t>{});
    if (limit && which == Memory::all) bytes = std::min(bytes, *limit);
    const auto usage = limit && which == Memory::left ? number_of(folder + files.usage) : std::nullopt;
    // A system takes long to write what is reclaimable, so only a group that may leave less is asked.
    if (usage && *limit - std::min(*limit, *usage) < bytes) {
      const std::uint64_t used = *usage - std::min(*usage, reclaimable(folder, files, *limit));
      bytes = std::min(bytes, *limit - std::min(*limit, used));
    }
    if (group.empty()) return;
    to_parent(group);
  }
}

std::size_t memory_of(const std::string& root, Memory which) {
  const bool all = which == Memory::all;
  std::uint64_t bytes = UINT64_MAX;
  if (const auto kib = number_after(root + "/proc/meminfo", all ? "MemTotal:" : "MemAvailable:")) bytes = *kib * 1024;
  else
    bytes = static_cast<std::uint64_t>(sysconf(all ? _SC_PHYS_PAGES : _SC_AVPHYS_PAGES)) *
            static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));

  const auto limit = [&](const GroupFiles& files) {
    return [&](const std::string& group) { lower_to_groups(root, files, group, which, bytes); };
  };
  visit_groups(root, "memory", limit(kVersion1), limit(kVersion2));
  return static_cast<std::size_t>(bytes);
}

}  // namespace

std::vector<int> allowed_processors() {
  cpu_set_t mask;
  std::vector<int> numbers;
  if (sched_getaffinity(0, sizeof mask, &mask) != 0) return numbers;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &mask)) numbers.push_back(i);
  return numbers;
}

double processor_time(const std::string& root) {
  const std::size_t allowed = allowed_processors().size();
  const auto there = static_cast<double>(allowed > 0 ? allowed : std::max(1u, std::thread::hardware_concurrency()));
  double least = kNoQuota;
  visit_groups(
      root, "cpu",
      [&](const std::string& of) {
        least =
            std::min(least, least_quota(of, [&](const std::string& group) {
                       const std::string folder = root + "/sys/fs/cgroup/cpu" + group;
                       return quota(number_of(folder + "/cpu.cfs_quota_us"), number_of(folder + "/cpu.cfs_period_us"));
                     }));
      },
      [&](const std::string& of) {
        least = std::min(least, least_quota(of, [&](const std::string& group) {
                           std::string time, period;
                           std::ifstream(root + "/sys/fs/cgroup" + group + "/cpu.max") >> time >> period;
                           return quota(number_in(time), number_in(period));  // "max" is no number
                         }));
      });
  return std::min(least, there);
}

int processors(const std::string& root) { return static_cast<int>(std::max(1.0, std::ceil(processor_time(root)))); }

void raise_open_files() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == files.rlim_max) return;
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);  // if it is refused, the run may do with fewer
}

CoreShares share_cores(int count, const std::vector<int>& allowed, const std::vector<int>& near, int asked) {
  constexpr int kFeeders = 3;
  const int left = std::min(kFeeders, count / 4);
  const int feeding = asked > 0 ? std::clamp(count - asked, 0, left) : left;
  CoreShares shares;
  shares.computing = asked > 0 ? asked : count - feeding;
  std::vector<int> order = allowed;  // those next to the device last
  std::stable_partition(order.begin(), order.end(),
                        [&](int i) { return std::find(near.begin(), near.end(), i) == near.end(); });
  if (feeding == 0 || order.size() <= static_cast<std::size_t>(feeding)) return shares;
  const auto first = order.end() - feeding;
  shares.feeding.assign(first, order.end());
  shares.others.assign(order.begin(), first);
  std::sort(shares.others.begin(), shares.others.end());
  return shares;
}

void stay_on(const std::vector<int>& processors) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (const int i : processors)
    if (i >= 0 && i < CPU_SETSIZE) CPU_SET(i, &mask);
  if (CPU_COUNT(&mask) > 0) sched_setaffinity(0, sizeof mask, &mask);
}

std::size_t processor_cache_bytes() {
  const auto bytes = [](int name) { return static_cast<std::size_t>(std::max(0L, sysconf(name))); };
  return bytes(_SC_LEVEL3_CACHE_SIZE) + static_cast<std::size_t>(processors()) * bytes(_SC_LEVEL2_CACHE_SIZE);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown processor";
}

std::size_t memory_available(const std::string& root) { return memory_of(root, Memory::left); }

std::size_t memory_total(const std::string& root) { return memory_of(root, Memory::all); }

int memory_node(const std::string& pci, const std::string& root) {
  std::string name = pci;
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  if (name.find('/') != std::string::npos) return -1;
  const auto node = number_of(root + "/sys/bus/pci/devices/" + name + "/numa_node");  // "-1" is no number either
  return node && *node < kMostNodes ? static_cast<int>(*node) : -1;
}

std::vector<int> processors_of_node(int node, const std::string& root) {
  std::vector<int> numbers;
  std::ifstream file(root + "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");  // "0-3,8,10-11"
  for (std::string range; node >= 0 && std::getline(file, range, ',');) {
    const auto first = number_in(range);
    const std::size_t dash = range.find('-');
    const auto last = dash == std::string::npos ? first : number_in(range.substr(dash + 1));
    for (auto i = first; i && last && *i <= *last && *i < CPU_SETSIZE; ++*i) numbers.push_back(static_cast<int>(*i));
  }
  return numbers;
}

void prefer_node(void* begin, std::size_t bytes, int node) {
  if (node < 0 || bytes == 0) return;
  std::array<unsigned long, kMostNodes / kWordBits> nodes = {};
  const auto bit = static_cast<std::size_t>(node);
  nodes[bit / kWordBits] = 1ul << (bit % kWordBits);
  syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, nodes.data(), kMostNodes + 1, 0);  // a hint; failure does no harm
}

}  // namespace weft::kernels
