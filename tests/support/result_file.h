// tests/support/result_file.h: three requests, and a result file that answers them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "runtime/results/journal.h"
#include "tests/support/files.h"

namespace weft::test {

struct Job {
  TemporaryFolder folder;
  policy::ModelSpec model;
  std::filesystem::path input = folder / "in.jsonl", output = folder / "out.jsonl";

  Job() {
    model.vocab = 10;
    model.positions = 8;
    write_text(input, R"({"id":1,"prompt_ids":[1]})"
                      "\n"
                      R"({"id":"é","prompt_ids":[1]})"
                      "\n"
                      R"({"id":"1","prompt_ids":[1]})"
                      "\n");
  }
  runtime::RequestFile requests(runtime::RequestKind kind = runtime::RequestKind::generate) const {
    return {input, kind, nullptr, model, 4};
  }
  std::vector<bool> recover() const {
    runtime::Journal journal(output, true);
    return journal.recover(requests());
  }
};

inline const std::vector<std::string> kAnswers{
    R"({"id":"é","text":null,"token_ids":[1],"finish_reason":"length"})",
    R"({"id":1,"text":"a\n","token_ids":[],"finish_reason":"stop"})",
    R"({"id":"1","text":"\"id\":","token_ids":[2,3],"finish_reason":"length"})"};

}  // namespace weft::test
