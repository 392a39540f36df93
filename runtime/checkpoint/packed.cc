#include "runtime/checkpoint/packed.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/error.h"
#include "kernels/machine/mapped_memory.h"
#include "offload/memory.h"
#include "runtime/base/files.h"
#include "runtime/base/fill_ahead.h"
#include "runtime/base/parallel.h"
#include "runtime/base/stop.h"
#include "runtime/checkpoint/packed_sums.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/checkpoint/zip_reader.h"

namespace weft::runtime {
namespace {

namespace fs = std::filesystem;

std::string name_of_unit(std::size_t unit) {
  const std::string digits = std::to_string(unit);
  return "unit." + std::string(6 - std::min<std::size_t>(6, digits.size()), '0') + digits;
}

std::string make_header(const UnitSizes& sizes, const Metadata& said) {
  nlohmann::ordered_json header{{"__metadata__", {{"format", "weft"}, {"version", "1"}}}};
  for (const auto& [key, value] : said) header.at("__metadata__")[key] = value;
  std::uint64_t offset = 0;
  std::size_t sums = 2;
  const auto add = [&](const std::string& name, std::uint64_t bytes) {
    header[name] = {{"dtype", "U8"}, {"shape", {bytes}}, {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  };
  for (std::size_t unit = 0; unit < sizes.size(); ++unit)
    if (sizes[unit]) add(name_of_unit(unit), *sizes[unit]), ++sums;
  add(kPackedSums, sums * sizeof(std::uint32_t));
  return safetensors_head(header);
}

/// The CRC-32 of bytes whose parts are summed side by side.
std::uint32_t sum_on_all_cores(std::span<const std::byte> bytes) {
  constexpr std::size_t part = 1 << 20;
  const auto of = [&](std::size_t i) { return bytes.subspan(i * part, std::min(part, bytes.size() - i * part)); };
  std::vector<std::uint32_t> sums((bytes.size() + part - 1) / part);
  for_each_of(static_cast<std::int64_t>(sums.size()),
              [&](std::int64_t i) { sums[static_cast<std::size_t>(i)] = crc32(of(static_cast<std::size_t>(i))); });
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) sum = crc32_of_both(sum, sums[i], of(i).size());
  return sum;
}

}  // namespace

void write_packed(AtomicFile& to, const fs::path& name, const MakeUnit& make, const UnitSizes& sizes,
                  const Metadata& said, const std::atomic<bool>& stop, const PackingProgress& progress) {
  const std::string header = make_header(sizes, said);
  std::uint64_t all = 0, done = 0, largest = 0;
  for (const auto& size : sizes) all += size.value_or(0), largest = std::max(largest, size.value_or(0));
  require_space(name.string(), folder_of(name), header.size() + all + offload::kPage);
  std::vector<std::uint32_t> sums;
  to.append(header);
  FillAhead ahead([&](std::size_t) { return std::make_unique<kernels::MappedMemory>(largest); });
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    if (!sizes[unit]) continue;
    if (stop) throw Interrupted{};
    if (progress) progress(name, done, all);
    std::byte* const bytes = ahead.next(*sizes[unit]);
    make(unit, bytes);
    ahead.carry([&to, &sums, made = std::span<const std::byte>(bytes, *sizes[unit])] {
      sums.push_back(sum_on_all_cores(made));
      to.append({reinterpret_cast<const char*>(made.data()), made.size()});
    });
    done += *sizes[unit];
  }
  ahead.finish();
  to.append(packed_sums(crc32(std::as_bytes(std::span(header))), sums));
  if (progress) progress(name, done, all);
}

PackedUnits::PackedUnits(const Checkpoint& file, const UnitSizes& sizes) {
  const auto refuse = [&](const std::string& what) {
    throw DataError(file.files().front().string() + ": " + what +
                    "; it was packed for another model or by another version: pack it again");
  };
  std::size_t wanted = 0;
  for (std::size_t unit = 0; unit < sizes.size(); ++unit) {
    units_.push_back(sizes[unit] ? file.find(name_of_unit(unit)) : nullptr);
    if (!sizes[unit]) continue;
    ++wanted;
    const TensorInfo* const found = units_.back();
    if (!found) refuse("there is no " + name_of_unit(unit));
    else if (found->bytes != *sizes[unit] || found->offset % offload::kPage != 0)
      refuse(name_of_unit(unit) + " has " + std::to_string(found->bytes) + " bytes at " +
             std::to_string(found->offset) + ", wanted " + std::to_string(*sizes[unit]) + " at a multiple of " +
             std::to_string(offload::kPage));
  }
  if (wanted != file.size())
    refuse("it has " + std::to_string(file.size()) + " units, wanted " + std::to_string(wanted));
  if (!file.has_checksums()) refuse("it has no checksums");
}

offload::FilePart PackedUnits::part(std::size_t unit, std::span<const offload::FileId> files) const {
  const TensorInfo& tensor = *units_[unit];
  return {{files[tensor.file], tensor.offset, tensor.bytes}, 0};
}

}  // namespace weft::runtime
