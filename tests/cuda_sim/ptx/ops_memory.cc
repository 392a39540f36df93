// tests/cuda_sim/ptx/ops_memory.cc: loads and stores, and what they may touch.
#include <algorithm>

#include "machine.h"

namespace cusim::ptx {
namespace {

std::byte* reach_shared(Warp& w, const Instruction& i, int lane, std::uint64_t at, unsigned bytes, Access access) {
  SharedSpace& shared = w.block->shared;
  if (std::string wrong = shared.bounds(at, bytes); !wrong.empty())
    fail(w, i, lane, "shared memory overrun", cudaErrorIllegalAddress, wrong);
  const Accessor who{w.number, lane, &w.clock, i.statement};
  const auto offset = static_cast<std::uint32_t>(at);
  const std::string wrong = access == Access::read    ? shared.read(offset, bytes, who)
                            : access == Access::write ? shared.write(offset, bytes, who)
                                                      : shared.update(offset, bytes, who);
  if (!wrong.empty())
    fail(w, i, lane, shared.raced() ? "missing barrier" : "uninitialised shared memory", cudaErrorLaunchFailure, wrong);
  return shared.at(offset);
}

std::byte* reach_bytes(Warp& w, const Instruction& i, int lane, std::byte* from, std::size_t size, std::uint64_t at,
                       unsigned bytes, const char* what) {
  if (at > size || bytes > size - at)
    fail(w, i, lane, "illegal address", cudaErrorIllegalAddress,
         "offset " + std::to_string(at) + " is outside of " + what);
  return from + at;
}

template <class T> void load_lane(Warp& w, const Instruction& i, int lane, const std::byte* from) {
  for (int element = 0; element < i.elements; ++element) {
    T value;
    std::memcpy(&value, from + static_cast<std::size_t>(element) * sizeof(T), sizeof(T));
    w.write(i.operands[element], lane, static_cast<std::uint64_t>(value));  // signed numbers with their sign
  }
}
template <class T> void store_lane(const Warp& w, const Instruction& i, int lane, std::byte* to) {
  for (int element = 0; element < i.elements; ++element) {
    const auto value = static_cast<T>(w.read(i.operands[1 + element], lane));
    std::memcpy(to + static_cast<std::size_t>(element) * sizeof(T), &value, sizeof(T));
  }
}

void count(Warp& w, Space space, std::array<std::uint64_t, 32>& addresses, unsigned lanes, unsigned bytes) {
  Block& block = *w.block;
  if (space == Space::generic) space = addresses[std::countr_zero(lanes)] >> 48 == 0 ? Space::global : Space::shared;
  if (space == Space::global) block.count_global(addresses, lanes, bytes);
  if (space == Space::shared) block.count_shared(addresses, lanes, bytes);
}

template <Space kSpace, class T> void load(Warp& w, const Instruction& i, unsigned lanes) {
  const unsigned bytes = static_cast<unsigned>(sizeof(T)) * i.elements;
  std::array<std::uint64_t, 32> addresses;
  each_lane(lanes, [&](int lane) {
    addresses[lane] = address_of(w, i, i.operands[i.elements], lane);
    load_lane<T>(w, i, lane, reach(w, i, lane, kSpace, addresses[lane], bytes, Access::read));
  });
  if (w.block->counting && lanes != 0) count(w, kSpace, addresses, lanes, bytes);
}
template <Space kSpace, class T> void store(Warp& w, const Instruction& i, unsigned lanes) {
  const unsigned bytes = static_cast<unsigned>(sizeof(T)) * i.elements;
  std::array<std::uint64_t, 32> addresses;
  each_lane(lanes, [&](int lane) {
    addresses[lane] = address_of(w, i, i.operands[0], lane);
    store_lane<T>(w, i, lane, reach(w, i, lane, kSpace, addresses[lane], bytes, Access::write));
  });
  if (w.block->counting && lanes != 0) count(w, kSpace, addresses, lanes, bytes);
}

template <Space kSpace> Handler handler(bool is_store, bool is_signed, unsigned bytes) {
  if (is_store) {
    switch (bytes) {
      case 1: return store<kSpace, std::uint8_t>;
      case 2: return store<kSpace, std::uint16_t>;
      case 4: return store<kSpace, std::uint32_t>;
      default: return store<kSpace, std::uint64_t>;
    }
  }
  switch (bytes) {
    case 1: return is_signed ? load<kSpace, std::int8_t> : load<kSpace, std::uint8_t>;
    case 2: return is_signed ? load<kSpace, std::int16_t> : load<kSpace, std::uint16_t>;
    case 4: return is_signed ? load<kSpace, std::int32_t> : load<kSpace, std::uint32_t>;
    default: return load<kSpace, std::uint64_t>;
  }
}
Handler handler(Space space, bool is_store, bool is_signed, unsigned bytes) {
  switch (space) {
    case Space::generic: return handler<Space::generic>(is_store, is_signed, bytes);
    case Space::global: return handler<Space::global>(is_store, is_signed, bytes);
    case Space::shared: return handler<Space::shared>(is_store, is_signed, bytes);
    case Space::local: return handler<Space::local>(is_store, is_signed, bytes);
    case Space::param: return is_store ? nullptr : handler<Space::param>(false, is_signed, bytes);
  }
  return nullptr;
}

/// What changes neither the result nor what may be touched.
bool is_hint(std::string_view part) {
  constexpr std::string_view kHints[] = {"nc",
                                         "ca",
                                         "cg",
                                         "cs",
                                         "lu",
                                         "cv",
                                         "wb",
                                         "wt",
                                         "volatile",
                                         "relaxed",
                                         "weak",
                                         "acquire",
                                         "release",
                                         "cta",
                                         "gpu",
                                         "sys",
                                         "L1::no_allocate",
                                         "L1::evict_first",
                                         "L1::evict_last",
                                         "L2::128B",
                                         "L2::64B",
                                         "L2::256B"};
  return std::find(std::begin(kHints), std::end(kHints), part) != std::end(kHints);
}

}  // namespace

bool take_space(std::string_view part, Space& space) {
  constexpr std::pair<std::string_view, Space> kSpaces[] = {{"global", Space::global},      {"shared", Space::shared},
                                                            {"shared::cta", Space::shared}, {"local", Space::local},
                                                            {"param", Space::param},        {"const", Space::global}};
  for (const auto& [name, which] : kSpaces)
    if (name == part) {
      space = which;
      return true;
    }
  return false;
}

std::byte* reach(Warp& w, const Instruction& i, int lane, Space space, std::uint64_t at, unsigned bytes,
                 Access access) {
  if (at % bytes != 0 && (bytes & (bytes - 1)) == 0)
    fail(w, i, lane, "misaligned address", cudaErrorMisalignedAddress,
         std::to_string(bytes) + " bytes at an address that is " + std::to_string(at % bytes) + " past a multiple");
  if (space == Space::generic) {
    const std::uint64_t window = at >> 48 << 48;
    space = window == kSharedWindow ? Space::shared : window == kLocalWindow ? Space::local : Space::global;
    if (space != Space::global) at -= window;
  }
  Block& block = *w.block;
  switch (space) {
    case Space::shared: return reach_shared(w, i, lane, at, bytes, access);
    case Space::local: {
      const std::size_t size = block.kernel->local_bytes;
      return reach_bytes(w, i, lane, w.local.data() + static_cast<std::size_t>(lane) * size, size, at, bytes,
                         "the thread's local memory");
    }
    case Space::param:
      return reach_bytes(w, i, lane, block.parameters.data(), block.parameters.size(), at, bytes, "the parameters");
    default:
      if (const char* wrong = block.global.check(at, bytes); wrong != nullptr)
        fail(w, i, lane, "illegal address", cudaErrorIllegalAddress, describe(reinterpret_cast<void*>(at)) + wrong);
      return reinterpret_cast<std::byte*>(at);
  }
}

bool decode_memory(Decoder& d) {
  const Parsed& p = d.parsed();
  const bool is_store = p.base() == "st";
  if ((!is_store && p.base() != "ld" && p.base() != "ldu") || p.parts.size() < 2) return false;
  Space space = Space::generic;
  Instruction& made = d.made();
  for (std::size_t part = 1; part + 1 < p.parts.size(); ++part) {
    if (p.parts[part] == "v2" || p.parts[part] == "v4") made.elements = p.parts[part] == "v2" ? 2 : 4;
    else if (!take_space(p.parts[part], space) && !is_hint(p.parts[part])) return false;
  }
  const std::size_t values = is_store ? 1 : 0;
  if (p.fields.size() != 2 || p.fields[values].size() != made.elements) return false;
  made.run = handler(space, is_store, p.type().front() == 's', type_bytes(p.type()));
  if (is_store) d.add_address(0);
  d.add_field(values, Decoder::kAnyWidth);
  if (!is_store) d.add_address(1);
  return made.run != nullptr;
}

void Block::count_global(const std::array<std::uint64_t, 32>& addresses, unsigned lanes, unsigned bytes) {
  std::array<std::uint64_t, 64> sectors;
  std::size_t n = 0;
  each_lane(lanes, [&](int lane) {
    sectors[n++] = addresses[lane] / 32;
    if ((addresses[lane] + bytes - 1) / 32 != sectors[n - 1]) sectors[n++] = (addresses[lane] + bytes - 1) / 32;
    counts.global_bytes += bytes;
  });
  std::sort(sectors.begin(), sectors.begin() + static_cast<std::ptrdiff_t>(n));
  counts.sectors += static_cast<std::uint64_t>(
      std::unique(sectors.begin(), sectors.begin() + static_cast<std::ptrdiff_t>(n)) - sectors.begin());
  ++counts.global_requests;
}

// A pass takes 32 lanes of 4 bytes, 16 of 8 or 8 of 16; lanes that want different words of one bank wait for another.
void Block::count_shared(const std::array<std::uint64_t, 32>& addresses, unsigned lanes, unsigned bytes) {
  const unsigned together = bytes <= 4 ? 32 : 128 / bytes;
  for (unsigned first = 0; first < 32; first += together) {
    std::array<std::vector<std::uint64_t>, 32> words;
    std::size_t passes = 0;
    for (unsigned lane = first; lane < first + together; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      for (std::uint64_t word = addresses[lane] / 4; word <= (addresses[lane] + bytes - 1) / 4; ++word) {
        auto& bank = words[word % 32];
        if (std::find(bank.begin(), bank.end(), word) == bank.end()) bank.push_back(word);
        passes = std::max(passes, bank.size());
      }
    }
    counts.shared_passes += passes;
    counts.least_passes += passes > 0;
  }
  ++counts.shared_requests;
}

}  // namespace cusim::ptx
