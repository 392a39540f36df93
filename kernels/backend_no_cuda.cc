// kernels/backend_no_cuda.cc: built in place of backend_cuda.cc where there is no CUDA.
#include "kernels/backend.h"
#include "kernels/device_ceiling.h"
#include "kernels/error.h"

namespace weft::kernels {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw DeviceError("this weft was built without CUDA; use --backend cpu");
}

void read_device(const void*, std::size_t, std::uint32_t*, Stream&) {
  throw DeviceError("this weft was built without CUDA, so there is no device memory to read");
}

}  // namespace weft::kernels
