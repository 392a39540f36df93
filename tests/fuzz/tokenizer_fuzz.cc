// tests/fuzz/tokenizer_fuzz.cc: a tokenizer.json is refused by a DataError, or encodes and decodes.
#include <cstdlib>

#include "kernels/error.h"
#include "runtime/text/tokenizer.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  fuzz::file_of("tokenizer.json", fuzz::text_of(data, size));
  try {
    const auto tokenizer = runtime::Tokenizer::load(fuzz::folder());
    const auto ids = tokenizer.encode("It's 12345 caf\u00e9s \U0001F600\n\n  </s> e\u0301", true);
    const std::string text = tokenizer.decode(ids);
    if (runtime::with_replacements(text) != text) std::abort();
  } catch (const DataError&) {}
  return 0;
}
