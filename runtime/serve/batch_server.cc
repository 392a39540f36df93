#include "runtime/serve/batch_server.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/files.h"
#include "runtime/base/input_file.h"
#include "runtime/base/quote.h"
#include "runtime/planning/log.h"
#include "runtime/serve/batch_request.h"
#include "runtime/serve/http_door.h"

namespace weft::runtime {
namespace {

using httplib::Request;
using httplib::Response;
using nlohmann::ordered_json;

constexpr const char* kJson = "application/json";
constexpr std::size_t kChunk = 1 << 18;
constexpr std::size_t kLargestBody = 1 << 20, kMostDigits = 15;
constexpr int kMostThreads = 16;

void answer(Response& response, const ordered_json& json) { response.set_content(policy::to_line(json), kJson); }

void refuse(Response& response, int status, const std::string& message, const char* code = nullptr) {
  response.status = status;
  response.set_content(error_json(status, message, code), kJson);
}

void refuse_unknown(Response& response, const char* what, const std::string& id) {
  refuse(response, 404, std::string("there is no ") + what + " " + in_quotes(id), "not_found");
}

/// Compares in a time that does not depend on where texts differ.
bool same_secret(const std::string& a, const std::string& b) {
  unsigned difference = a.size() != b.size();
  for (std::size_t i = 0; i < a.size(); ++i)
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[b.empty() ? 0 : i % b.size()]);
  return difference == 0;
}

/// A page of a list, as ?limit=, ?after= and ?order= ask for it. `all` is the newest first; `otherwise` the limit
/// without ?limit=, as at OpenAI.
template <class Value>
void answer_list(const Request& request, Response& response, std::vector<Value> all, const std::string& otherwise) {
  const std::string limit = request.get_param_value("limit");
  const auto page = page_of(limit.empty() ? otherwise : limit, request.get_param_value("order"));
  if (!page) return refuse(response, 400, "'limit' must be from 1 to 10000, and 'order' asc or desc");
  if (page->ascending) std::reverse(all.begin(), all.end());
  auto first = all.begin();
  if (const std::string after = request.get_param_value("after"); !after.empty()) {
    first = std::find_if(all.begin(), all.end(), [&](const Value& value) { return value.id == after; });
    if (first == all.end()) return refuse_unknown(response, "object", after);
    ++first;
  }
  ordered_json data = ordered_json::array();
  const bool more = static_cast<std::size_t>(all.end() - first) > page->limit;
  for (; first != all.end() && data.size() < page->limit; ++first) data.push_back(to_json(*first));
  const ordered_json none, first_id = data.empty() ? none : data.front()["id"];
  const ordered_json last_id = data.empty() ? none : data.back()["id"];
  answer(response, {{"object", "list"},
                    {"data", std::move(data)},
                    {"first_id", first_id},
                    {"last_id", last_id},
                    {"has_more", more}});
}

class BatchServer {
 public:
  BatchServer(const ServeOptions& options, BatchStore& store, BatchWorker& worker)
      : options_(options), store_(store), worker_(worker), started_(seconds_now()) {
    http_.new_task_queue = [] { return new httplib::ThreadPool(kMostThreads); };
    http_.set_socket_options([](socket_t socket) {  // the library's own let others listen at the same port
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http_.set_pre_routing_handler([this](const Request& request, Response& response) {
      return let_in(request, response) ? httplib::Server::HandlerResponse::Unhandled
                                       : httplib::Server::HandlerResponse::Handled;
    });
    http_.set_exception_handler(
        [](const Request&, Response& response, std::exception_ptr thrown) { give_up(response, thrown); });
    http_.set_error_handler([](const Request& request, Response& response) {
      if (response.body.empty())
        refuse(response, response.status, library_error(response.status, request.path),
               response.status == 404 ? "not_found" : nullptr);
    });
    add_files();
    add_batches();
    add_models();
  }

  /// Throws UsageError if the port is taken.
  void bind() {
    if (!http_.bind_to_port("127.0.0.1", options_.port))
      throw UsageError("--port " + std::to_string(options_.port) +
                       ": is taken; stop what listens there or name another");
  }
  void listen() { http_.listen_after_bind(); }
  void stop() { http_.stop(); }

 private:
  using Handler = void (BatchServer::*)(const Request&, Response&);
  httplib::Server::Handler bound(Handler handler) {
    return [this, handler](const Request& request, Response& response) { (this->*handler)(request, response); };
  }

  static void give_up(Response& response, const std::exception_ptr& thrown) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      log_warn("{}", error.what());
      refuse(response, 500, error.what(), "server_error");
    }
  }

  /// Pages in a browser are kept out: they send an Origin, or another Host than this machine's.
  bool let_in(const Request& request, Response& response) {
    const std::string host = request.get_header_value("Host");
    const std::string name = host.substr(0, host.rfind(':'));
    if (request.has_header("Origin") || (name != "127.0.0.1" && name != "localhost"))
      return refuse(response, 403, "only programs on this machine may ask"), false;
    if (!options_.api_key.empty() &&
        !same_secret("Bearer " + options_.api_key, request.get_header_value("Authorization")))
      return refuse(response, 401, "the API key is not the server's", "invalid_api_key"), false;
    return has_bounded_body(request, response);
  }

  /// Uploads go to the disk as they come. All other bodies are held whole, so they are small and say so before.
  static bool has_bounded_body(const Request& request, Response& response) {
    if (request.has_header("Content-Encoding"))
      return refuse(response, 415, "Content-Encoding is not taken; send the body as it is"), false;
    const bool upload = request.path == "/v1/files" && request.method == "POST";
    if (request.has_header("Transfer-Encoding"))
      return upload || (refuse(response, 411, "wanted a Content-Length"), false);
    const std::string length = request.get_header_value("Content-Length");
    if (length.find_first_not_of("0123456789") != std::string::npos || length.size() > kMostDigits ||
        request.get_header_value_count("Content-Length") > 1)
      return refuse(response, 400, "Content-Length is no number"), false;
    if (upload || length.empty() || std::stoull(length) <= kLargestBody) return true;
    return refuse(response, 413, "the body is too long; it may have 1 MiB"), false;
  }

  void add_files() {
    http_.Post("/v1/files", [this](const Request& request, Response& response, const httplib::ContentReader& read) {
      upload(request, response, read);
    });
    http_.Get("/v1/files", bound(&BatchServer::list_files));
    http_.Get("/v1/files/([\\w-]+)", bound(&BatchServer::show_file));
    http_.Delete("/v1/files/([\\w-]+)", bound(&BatchServer::remove_file));
    http_.Get("/v1/files/([\\w-]+)/content", bound(&BatchServer::download));
  }

  void upload(const Request& request, Response& response, const httplib::ContentReader& read) {
    if (!request.is_multipart_form_data())
      return refuse(response, 400, "wanted multipart/form-data with 'file' and 'purpose'");
    std::optional<BatchStore::Writing> file;
    std::string field, filename, purpose, unknown;
    int files = 0;
    const bool whole = read(
        [&](const auto& part) {  // its type has another name in later versions
          field = part.name;
          if (field == "file") {
            ++files;
            filename = part.filename.empty() ? "requests.jsonl" : part.filename;
            if (!file) file.emplace(store_.write_file());
          } else if (field != "purpose") {
            unknown = field;
          }
          return true;
        },
        [&](const char* data, std::size_t bytes) {
          HttpDoor::content_taken();
          if (field == "file") file->append({data, bytes});
          if (field == "purpose" && purpose.size() < 100) purpose.append(data, bytes);
          return true;
        });
    if (!whole) return refuse(response, 400, "the upload ends too early");
    if (!unknown.empty())
      return refuse(response, 400, "unknown field " + in_quotes(unknown) + "; wanted 'file' and 'purpose'");
    if (files != 1) return refuse(response, 400, files ? "'file' is given more than once" : "'file' is missing");
    if (purpose != "batch") return refuse(response, 400, "'purpose' must be batch, got " + in_quotes(purpose));
    answer(response, to_json(file->keep(filename, purpose)));
  }

  void list_files(const Request& request, Response& response) {
    std::vector<StoredFile> files = store_.files();
    if (const std::string purpose = request.get_param_value("purpose"); !purpose.empty())
      std::erase_if(files, [&](const StoredFile& file) { return file.purpose != purpose; });
    answer_list(request, response, std::move(files), "10000");
  }

  void show_file(const Request& request, Response& response) {
    const auto file = store_.file(request.matches[1]);
    file ? answer(response, to_json(*file)) : refuse_unknown(response, "file", request.matches[1]);
  }

  void remove_file(const Request& request, Response& response) {
    const std::string id = request.matches[1];
    if (!store_.file(id)) return refuse_unknown(response, "file", id);
    if (!store_.remove_file(id))
      return refuse(response, 409, "file " + id + " is the input of a batch that is not over; cancel it first");
    answer(response, {{"id", id}, {"object", "file"}, {"deleted", true}});
  }

  void download(const Request& request, Response& response) {
    const std::string id = request.matches[1];
    if (!store_.file(id)) return refuse_unknown(response, "file", id);
    const auto file = std::make_shared<InputFile>(store_.contents(id));
    response.set_content_provider(file->size(), "application/octet-stream",
                                  [file](std::size_t offset, std::size_t length, httplib::DataSink& sink) {
                                    std::string piece(std::min(length, kChunk), '\0');
                                    try {
                                      file->read(offset, std::as_writable_bytes(std::span(piece)));
                                    } catch (const Error& error) {
                                      log_warn("{}", error.what());
                                      return false;
                                    }
                                    return sink.write(piece.data(), piece.size());
                                  });
  }

  void add_batches() {
    http_.Post("/v1/batches", bound(&BatchServer::create));
    http_.Get("/v1/batches", bound(&BatchServer::list_batches));
    http_.Get("/v1/batches/(\\w+)", bound(&BatchServer::show_batch));
    http_.Post("/v1/batches/(\\w+)/cancel", bound(&BatchServer::cancel));
  }

  void create(const Request& request, Response& response) {
    std::optional<Batch> asked;
    try {
      asked = batch_request(request.body);
    } catch (const UsageError& error) {
      return refuse(response, 400, error.what());
    }
    const auto batch = store_.add_batch(*asked);
    if (!batch) return refuse_unknown(response, "file", asked->input_file_id);
    worker_.wake();
    answer(response, to_json(*batch));
  }

  void list_batches(const Request& request, Response& response) {
    answer_list(request, response, store_.batches(), "20");
  }

  void show_batch(const Request& request, Response& response) {
    const auto batch = store_.batch(request.matches[1]);
    batch ? answer(response, to_json(*batch)) : refuse_unknown(response, "batch", request.matches[1]);
  }

  void cancel(const Request& request, Response& response) {
    const std::string id = request.matches[1];
    if (!store_.batch(id)) return refuse_unknown(response, "batch", id);
    bool over = false;
    const Batch batch = store_.update(id, [&](Batch& changed) {
      over = is_over(changed.status);
      if (over || changed.status == BatchStatus::cancelling) return;
      const bool begun = changed.status != BatchStatus::validating;
      changed.status = begun ? BatchStatus::cancelling : BatchStatus::cancelled;
      changed.time_of(BatchStatus::cancelling) = changed.time_of(changed.status) = seconds_now();
    });
    if (over) return refuse(response, 409, "batch " + id + " is over and cannot be cancelled");
    worker_.wake();
    answer(response, to_json(batch));
  }

  void add_models() {
    http_.Get("/v1/models", [this](const Request&, Response& response) {
      answer(response, {{"object", "list"}, {"data", ordered_json::array({model(options_.model_names.front())})}});
    });
    http_.Get("/v1/models/(.+)", [this](const Request& request, Response& response) {
      const auto& names = options_.model_names;
      const std::string name = request.matches[1];
      if (std::find(names.begin(), names.end(), name) == names.end()) return refuse_unknown(response, "model", name);
      answer(response, model(name));
    });
  }

  ordered_json model(const std::string& name) const {
    return {{"id", name}, {"object", "model"}, {"created", started_}, {"owned_by", "weft"}};
  }

  const ServeOptions& options_;
  BatchStore& store_;
  BatchWorker& worker_;
  const std::int64_t started_;
  HttpDoor http_;
};

/// Lets weft generate check the model and the flags by a request that is not computed.
void try_flags(const ServeOptions& options, const BatchStore& store, const std::atomic<bool>& stop) {
  const std::filesystem::path folder = store.work_folder("try");
  const std::filesystem::path input = folder / "input.jsonl";
  const ordered_json body{{"model", options.model_names.front()}, {"prompt", "a"}, {"max_tokens", 1}};
  write_file_atomically(
      input, policy::to_line(
                 ordered_json{{"custom_id", "1"}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}) +
                 "\n");
  auto arguments = options.command.arguments(input, folder / "output.jsonl");
  arguments.push_back("--dry-run");
  {
    Child child(arguments, folder / "said.txt");
    while (!child.ended() && !stop) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (!stop && *child.ended() != 0) throw UsageError(child.error());
  }
  store.remove_work_folder("try");
}

}  // namespace

bool can_serve() { return true; }

int serve(const ServeOptions& options, const std::atomic<bool>& stop) {
  BatchStore store(options.folder);
  try_flags(options, store, stop);
  BatchWorker worker(store, options.command);
  BatchServer server(options, store, worker);
  server.bind();
  log_info("serving batches of {} at http://127.0.0.1:{}/v1; files and batches are in {}{}",
           options.model_names.front(), options.port, options.folder,
           options.api_key.empty() ? "; everybody on this machine may ask (no --api-key)" : "");
  std::thread works([&] { worker.run(stop); });
  std::thread waits([&] {
    while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server.stop();
    worker.wake();
  });
  server.listen();
  waits.join();
  works.join();
  log_info("stopped; batches that are not over go on at the next start");
  return 0;
}

}  // namespace weft::runtime
