// runtime/serve/batch_server.h: OpenAI's /v1/files, /v1/batches and /v1/models on the loopback interface.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "runtime/serve/batch_worker.h"

namespace weft::runtime {

struct ServeOptions {
  std::string folder;
  int port = 8321;
  std::string api_key;  ///< empty: none is asked for
  JobCommand command;
  std::vector<std::string> model_names;  ///< the first is the model's; requests may use all
};

/// Whether this build can serve. Else serve() throws UsageError, which says what it was built without.
bool can_serve();

/// Serves until `stop` is set. The job that runs then is stopped as Ctrl-C does it, and goes on at the next start.
/// Returns the exit code. Throws UsageError if the model and the flags cannot run, the folder is in use or the port is
/// taken.
int serve(const ServeOptions& options, const std::atomic<bool>& stop);

}  // namespace weft::runtime
