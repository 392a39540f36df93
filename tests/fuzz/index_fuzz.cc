// tests/fuzz/index_fuzz.cc: an index of shards, whatever it says, opens nothing outside its folder and never crashes.
#include "kernels/error.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "tests/fuzz/files.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace weft;
  fuzz::file_of("model-00001-of-00001.safetensors",
                std::string("\x02\0\0\0\0\0\0\0{}", 10));  // a sound shard without tensors
  fuzz::file_of("model.safetensors.index.json", fuzz::text_of(data, size));
  try {
    runtime::Checkpoint::open(fuzz::folder());
  } catch (const runtime::CheckpointError&) {
  } catch (const DataError&) {
  } catch (const IoError&) {}
  return 0;
}
