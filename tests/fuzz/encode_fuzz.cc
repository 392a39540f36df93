// tests/fuzz/encode_fuzz.cc: any bytes go through fixed tokenizers of every kind; on bytes none is lost.
#include <cstdlib>

#include "runtime/text/tokenizer.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  static const auto* const tokenizers = [] {
    auto* const all = new std::vector<runtime::Tokenizer>;
    for (const char* kind : {"llama3", "neox", "qwen2", "smollm2", "llama2", "mistral"})
      all->push_back(runtime::Tokenizer::load(std::filesystem::path(WEFT_SOURCE_DIR) / "tests/data/tokenizer" / kind));
    return all;
  }();
  const std::string_view text = fuzz::text_of(data, size);
  for (const runtime::Tokenizer& tokenizer : *tokenizers) {
    const auto ids = tokenizer.encode(text, false);
    runtime::IncrementalDecoder decoder(tokenizer);
    std::string pieces, bytes;
    for (const std::int32_t id : ids) {
      const std::string piece = decoder.push(id);
      if (runtime::with_replacements(piece) != piece) std::abort();
      pieces += piece;
      bytes += tokenizer.piece(id);
    }
    if (pieces + decoder.finish() != tokenizer.decode(ids)) std::abort();
    // No normalizer, and no special tokens in the text: what comes out is what went in.
    if (&tokenizer == &tokenizers->front() && text.find('<') == std::string_view::npos && bytes != text) std::abort();
  }
  return 0;
}
