// tests/cuda_sim/ptx/launch.cc
#include "launch.h"

#include <cxxabi.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <typeinfo>

#include "cuda_bf16.h"
#include "grid.h"
#include "machine.h"

namespace cusim {
namespace ptx {
namespace {

std::string readable(const char* mangled) {
  char* const name = abi::__cxa_demangle(mangled, nullptr, nullptr, nullptr);
  std::string result = name != nullptr ? name : mangled;
  std::free(name);
  return result;
}

/// As nvcc's names read, which knows the 16-bit floats as classes of their own.
std::string device_name(std::string host) {
  for (const auto& [type, name] : {std::pair{&typeid(__half), "__half"}, {&typeid(__nv_bfloat16), "__nv_bfloat16"}}) {
    const std::string from = readable(type->name());
    for (std::size_t at = 0; (at = host.find(from, at)) != std::string::npos;) host.replace(at, from.size(), name);
  }
  return host;
}
/// Without the space that a nested template's end may have.
std::string without_gaps(std::string name) {
  for (std::size_t at = 0; (at = name.find(" >", at)) != std::string::npos;) name.erase(at, 1);
  return name;
}

/// The files of one folder, and the kernels that were asked for.
class Library {
 public:
  explicit Library(const std::string& folder) {
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(folder))
      if (entry.path().extension() == ".ptx") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    for (const auto& file : files) {
      std::ostringstream text;
      text << std::ifstream(file).rdbuf();
      modules_.push_back(std::make_unique<Module>(text.str()));
      for (const std::string& mangled : modules_.back()->kernels()) {
        Entry& entry = entries_[without_gaps(readable(mangled.c_str()))];
        if (entry.mangled == mangled) continue;  // one template for one type, as the linker sees it
        entry.ambiguous = entry.module != nullptr;
        entry.module = modules_.back().get();
        entry.mangled = mangled;
      }
    }
  }
  struct Found {
    const Kernel* kernel;
    std::string name;
  };
  Found find(const void* host_kernel) {
    Found& found = by_host_[host_kernel];
    if (found.kernel != nullptr) return found;
    found.name = without_gaps(device_name(kernel_name(host_kernel)));
    const auto entry = entries_.find(found.name);
    if (entry == entries_.end()) throw std::runtime_error("no file of PTX has the kernel " + found.name);
    if (entry->second.ambiguous) throw std::runtime_error("two files of PTX have the kernel " + found.name);
    if (!entry->second.kernel) entry->second.kernel = entry->second.module->translate(entry->second.mangled);
    found.kernel = entry->second.kernel.get();
    return found;
  }
  const std::vector<std::unique_ptr<Module>>& modules() const { return modules_; }

 private:
  struct Entry {
    const Module* module = nullptr;
    std::string mangled;
    bool ambiguous = false;
    std::unique_ptr<Kernel> kernel;
  };
  std::vector<std::unique_ptr<Module>> modules_;
  std::unordered_map<std::string, Entry> entries_;
  std::unordered_map<const void*, Found> by_host_;
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::unique_ptr<Library>> libraries;  // by folder
  std::map<std::string, PtxCounts> counts;
};
State& state() {
  static State& one = *new State;
  return one;
}

struct alignas(64) CacheLine {
  std::byte bytes[64];
};
/// What a worker keeps from one launch to the next.
struct Room {
  Block block;
  std::vector<CacheLine> registers, constants;
};

std::vector<std::byte> pack_parameters(const Kernel& kernel, const KernelCall& call) {
  const std::vector<Argument> arguments = call.arguments();
  if (arguments.size() != kernel.parameters.size())
    throw std::runtime_error("the PTX takes " + std::to_string(kernel.parameters.size()) +
                             " parameters and the launch has " + std::to_string(arguments.size()));
  std::vector<std::byte> packed(kernel.parameter_bytes);
  for (std::size_t n = 0; n < arguments.size(); ++n) {
    const Parameter& parameter = kernel.parameters[n];
    if (parameter.bytes != arguments[n].bytes)
      throw std::runtime_error("parameter " + std::to_string(n) + " has " + std::to_string(parameter.bytes) +
                               " bytes in PTX and " + std::to_string(arguments[n].bytes) + " on the host");
    std::memcpy(packed.data() + parameter.offset, arguments[n].data, parameter.bytes);
  }
  return packed;
}

void prepare_warps(Room& room) {
  Block& block = room.block;
  const Kernel& kernel = *block.kernel;
  const std::size_t lines = kernel.register_bytes / sizeof(CacheLine) + 1,
                    warps = static_cast<std::size_t>(block.threads + 31) / 32;
  if (room.registers.size() < lines * warps) room.registers.resize(lines * warps);
  room.constants.resize(kernel.constants.size() / sizeof(CacheLine) + 1);
  std::memcpy(static_cast<void*>(room.constants.data()), kernel.constants.data(), kernel.constants.size());
  block.warps.resize(warps);
  for (std::size_t n = 0; n < warps; ++n) {
    Warp& w = block.warps[n];
    w.registers = room.registers[n * lines].bytes;
    w.constants = room.constants.front().bytes;
    w.block = &block;
    w.number = static_cast<int>(n);
    w.first_thread = 32 * w.number;
    w.local.resize(32 * kernel.local_bytes);
  }
}

void check_shared(const Kernel& kernel, std::size_t dynamic_bytes, const void* host_kernel) {
  if (kernel.static_bytes > config().shared_default || kernel.static_bytes + dynamic_bytes > shared_limit(host_kernel))
    throw Fault("shared memory size", cudaErrorInvalidConfiguration, "shared memory exceeds the limit");
}

PtxCounts run(Library::Found found, const std::vector<std::unique_ptr<Module>>& modules, const cudaLaunchConfig_t& c,
              const void* host_kernel, const KernelCall& call) {
  thread_local Room room;
  Block& block = room.block;
  const Kernel& kernel = *(block.kernel = found.kernel);
  block.grid = c.gridDim;
  block.size = c.blockDim;
  block.threads = static_cast<int>(c.blockDim.x * c.blockDim.y * c.blockDim.z);
  block.strict_exit = config().strict_exit;
  block.counting = config().ptx_counts;
  block.counts = {};
  block.global = {};
  for (const auto& module : modules)
    for (const GlobalVariable& variable : module->variables()) block.global.add(variable);
  if (static_cast<unsigned>(block.threads) > kernel.most_threads)
    throw Fault("launch bounds", cudaErrorInvalidConfiguration,
                std::to_string(block.threads) + " threads, but at most " + std::to_string(kernel.most_threads) +
                    " were promised");
  check_shared(kernel, c.dynamicSmemBytes, host_kernel);
  block.parameters = pack_parameters(kernel, call);
  prepare_warps(room);
  run_grid(block, c.dynamicSmemBytes, config().order, config().seed);
  block.counts.launches = 1;
  return block.counts;
}

void add_counts(const std::string& name, const PtxCounts& counts) {
  PtxCounts& all = state().counts[name];
  all.launches += counts.launches;
  all.instructions += counts.instructions;
  all.global_requests += counts.global_requests;
  all.global_bytes += counts.global_bytes;
  all.sectors += counts.sectors;
  all.shared_requests += counts.shared_requests;
  all.shared_passes += counts.shared_passes;
  all.least_passes += counts.least_passes;
  all.tensor_operations += counts.tensor_operations;
}

}  // namespace

void launch(const cudaLaunchConfig_t& c, const void* kernel, const KernelCall& call) {
  Library::Found found{};
  try {
    const std::vector<std::unique_ptr<Module>>* modules = nullptr;
    {
      std::lock_guard lock(state().mutex);
      auto& library = state().libraries[config().ptx];
      if (!library) library = std::make_unique<Library>(config().ptx);
      found = library->find(kernel);
      modules = &library->modules();
    }
    const PtxCounts counts = run(found, *modules, c, kernel, call);
    {
      std::lock_guard lock(state().mutex);
      add_counts(found.name, counts);
    }
    Lock lock;
    Stats& s = counters();
    s.kernels++;
    s.wide_atomics += std::exchange(wide_atomics, 0);
    s.blocks += std::uint64_t{c.gridDim.x} * c.gridDim.y * c.gridDim.z;
    s.threads += std::uint64_t{c.gridDim.x} * c.gridDim.y * c.gridDim.z * c.blockDim.x * c.blockDim.y * c.blockDim.z;
  } catch (const Fault& fault) {
    finding(fault.kind, fault.what() + (" [" + found.name + "]"));
    set_sticky(static_cast<cudaError_t>(fault.error));
  } catch (const std::exception& error) {
    finding("PTX", error.what());
    set_sticky(cudaErrorNotSupported);
  }
}

void GlobalMemory::add(const GlobalVariable& variable) {
  const auto begin = reinterpret_cast<std::uintptr_t>(variable.data);
  variables_.emplace_back(begin, begin + variable.bytes);
}

const char* GlobalMemory::look_up(std::uint64_t address, unsigned bytes) {
  for (const auto& [begin, end] : variables_)
    if (address >= begin && address + bytes <= end) return nullptr;
  const Extent extent = allocation_of(reinterpret_cast<const void*>(address));
  if (extent.bytes == 0) return "";
  begin_ = reinterpret_cast<std::uintptr_t>(extent.p);
  end_ = begin_ + extent.bytes;
  return address + bytes <= end_ ? nullptr : ", and it ends there";
}

}  // namespace ptx

std::map<std::string, PtxCounts> ptx_counts() {
  std::lock_guard lock(ptx::state().mutex);
  return ptx::state().counts;
}
void clear_ptx_counts() {
  std::lock_guard lock(ptx::state().mutex);
  ptx::state().counts.clear();
}

}  // namespace cusim
