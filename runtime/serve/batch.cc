#include "runtime/serve/batch.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "policy/base/json.h"

namespace weft::runtime {

using nlohmann::ordered_json;

namespace {

constexpr std::array<const char*, kBatchStatuses> kStatusNames{"validating", "failed",     "in_progress", "finalizing",
                                                               "completed",  "cancelling", "cancelled"};

ordered_json time_or_null(std::int64_t time) { return time == 0 ? ordered_json() : ordered_json(time); }
ordered_json id_or_null(const std::string& id) { return id.empty() ? ordered_json() : ordered_json(id); }

std::int64_t time_from(const nlohmann::json& json, const char* key) {
  return json.at(key).is_null() ? 0 : json.at(key).get<std::int64_t>();
}
std::string id_from(const nlohmann::json& json, const char* key) {
  return json.at(key).is_null() ? "" : json.at(key).get<std::string>();
}

}  // namespace

bool is_over(BatchStatus status) {
  return status == BatchStatus::failed || status == BatchStatus::completed || status == BatchStatus::cancelled;
}

ordered_json to_json(const StoredFile& file) {
  return {{"id", file.id},
          {"object", "file"},
          {"bytes", file.bytes},
          {"created_at", file.created_at},
          {"filename", file.filename},
          {"purpose", file.purpose},
          {"status", "processed"}};
}

ordered_json to_json(const Batch& batch, bool own) {
  ordered_json errors;
  if (!batch.errors.empty()) {
    ordered_json data = ordered_json::array();
    for (const BatchError& error : batch.errors)
      data.push_back({{"code", error.code},
                      {"message", error.message},
                      {"param", nullptr},
                      {"line", error.line == 0 ? ordered_json() : ordered_json(error.line)}});
    errors = {{"object", "list"}, {"data", std::move(data)}};
  }
  ordered_json json{
      {"id", batch.id},
      {"object", "batch"},
      {"endpoint", batch.endpoint},
      {"errors", std::move(errors)},
      {"input_file_id", batch.input_file_id},
      {"completion_window", batch.completion_window},
      {"status", kStatusNames[static_cast<std::size_t>(batch.status)]},
      {"output_file_id", id_or_null(batch.output_file_id)},
      {"error_file_id", id_or_null(batch.error_file_id)},
      {"created_at", batch.time_of(BatchStatus::validating)},
      {"in_progress_at", time_or_null(batch.time_of(BatchStatus::in_progress))},
      {"expires_at", nullptr},
      {"finalizing_at", time_or_null(batch.time_of(BatchStatus::finalizing))},
      {"completed_at", time_or_null(batch.time_of(BatchStatus::completed))},
      {"failed_at", time_or_null(batch.time_of(BatchStatus::failed))},
      {"expired_at", nullptr},
      {"cancelling_at", time_or_null(batch.time_of(BatchStatus::cancelling))},
      {"cancelled_at", time_or_null(batch.time_of(BatchStatus::cancelled))},
      {"request_counts", {{"total", batch.total}, {"completed", batch.completed}, {"failed", batch.failed}}},
      {"metadata", ordered_json::parse(batch.metadata)}};
  if (own) json["number"] = batch.number;
  return json;
}

StoredFile file_from(const nlohmann::json& json) {
  StoredFile file;
  json.at("id").get_to(file.id);
  json.at("filename").get_to(file.filename);
  json.at("purpose").get_to(file.purpose);
  json.at("bytes").get_to(file.bytes);
  json.at("created_at").get_to(file.created_at);
  return file;
}

Batch batch_from(const nlohmann::json& json) {
  Batch batch;
  json.at("id").get_to(batch.id);
  json.at("endpoint").get_to(batch.endpoint);
  json.at("input_file_id").get_to(batch.input_file_id);
  json.at("completion_window").get_to(batch.completion_window);
  batch.metadata = policy::to_line(json.at("metadata"));
  json.at("number").get_to(batch.number);
  const auto name = std::find(kStatusNames.begin(), kStatusNames.end(), json.at("status").get<std::string>());
  if (name == kStatusNames.end()) throw std::out_of_range("status");
  batch.status = static_cast<BatchStatus>(name - kStatusNames.begin());
  json.at("created_at").get_to(batch.time_of(BatchStatus::validating));
  for (std::size_t i = 1; i < kBatchStatuses; ++i)
    batch.times[i] = time_from(json, (kStatusNames[i] + std::string("_at")).c_str());
  const auto& counts = json.at("request_counts");
  counts.at("total").get_to(batch.total);
  counts.at("completed").get_to(batch.completed);
  counts.at("failed").get_to(batch.failed);
  batch.output_file_id = id_from(json, "output_file_id");
  batch.error_file_id = id_from(json, "error_file_id");
  if (!json.at("errors").is_null())
    for (const auto& error : json.at("errors").at("data"))
      batch.errors.push_back({error.at("code"), error.at("message"), std::uint64_t(time_from(error, "line"))});
  return batch;
}

}  // namespace weft::runtime
