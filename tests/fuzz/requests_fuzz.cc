// tests/fuzz/requests_fuzz.cc: each request of a file is refused for a reason, and the line that says so is known
// again, or it can be read again, whichever dialect the file is in; and any bytes as the results of an earlier run are
// refused, or recovered the same way twice, repaired, and merged or refused.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/requests/requests.h"
#include "runtime/results/journal.h"
#include "runtime/results/merge.h"
#include "runtime/results/result_line.h"
#include "tests/fuzz/files.h"

namespace {

using namespace weft;
using runtime::OnBadRequest;
using runtime::RequestFile;

const policy::ModelSpec& model() {
  static const policy::ModelSpec spec = [] {
    policy::ModelSpec made;
    made.vocab = 4096;
    made.positions = 64;
    return made;
  }();
  return spec;
}

RequestFile open(const std::filesystem::path& path, runtime::RequestKind kind, OnBadRequest on_bad) {
  static const auto tokenizer = runtime::Tokenizer::load(std::filesystem::path(WEFT_SOURCE_DIR) / "models/demo");
  static const auto chat = runtime::ChatTemplate::named("llama3.1", {{"bos_token", "</s>"}, {"eos_token", "</s>"}});
  return {path,  kind, &tokenizer, model(), 16, {.model_names = {"m"}, .files = nullptr, .chat = chat, .strict = false},
          on_bad};
}

void check(const RequestFile& requests) {
  bool bad = false;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    if (requests.refused(i)) {
      const runtime::Refusal refusal = requests.refusal(i);
      if (refusal.code.empty() || refusal.reason.empty()) std::abort();
      const auto line = nlohmann::json::parse(runtime::refusal_line(refusal, requests.dialect()));
      if (runtime::answered_request(line, requests, "line") != i) std::abort();
      bad = true;
      continue;
    }
    const runtime::Request request = requests.read(i);
    if (request.prompt.empty() || request.max_tokens < 1) std::abort();
    if (requests.find(request.id) != i) std::abort();
  }
  if (bad) return;
  try {
    open(requests.path(), requests.kind(), OnBadRequest::fail);
  } catch (const UsageError&) {
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  const auto input = fuzz::file_of("requests.jsonl", text);
  for (const auto kind : {runtime::RequestKind::generate, runtime::RequestKind::score}) try {
      check(open(input, kind, OnBadRequest::record));
    } catch (const UsageError&) {}

  const char* envelope = R"("method":"POST","url":"/v1/completions","body":{"model":"m","prompt":"x"}})";
  for (const std::string& known :
       {std::string("{\"id\":1,\"prompt_ids\":[1]}\n{\"id\":\"b\",\"prompt_ids\":[1]}\n"),
        std::string(R"({"custom_id":"a",)") + envelope + "\n" + R"({"custom_id":"b",)" + envelope + "\n"}) {
    const RequestFile requests =
        open(fuzz::file_of("known.jsonl", known), runtime::RequestKind::generate, OnBadRequest::fail);
    const auto output = fuzz::file_of("results.jsonl", text);
    try {
      const auto first = runtime::Journal(output, true).recover(requests);
      if (runtime::Journal(output, true).recover(requests) != first) std::abort();
    } catch (const UsageError&) {}
    const auto repaired = runtime::Journal(output, true).recover(requests, true);
    if (runtime::Journal(output, true).recover(requests) != repaired) std::abort();
    std::filesystem::remove(output.string() + ".bad");
  }
  const auto output = fuzz::file_of("results.jsonl", text);
  const std::atomic<bool> stop = false;
  for (const char* wanted : {"known.jsonl", "requests.jsonl"}) try {
      if (runtime::merge(fuzz::folder() / wanted, {output}, fuzz::folder() / "merged.jsonl", stop) == 0) std::abort();
    } catch (const UsageError&) {}
  return 0;
}
