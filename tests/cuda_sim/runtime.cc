// tests/cuda_sim/runtime.cc: the device, launches and copies.
#include <map>

#include "internal.h"
#include "ptx/launch.h"

namespace cusim {
namespace {

std::map<const void*, int>& max_dynamic_shared() {  // under the lock
  static auto& all = *new std::map<const void*, int>;
  return all;
}

cudaError_t check_launch(const cudaLaunchConfig_t& c, const void* kernel) {
  const dim3 g = c.gridDim, b = c.blockDim;
  const std::uint64_t threads = std::uint64_t{b.x} * b.y * b.z;
  if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (threads == 0 || threads > 1024 || b.z > 64) return cudaErrorInvalidConfiguration;
  Lock lock;
  const auto asked = max_dynamic_shared().find(kernel);
  const std::size_t granted = asked == max_dynamic_shared().end() ? 0 : static_cast<std::size_t>(asked->second);
  return c.dynamicSmemBytes > std::max(config().shared_default, granted) ? cudaErrorInvalidValue : cudaSuccess;
}

/// cudaErrorInvalidValue where a range runs out of its allocation, or the direction is another than `kind` says.
cudaError_t check_copy(Where to, Where from, cudaMemcpyKind kind) {
  if (to == Where::beyond || from == Where::beyond) return cudaErrorInvalidValue;
  const int actual =
      (to == Where::device ? cudaMemcpyHostToDevice : 0) + (from == Where::device ? cudaMemcpyDeviceToHost : 0);
  return kind == cudaMemcpyDefault || static_cast<int>(kind) == actual ? cudaSuccess : cudaErrorInvalidValue;
}
void count_copy(Where to, Where from, std::size_t bytes) {
  Lock lock;
  Stats& s = counters();
  s.copies++;
  if (to == Where::device && from == Where::device) s.on_device_bytes += bytes;
  else if (to == Where::device) s.to_device_bytes += bytes;
  else if (from == Where::device) s.to_host_bytes += bytes;
}

}  // namespace

std::size_t shared_limit(const void* kernel) {
  Lock lock;
  return max_dynamic_shared().contains(kernel) ? config().shared_optin() : config().shared_default;
}

cudaError_t set_max_dynamic_shared(const void* kernel, int bytes) {
  CUSIM_ENTER();
  if (bytes < 0 || static_cast<std::size_t>(bytes) > config().shared_optin()) return remember(cudaErrorInvalidValue);
  Lock lock;
  max_dynamic_shared()[kernel] = bytes;
  return cudaSuccess;
}

cudaError_t enqueue_launch(const cudaLaunchConfig_t& c, const void* kernel, std::shared_ptr<const KernelCall> call) {
  CUSIM_ENTER();
  if (const cudaError_t error = check_launch(c, kernel); error != cudaSuccess) return remember(error);
  return remember(submit(What::launch, c.stream, {}, [c, kernel, call = std::move(call)] {
    if (config().ptx.empty()) run_grid(c, kernel, *call);
    else ptx::launch(c, kernel, *call);
  }));
}

}  // namespace cusim

using namespace cusim;

extern "C" {
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return remember(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  if (bytes < 13) return remember(cudaErrorInvalidValue);
  std::strcpy(text, "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device != 0) return remember(cudaErrorInvalidDevice);
  const Config& c = config();
  *properties = {};
  std::strcpy(properties->name, "simulated device");
  properties->totalGlobalMem = c.device_capacity;
  properties->sharedMemPerBlock = c.shared_default;
  properties->sharedMemPerBlockOptin = c.shared_optin();
  properties->major = c.architecture / 10;
  properties->minor = c.architecture % 10;
  properties->multiProcessorCount = c.multiprocessors;
  properties->warpSize = warpSize;
  properties->asyncEngineCount = 2;
  properties->hostRegisterSupported = c.host_register;
  properties->canUseHostPointerForRegisteredMem = c.host_register && c.host_pointer;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  CUSIM_ENTER();
  if (bytes == 0) return cudaSuccess;
  if (to == nullptr || from == nullptr) return remember(cudaErrorInvalidValue);
  const Range target{to, bytes}, source{from, bytes};
  const Where to_where = where_is(target), from_where = where_is(source);
  if (const cudaError_t error = check_copy(to_where, from_where, kind); error != cudaSuccess) return remember(error);
  const bool pageable = to_where == Where::nowhere || from_where == Where::nowhere;
  if (pageable && !config().pageable_copies) {
    finding("pageable copy", "cudaMemcpyAsync from or to memory that is neither pinned nor the device's");
    return remember(cudaErrorInvalidValue);
  }
  count_copy(to_where, from_where, bytes);
  std::vector<Range> ranges;
  if (to_where != Where::nowhere) ranges.push_back(target);
  if (from_where != Where::nowhere) ranges.push_back(source);
  const cudaError_t error = submit(What::copy, stream, std::move(ranges), [=] { std::memmove(to, from, bytes); });
  if (error == cudaSuccess && pageable) return cudaStreamSynchronize(stream);  // the real one also waits in most cases
  return remember(error);
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  CUSIM_ENTER();
  if (bytes == 0) return cudaSuccess;
  const Range target{to, bytes};
  if (where_is(target) != Where::device) return remember(cudaErrorInvalidValue);
  return remember(submit(What::copy, stream, {target}, [=] { std::memset(to, value, bytes); }));
}
}
