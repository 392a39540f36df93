// kernels/linear_no_library.cc: built in place of linear_library.cc where oneDNN is not wanted.
#include "kernels/error.h"
#include "kernels/linear_library.h"

namespace weft::kernels {
namespace {

[[noreturn]] void refuse() {
  throw DeviceError(
      "this processor has no AVX2, and this weft was built without oneDNN (WEFT_ONEDNN), which needs none");
}

}  // namespace

bool has_linear_library() { return false; }

void linear_library(const Linear&, ThreadPool&) { refuse(); }

struct LibraryProduct::Impl {};
LibraryProduct::LibraryProduct(std::int64_t, std::int64_t, std::int64_t, int) { refuse(); }
LibraryProduct::~LibraryProduct() = default;
std::size_t LibraryProduct::weight_bytes() const { refuse(); }
void LibraryProduct::reorder(const float*, void*) { refuse(); }
void LibraryProduct::run(const float*, const void*, float*) { refuse(); }

}  // namespace weft::kernels
