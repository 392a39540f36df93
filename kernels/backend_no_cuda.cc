// kernels/backend_no_cuda.cc: built in place of backend_cuda.cc where there is no CUDA.
#include "kernels/backend.h"
#include "kernels/error.h"

namespace weft::kernels {

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions&) {
  throw DeviceError("this weft was built without CUDA; use --backend cpu");
}

}  // namespace weft::kernels
