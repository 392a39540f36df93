// tests/fuzz/snapshot_fuzz.cc: any bytes as a snapshot are refused, or each of its sequences lies inside the file and
// can be read or is damaged. The checksums of index and end are put right first, or nothing would get past them.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/error.h"
#include "offload/crc32c.h"
#include "runtime/results/snapshot.h"
#include "tests/fuzz/files.h"

namespace {

/// The bytes as the records and the index of a snapshot, the first of them saying how many are the index.
std::string as_snapshot(std::string_view text) {
  const std::size_t most = text.size() < 2 ? 0 : text.size() - 2;
  const std::size_t index = text.size() < 2 ? 0
                                            : std::min<std::size_t>(most, static_cast<unsigned char>(text[0]) * 256u +
                                                                              static_cast<unsigned char>(text[1]));
  const std::string_view body = text.size() < 2 ? std::string_view{} : text.substr(2);
  const std::uint64_t at = weft::runtime::kSnapshotMagic.size() + body.size() - index;
  const auto crc = [](const void* data, std::size_t bytes) {
    return weft::offload::crc32c(static_cast<const std::byte*>(data), bytes);
  };
  std::string end(16, '\0');
  const std::uint32_t of_index = crc(body.data() + body.size() - index, index);
  std::memcpy(end.data(), &at, 8);
  std::memcpy(end.data() + 8, &of_index, 4);
  const std::uint32_t of_end = crc(end.data(), 12);
  std::memcpy(end.data() + 12, &of_end, 4);
  return std::string(weft::runtime::kSnapshotMagic) + std::string(body) + end;
}

void check(const std::string& bytes) {
  using namespace weft;
  const auto path = fuzz::file_of("out.inflight", bytes);
  try {
    const runtime::Snapshot snapshot(path);
    for (std::size_t i = 0; i < snapshot.size(); ++i)
      for (std::size_t number = 0; number < static_cast<std::size_t>(snapshot.kind().records); ++number) {
        const runtime::SavedRecord& saved = snapshot.record(i, number);
        if (saved.offset + saved.bytes > bytes.size()) std::abort();
        std::vector<std::byte> record(static_cast<std::size_t>(saved.bytes));
        try {
          snapshot.read(i, number, record);
        } catch (const DataError&) {}
      }
  } catch (const DataError&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = weft::fuzz::text_of(data, size);
  check(std::string(text));
  check(as_snapshot(text));
  return 0;
}
