// tests/support/request_file.h: small files of request lines in Weft's own dialect.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "runtime/requests/requests.h"
#include "tests/support/files.h"

namespace weft::test {

inline policy::ModelSpec small_model() {
  policy::ModelSpec model;
  model.vocab = 100;
  model.positions = 32;
  return model;
}

/// A request file in a folder of its own.
struct File {
  TemporaryFolder folder;
  policy::ModelSpec model = small_model();
  std::filesystem::path path = folder / "in.jsonl";

  explicit File(std::string_view text) { write_text(path, text); }
  runtime::RequestFile open(runtime::RequestKind kind = runtime::RequestKind::generate) const {
    return {path, kind, nullptr, model, 128};
  }
  runtime::RequestFile open_rolled(const std::string& retention) const {
    return {runtime::InputFile(path),
            runtime::RequestKind::generate,
            nullptr,
            model,
            128,
            {},
            runtime::OnBadRequest::fail,
            nullptr,
            {policy::Retention::from_text(retention)}};
  }
  runtime::RequestFile record() const {
    return {path, runtime::RequestKind::generate, nullptr, model, 128, {}, runtime::OnBadRequest::record};
  }
};

inline const std::string kGood = R"({"id":"good","prompt_ids":[3,4],"max_tokens":4})";
inline const std::string kLast = R"({"id":"last","prompt_ids":[3],"max_tokens":1})";

}  // namespace weft::test
