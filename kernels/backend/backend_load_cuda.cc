// kernels/backend/backend_load_cuda.cc: opens the CUDA backend, which is a separate library, libweft_cuda.so. A program
// that was linked with cuBLAS itself would not even start on a machine without it.
#include <dlfcn.h>

#include <memory>
#include <string>

#include "kernels/backend.h"
#include "kernels/backend/cuda_libraries.h"
#include "kernels/error.h"

namespace weft::kernels {
namespace {

std::string why_not(const std::string& library, const std::string& error) {
  if (error.starts_with(library + ": cannot open"))
    return "this weft was built without CUDA (there is no " + library + "); use --backend cpu";
  return "this weft was built with CUDA, but its libraries cannot be used here: " + error +
         "; install CUDA's (pip's nvidia-cublas is enough), say in WEFT_CUBLAS where its folder is, or use --backend "
         "cpu";
}

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  open_chosen_cublas();
  // The program's rpath determines where a name without a folder is looked up: in the program's folder, or in a
  // package's lib/.
  std::string error;
  void* const library = open_with_cublas(options.library, error);  // never closed: CUDA cannot be unloaded
  if (!library) throw DeviceError(why_not(options.library, error));
  void* const entry = dlsym(library, kCudaEntry);
  if (!entry) throw DeviceError(why_not(options.library, dlerror()));
  return std::unique_ptr<Backend>(reinterpret_cast<CudaEntry*>(entry)(options));
}

}  // namespace weft::kernels
