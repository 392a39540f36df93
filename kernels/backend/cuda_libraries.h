// kernels/backend/cuda_libraries.h: finds cuBLAS on machines whose loader does not know it.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace weft::kernels {

/// The value of a variable of the environment, or null; std::getenv().
using Environment = std::function<const char*(const char*)>;

/// The files called `name`, such as "libcublas.so.13", the likeliest first: in the toolkit that CUDA_PATH or CUDA_HOME
/// names, in the Python environment that is active (VIRTUAL_ENV, CONDA_PREFIX) or whose python is on the PATH (packages
/// of PyPI put them into nvidia/*/lib), in toolkits under /usr/local, and in the Python packages of the system and the
/// user.
std::vector<std::string> files_of_cuda(const std::string& name, const Environment& environment);

/// Opens libcublasLt and libcublas from WEFT_CUBLAS, a folder or a file in it, so that libraries that are opened later
/// find them. Does nothing if the variable is not set. Throws UsageError if they are not there or cannot be opened.
void open_chosen_cublas(const Environment& environment);

/// dlopen(library), where the loader need not know cuBLAS: if it does not find it, files_of_cuda() does. Null if the
/// library cannot be opened, with dlerror()'s text in `error`.
void* open_with_cublas(const char* library, const Environment& environment, std::string& error);

}  // namespace weft::kernels
