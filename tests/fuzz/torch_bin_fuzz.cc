// tests/fuzz/torch_bin_fuzz.cc: any file is refused by a CheckpointError, or all that is found lies inside it.
#include <algorithm>
#include <cstdlib>

#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/torch_bin.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  try {
    const runtime::InputFile file(fuzz::file_of("pytorch_model.bin", fuzz::text_of(data, size)));
    const auto inside = [&](const auto& range) { return range.offset <= size && range.bytes <= size - range.offset; };
    const runtime::TorchFile found = runtime::read_torch_bin(file);
    if (!std::all_of(found.tensors.begin(), found.tensors.end(), inside)) std::abort();
    if (!std::all_of(found.checksums.begin(), found.checksums.end(), inside)) std::abort();
  } catch (const runtime::CheckpointError&) {}
  return 0;
}
