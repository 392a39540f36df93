// tests/fuzz/packed_fuzz.cc: any bytes as a packed file are refused by a DataError, or every unit lies inside the file
// at a page and is found damaged or sound. The checksums of header and checksums are put right first, or nothing would
// get past them.
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/error.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/packed.h"
#include "runtime/checkpoint/packed_sums.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/zip_reader.h"
#include "tests/fuzz/files.h"

namespace {

using namespace weft;
using namespace weft::runtime;

std::uint32_t crc(std::string_view bytes) { return crc32(std::as_bytes(std::span(bytes))); }

/// The same with checksums that fit, where there is a tensor of checksums at all; every second unit is left damaged.
std::string put_right(std::string file) {
  std::vector<TensorInfo> tensors;
  try {
    const auto bytes =
        safetensors_header_bytes(std::string_view(file).substr(0, kSafetensorsHeadBytes), file.size(), "file");
    tensors = parse_safetensors_header(std::string_view(file).substr(8, static_cast<std::size_t>(bytes)), file.size(),
                                       "file");
  } catch (const CheckpointError&) {
    return file;
  }
  std::vector<std::uint32_t> sums;
  const TensorInfo* held = nullptr;
  std::uint64_t first = file.size();
  for (const TensorInfo& tensor : tensors) {
    if (tensor.name == kPackedSums) {
      held = &tensor;
      continue;
    }
    first = std::min(first, tensor.offset);
    sums.push_back(crc(std::string_view(file).substr(tensor.offset, tensor.bytes)) ^ (sums.size() % 2));
  }
  if (!held) return file;
  const std::string right = packed_sums(crc(std::string_view(file).substr(0, first)), sums);
  if (right.size() == held->bytes) file.replace(held->offset, right.size(), right);
  return file;
}

void check(const std::string& bytes) {
  const auto path = fuzz::file_of("packed.safetensors", bytes);
  const std::atomic<bool> stop{false};
  try {
    const Checkpoint file = Checkpoint::open_file(path);
    UnitSizes sizes(file.size());  // as if these were the sizes of a model's units
    for (const TensorInfo& tensor : file.tensors())
      if (tensor.name.starts_with("unit.00000") && tensor.name.size() == 11) {
        const auto unit = static_cast<std::size_t>(tensor.name.back() - '0');
        if (unit < sizes.size()) sizes[unit] = tensor.bytes;
      }
    const PackedUnits units(file, sizes);
    const std::vector<offload::FileId> files(1);
    for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
      if (!units.has(unit)) continue;
      const offload::Extent extent = units.part(unit, files).extent;
      if (extent.offset % offload::kPage != 0 || extent.bytes != *sizes[unit] || extent.offset > bytes.size() ||
          extent.bytes > bytes.size() - extent.offset)
        std::abort();
    }
    file.verify(stop);
  } catch (const DataError&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(fuzz::text_of(data, size));
  check(text);
  check(put_right(text));
  return 0;
}
