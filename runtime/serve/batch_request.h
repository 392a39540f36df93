// runtime/serve/batch_request.h: the requests of clients, read strictly.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "runtime/serve/batch.h"

namespace weft::runtime {

/// Reads the body of a request for a batch: input_file_id, endpoint, completion_window and metadata. Throws UsageError,
/// which names the field.
Batch batch_request(const std::string& body);

/// A part of a list.
struct Page {
  std::size_t limit = 20;
  bool ascending = false;
};
/// Reads ?limit= and ?order=, which may be empty. Nothing if one is wrong.
std::optional<Page> page_of(const std::string& limit, const std::string& order);

}  // namespace weft::runtime
