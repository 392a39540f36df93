// runtime/serve/batch.h: an uploaded file and a batch, as OpenAI's API has them, as values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace weft::runtime {

struct StoredFile {
  std::string id, filename, purpose;
  std::uint64_t bytes = 0;
  std::int64_t created_at = 0;  ///< seconds since 1970, as are all times here
};

enum class BatchStatus : std::uint8_t { validating, failed, in_progress, finalizing, completed, cancelling, cancelled };
constexpr std::size_t kBatchStatuses = 7;

/// Whether nothing is left to do.
bool is_over(BatchStatus status);

struct BatchError {
  std::string code, message;
  std::uint64_t line = 0;  ///< 0: the whole file is meant
};

struct Batch {
  std::string id, endpoint, input_file_id, completion_window;
  std::string metadata = "null";  ///< as JSON
  std::uint64_t number = 0;       ///< batches run in this order
  BatchStatus status = BatchStatus::validating;
  std::array<std::int64_t, kBatchStatuses> times{};    ///< when it got each status; 0: not yet
  std::uint64_t total = 0, completed = 0, failed = 0;  ///< requests
  std::string output_file_id, error_file_id;           ///< empty: there is none
  std::vector<BatchError> errors;

  std::int64_t& time_of(BatchStatus of) { return times[static_cast<std::size_t>(of)]; }
  std::int64_t time_of(BatchStatus of) const { return times[static_cast<std::size_t>(of)]; }
};

nlohmann::ordered_json to_json(const StoredFile& file);
/// `own`: with the fields that only the store reads.
nlohmann::ordered_json to_json(const Batch& batch, bool own = false);
/// The inverses of to_json(), for a batch with the store's fields. Throw nlohmann's exceptions for anything else.
StoredFile file_from(const nlohmann::json& json);
Batch batch_from(const nlohmann::json& json);

}  // namespace weft::runtime
