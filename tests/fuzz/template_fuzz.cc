// tests/fuzz/template_fuzz.cc: a chat template gives a text or a TemplateError of one line, soon.
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "runtime/template/template.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::runtime::jinja;
  static const auto variables = nlohmann::ordered_json::parse(
      R"({"messages":[{"role":"user","content":"a\u00e9 b"},{"role":"assistant","content":null,"tool_calls":[{"x":[1,2.5]}]}],
          "tools":[{"type":"function"}],"add_generation_prompt":true,"bos_token":"<s>","n":3})");
  try {
    Template(weft::fuzz::text_of(data, size)).render(variables);
  } catch (const TemplateError& error) {
    if (std::string(error.what()).find('\n') != std::string::npos) std::abort();
  }
  return 0;
}
