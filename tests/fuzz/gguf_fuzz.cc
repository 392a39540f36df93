// tests/fuzz/gguf_fuzz.cc: a GGUF file: it is refused by a DataError, or its config and its tokenizer are made and its
// matrices read, the same in parts as at once.
#include <cstdlib>

#include "kernels/error.h"
#include "runtime/checkpoint/model_files.h"
#include "runtime/stored/stored_matrix.h"
#include "runtime/text/tokenizer.h"
#include "tests/fuzz/files.h"

namespace {

using namespace weft;

template <class Function> void refused_or(const Function& function) {
  try {
    function();
  } catch (const DataError&) {}
}

void read_matrices(const runtime::Checkpoint& checkpoint) {
  for (const runtime::TensorInfo& tensor : checkpoint.tensors()) {
    const runtime::MatrixFormat* const format = runtime::matrix_format(checkpoint, {}, tensor.name);
    if (!format || tensor.shape.size() != 2) continue;
    const std::int64_t rows = tensor.shape[0], cols = tensor.shape[1];
    const auto matrix = format->open(checkpoint, {}, tensor.name, rows, cols);
    std::vector<float> all, last;
    matrix->read_numbers(0, rows, all);
    matrix->read_numbers(rows - 1, 1, last);
    for (std::size_t i = 0; i < last.size(); ++i)
      if (last[i] != all[all.size() - last.size() + i]) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  refused_or([&] {
    const auto path = fuzz::file_of("x.gguf", fuzz::text_of(data, size));
    if (!runtime::is_gguf(path)) return;
    const runtime::ModelFiles files = runtime::ModelFiles::open(path);
    const runtime::ModelTexts& texts = files.texts();
    for (const char* name : {"config.json", "generation_config.json", "tokenizer_config.json"})
      refused_or([&] {
        if (texts.has(name)) texts.read(name, 1 << 30);
      });
    refused_or([&] {
      if (runtime::Tokenizer::present(texts)) runtime::Tokenizer::load(texts).encode("abc abcabc", true);
    });
    read_matrices(runtime::Checkpoint::open(path));
  });
  return 0;
}
