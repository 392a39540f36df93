// tests/fuzz/gpt2_files_fuzz.cc: the input is merges.txt next to a sound vocab.json, or tokenizer_config.json next to
// both.
#include <nlohmann/json.hpp>

#include "kernels/error.h"
#include "runtime/text/tokenizer.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  static const bool made = [] {
    nlohmann::json vocabulary;
    for (int byte = 0; byte < 256; ++byte)
      vocabulary[runtime::alphabet_of_byte(static_cast<unsigned char>(byte))] = byte;
    vocabulary["ab"] = 256;
    vocabulary["abc"] = 257;
    fuzz::file_of("vocab.json", vocabulary.dump());
    return true;
  }();
  if (!made || size == 0) return 0;
  const std::string_view text = fuzz::text_of(data, size);
  fuzz::file_of("merges.txt", data[0] % 2 == 0 ? text : "a b\nab c\n");
  fuzz::file_of("tokenizer_config.json", data[0] % 2 == 0 ? "{}" : text);
  try {
    runtime::Tokenizer::load(fuzz::folder()).encode("abc abcabc", true);
  } catch (const DataError&) {}
  return 0;
}
