// tests/fuzz/sentencepiece_fuzz.cc: a tokenizer.model is refused by a DataError, or encodes and decodes.
#include <cstdlib>

#include "kernels/error.h"
#include "runtime/text/tokenizer.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  fuzz::file_of("tokenizer.model", fuzz::text_of(data, size));
  for (const char* config : {"{}", R"({"tokenizer_class":"LlamaTokenizer","add_bos_token":true})"}) {
    fuzz::file_of("tokenizer_config.json", config);
    try {
      const auto tokenizer = runtime::Tokenizer::load(fuzz::folder());
      const auto ids = tokenizer.encode("  It's 12345 caf\u00e9s \U0001F600\n\n  </s> e\u0301 \uFF21\r\n ", true);
      const std::string text = tokenizer.decode(ids);
      if (runtime::with_replacements(text) != text) std::abort();
    } catch (const DataError&) {}
  }
  return 0;
}
