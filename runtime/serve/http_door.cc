#include "runtime/serve/http_door.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "policy/base/json.h"
#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMostHead = 1 << 16, kPiece = 1 << 12;
constexpr std::size_t kMostUnused = 1 << 23;         // of a body, between two takes of its content
constexpr auto kHeadTime = std::chrono::seconds(3);  // of the whole head
constexpr auto kDataTime = std::chrono::seconds(5);  // between two pieces of what follows
constexpr auto kFarewell = std::chrono::seconds(2);  // in which a client may finish what it sends

template <class Duration> bool ready(int socket, short events, Duration longest) {
  pollfd waits{socket, events, 0};
  const auto until = Clock::now() + longest;
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    const int found = ::poll(&waits, 1, static_cast<int>(std::max<std::int64_t>(left, 0)));
    if (found >= 0 || errno != EINTR) return found > 0;
  }
}

thread_local std::size_t unused = 0;  // what this thread's connection has read since

/// What is there, at most `size` bytes; 0 at the end, less at an error or if nothing comes for so long.
template <class Duration> ssize_t receive(int socket, char* to, std::size_t size, Duration longest) {
  if (!ready(socket, POLLIN, longest)) return -1;
  ssize_t got = 0;
  do got = ::recv(socket, to, size, 0);
  while (got < 0 && errno == EINTR);
  return got;
}

/// Reads a request's head and what comes along with it. Returns 200, 408 or 431, 400 for a head that is cut short, or 0
/// if the client has sent nothing.
int read_head(int socket, std::string& head) {
  const auto until = Clock::now() + kHeadTime;
  for (std::size_t looked = 0;;) {
    if (head.find("\r\n\r\n", looked) != std::string::npos) return 200;
    looked = std::max<std::size_t>(head.size(), 3) - 3;
    if (head.size() >= kMostHead) return 431;
    char piece[kPiece];
    const ssize_t got = receive(socket, piece, std::min(sizeof piece, kMostHead - head.size()), until - Clock::now());
    if (got <= 0) return head.empty() ? 0 : got == 0 ? 400 : 408;
    head.append(piece, static_cast<std::size_t>(got));
  }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsuggest-override"  // versions of the library differ in what a stream has
/// A request whose head is read already, and its answer.
class Connection : public httplib::Stream {
 public:
  Connection(socket_t socket, std::string head) : socket_(socket), head_(std::move(head)) { unused = 0; }

  bool is_readable() const { return at_ < head_.size() || ready(socket_, POLLIN, kDataTime); }
  bool wait_readable() const { return is_readable(); }
  bool is_writable() const { return ready(socket_, POLLOUT, kDataTime); }
  bool wait_writable() const { return is_writable(); }
  ssize_t read(char* to, std::size_t size) {
    if (unused > kMostUnused) return -1;
    const std::size_t had = std::min(size, head_.size() - at_);
    const ssize_t got = had > 0 ? static_cast<ssize_t>(had) : receive(socket_, to, size, kDataTime);
    std::memcpy(to, head_.data() + at_, had);
    at_ += had;
    unused += static_cast<std::size_t>(std::max<ssize_t>(got, 0));
    return got;
  }
  ssize_t write(const char* from, std::size_t size) {
    if (!is_writable()) return -1;
    ssize_t sent = 0;
    do sent = ::send(socket_, from, size, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
    return sent;
  }
  using httplib::Stream::write;
  void get_remote_ip_and_port(std::string& ip, int& port) const { ip = kLoopback, port = 0; }
  void get_local_ip_and_port(std::string& ip, int& port) const { ip = kLoopback, port = 0; }
  socket_t socket() const { return socket_; }
  time_t duration() const { return 0; }  // the library asks a client's streams alone

  static constexpr const char* kLoopback = "127.0.0.1";

 private:
  socket_t socket_;
  std::string head_;
  std::size_t at_ = 0;  // what the library has of it
};
#pragma GCC diagnostic pop

/// A request without a length has no body (RFC 9112, 6.3). The library would read to the end of the connection.
void set_length(httplib::Request& request) {
  if (!request.has_header("Content-Length") && !request.has_header("Transfer-Encoding"))
    request.set_header("Content-Length", "0");
}

void say_farewell(int socket) {
  ::shutdown(socket, SHUT_WR);
  char piece[kPiece];
  const auto until = Clock::now() + kFarewell;
  while (Clock::now() < until && receive(socket, piece, sizeof piece, until - Clock::now()) > 0) {}
  ::close(socket);
}

}  // namespace

std::string error_json(int status, const std::string& message, const char* code) {
  using nlohmann::ordered_json;
  return policy::to_line(ordered_json{{"error",
                                       {{"message", message},
                                        {"type", status == 401 ? "authentication_error" : "invalid_request_error"},
                                        {"param", nullptr},
                                        {"code", code ? ordered_json(code) : ordered_json()}}}});
}

std::string library_error(int status, const std::string& path) {
  switch (status) {
    case 400: return "the head is none of HTTP, or the body is not whole or not what the head says";
    case 408: return "the head of the request took longer than 3 seconds";
    case 413: return "the body is too long";
    case 414: return "the path is too long; it may have 8 KiB";
    case 416: return "no such range";
    case 431: return "the head of the request is too long; it may have 64 KiB and a line of it 8 KiB";
    default: return "there is nothing at " + in_quotes(path);
  }
}

void HttpDoor::content_taken() { unused = 0; }

bool HttpDoor::process_and_close_socket(socket_t socket) {
  std::string head;
  const int status = read_head(socket, head);
  Connection connection(socket, std::move(head));
  bool closed = false;
  const std::function<void(httplib::Request&)> prepare = set_length;
  const auto process = [&](auto& stream) {
    if constexpr (requires { process_request(stream, true, closed, prepare); })
      return process_request(stream, true, closed, prepare);
    else return process_request(stream, Connection::kLoopback, 0, Connection::kLoopback, 0, true, closed, prepare);
  };
  bool answered = false;
  if (status == 200) {
    answered = process(connection);
  } else if (status != 0) {
    const std::string body = error_json(status, library_error(status, ""));
    const std::string whole = "HTTP/1.1 " + std::to_string(status) + " refused\r\nContent-Type: application/json\r\n" +
                              "Content-Length: " + std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
    answered = connection.write(whole.data(), whole.size()) == static_cast<ssize_t>(whole.size());
  }
  say_farewell(socket);
  return answered;
}

}  // namespace weft::runtime
