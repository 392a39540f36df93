// tests/fuzz/torch_bin_fuzz.cc: any file is refused by a CheckpointError, or gives tensors that lie inside it.
#include <cstdlib>

#include "runtime/checkpoint_error.h"
#include "runtime/torch_bin.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  try {
    const runtime::InputFile file(fuzz::file_of("pytorch_model.bin", fuzz::text_of(data, size)));
    for (const runtime::TensorInfo& tensor : runtime::read_torch_bin(file).tensors)
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
  } catch (const runtime::CheckpointError&) {}
  return 0;
}
