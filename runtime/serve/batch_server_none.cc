// runtime/serve/batch_server_none.cc: a build without cpp-httplib.
#include "kernels/error.h"
#include "runtime/serve/batch_server.h"

namespace weft::runtime {

bool can_serve() { return false; }

int serve(const ServeOptions&, const std::atomic<bool>&) {
  throw UsageError(
      "serve-batches: this program was built without cpp-httplib; install libcpp-httplib-dev "
      "(scripts/setup.sh) and build again");
}

}  // namespace weft::runtime
