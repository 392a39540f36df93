#include "runtime/checkpoint/packed_sums.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/base/input_file.h"
#include "runtime/checkpoint/checkpoint_error.h"
#include "runtime/checkpoint/zip_reader.h"

namespace weft::runtime {
namespace {

static_assert(std::endian::native == std::endian::little);

constexpr std::size_t kSum = sizeof(std::uint32_t);

std::uint32_t sum_of(std::string_view bytes) { return crc32(std::as_bytes(std::span(bytes))); }

std::string read(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  file.read(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

std::uint32_t number_at(const std::string& bytes, std::size_t index) {
  std::uint32_t number = 0;
  std::memcpy(&number, bytes.data() + index * kSum, kSum);
  return number;
}

}  // namespace

std::string packed_sums(std::uint32_t header, std::span<const std::uint32_t> tensors) {
  std::string bytes;
  const auto add = [&](std::uint32_t number) { bytes.append(reinterpret_cast<const char*>(&number), kSum); };
  add(header);
  for (const std::uint32_t sum : tensors) add(sum);
  add(sum_of(bytes));
  return bytes;
}

std::vector<Checksum> take_packed_sums(const InputFile& file, std::vector<TensorInfo>& tensors) {
  const auto sums = std::find_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.name == kPackedSums; });
  if (sums == tensors.end()) return {};
  const auto refuse = [&](const std::string& what) {
    throw CheckpointError(Fault::bad_checksum,
                          file.path().string() + ": " + what + ": the file is damaged; pack it again");
  };
  const TensorInfo held = *sums;
  tensors.erase(sums);  // the others are in order of offset, so the first is where the tensors begin
  if (held.dtype != "U8" || held.bytes != (tensors.size() + 2) * kSum || tensors.empty())
    refuse("its checksums are " + std::to_string(held.bytes) + " bytes of " + held.dtype + ", wanted " +
           std::to_string((tensors.size() + 2) * kSum) + " of U8");
  const std::string bytes = read(file, held.offset, held.bytes);
  const std::size_t last = tensors.size() + 1;
  if (sum_of(std::string_view(bytes).substr(0, last * kSum)) != number_at(bytes, last))
    refuse("its checksums do not have their own");
  if (sum_of(read(file, 0, tensors.front().offset)) != number_at(bytes, 0))
    refuse("its header does not have its checksum");
  std::vector<Checksum> found;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    found.push_back({.file = 0,
                     .record = tensors[i].name,
                     .offset = tensors[i].offset,
                     .bytes = tensors[i].bytes,
                     .crc = number_at(bytes, i + 1)});
  return found;
}

}  // namespace weft::runtime
