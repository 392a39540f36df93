// runtime/serve/http_door.h: cpp-httplib's server with bounds on what a client can make it hold or wait for.
#pragma once

#include <httplib.h>

#include <string>

namespace weft::runtime {

/// An error as OpenAI's clients read it: {"error": {"message", "type", "param", "code"}}. A null code is none.
std::string error_json(int status, const std::string& message, const char* code = nullptr);

/// The message of an error status that the library itself has set, such as 400 for a body that ends too early.
std::string library_error(int status, const std::string& path);

/// One request a connection. The library alone would hold a head of any length, take the rest of a refused body for the
/// next request, answer nothing to a client that has closed its side, and wait for a body where the head says of none.
/// Here a head has at most 64 KiB and 3 seconds, each connection ends with its answer, and what the client still sends
/// then is read for a moment, so that the answer is not lost. A body may have 8 MiB between two calls of
/// content_taken(), because the library keeps whatever follows a part of a form.
class HttpDoor : public httplib::Server {
 public:
  static void content_taken();  ///< called by the handler of the request that this thread answers

 private:
  bool process_and_close_socket(socket_t socket) override;
};

}  // namespace weft::runtime
