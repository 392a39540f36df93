// kernels/backend/cuda_libraries.h: finds cuBLAS on machines whose loader does not know it.
#pragma once

#include <string>

namespace weft::kernels {

/// Opens libcublasLt from the folder in the variable WEFT_CUBLAS, or of the file in it, so that libraries that are
/// opened later find it. Does nothing if the variable is not set. Throws UsageError if it is not there or cannot be
/// opened.
void open_chosen_cublas();

/// dlopen(library), where the loader need not know cuBLAS: if it does not find it, it is looked for in toolkits and in
/// Python environments. Null if the library cannot be opened, with dlerror()'s text in `error`.
void* open_with_cublas(const char* library, std::string& error);

}  // namespace weft::kernels
