#include "runtime/serve/batch_request.h"

#include <charconv>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "policy/base/json.h"
#include "runtime/base/quote.h"

namespace weft::runtime {
namespace {

constexpr std::size_t kMostListed = 10'000, kMostMetadata = 16, kLongestMetadata = 512;

std::string text_of(const nlohmann::json& body, const char* field) {
  const auto found = body.find(field);
  if (found == body.end() || !found->is_string())
    throw UsageError("'" + std::string(field) + "' is missing; wanted a string");
  return found->get<std::string>();
}

void check_metadata(const nlohmann::json& metadata) {
  bool good = metadata.is_null() || (metadata.is_object() && metadata.size() <= kMostMetadata);
  if (good && metadata.is_object())
    for (const auto& [key, value] : metadata.items())
      good = good && value.is_string() && value.get_ref<const std::string&>().size() <= kLongestMetadata;
  if (!good) throw UsageError("'metadata' must be an object of up to 16 strings of up to 512 bytes");
}

}  // namespace

Batch batch_request(const std::string& body) {
  const nlohmann::json json = policy::parse_json(body, "the body", policy::Blame::usage, {.depth = 8});
  if (!json.is_object()) throw UsageError("the body must be an object");
  Batch batch;
  for (const auto& [key, value] : json.items())
    if (key != "input_file_id" && key != "endpoint" && key != "completion_window" && key != "metadata")
      throw UsageError("unknown field " + in_quotes(key) +
                       "; wanted input_file_id, endpoint, completion_window and metadata");
  batch.input_file_id = text_of(json, "input_file_id");
  batch.endpoint = text_of(json, "endpoint");
  if (batch.endpoint != "/v1/completions" && batch.endpoint != "/v1/chat/completions")
    throw UsageError("'endpoint' must be /v1/completions or /v1/chat/completions, got " + in_quotes(batch.endpoint));
  batch.completion_window = text_of(json, "completion_window");
  if (batch.completion_window != "24h")
    throw UsageError("'completion_window' must be 24h, got " + in_quotes(batch.completion_window));
  const nlohmann::json metadata = json.value("metadata", nlohmann::json());
  check_metadata(metadata);
  batch.metadata = policy::to_line(metadata);
  return batch;
}

std::optional<Page> page_of(const std::string& limit, const std::string& order) {
  Page page;
  if (!limit.empty()) {
    const auto [end, bad] = std::from_chars(limit.data(), limit.data() + limit.size(), page.limit);
    if (bad != std::errc{} || end != limit.data() + limit.size() || page.limit < 1 || page.limit > kMostListed)
      return {};
  }
  if (!order.empty() && order != "asc" && order != "desc") return {};
  page.ascending = order == "asc";
  return page;
}

}  // namespace weft::runtime
