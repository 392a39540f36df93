// tests/fuzz/safetensors_fuzz.cc: any bytes are refused by a CheckpointError, or tile the file with tensors.
#include <cstdlib>

#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft::runtime;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  try {
    const auto bytes = safetensors_header_bytes(file.substr(0, kSafetensorsHeadBytes), size, "file");
    std::uint64_t reached = 8 + bytes;
    for (const TensorInfo& tensor :
         parse_safetensors_header(file.substr(8, static_cast<std::size_t>(bytes)), size, "file")) {
      if (tensor.offset != reached) std::abort();
      reached += tensor.bytes;
    }
    if (reached != size) std::abort();
  } catch (const CheckpointError&) {}
  return 0;
}
