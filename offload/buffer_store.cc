// offload/buffer_store.cc
#include "offload/buffer_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/error.h"

namespace weft::offload {
namespace {

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t index_of(Kind kind) { return static_cast<std::size_t>(kind); }

}  // namespace

std::size_t BufferStore::arena(Tier tier, Use use) { return tier == Tier::device ? 0 : use == Use::in_place ? 1 : 2; }

BufferId BufferStore::add(Kind kind, std::size_t bytes, Tier home, std::vector<FilePart> parts, Use use) {
  for (const FilePart& part : parts)
    if (part.offset > bytes || part.extent.bytes > bytes - part.offset)
      throw UsageError("buffer store: a file part of " + std::to_string(part.extent.bytes) + " bytes at " +
                       std::to_string(part.offset) + " leaves its buffer of " + std::to_string(bytes) + " bytes");
  Entry entry{kind, home, use, bytes, 0, std::move(parts)};
  if (home != Tier::disk) entry.offset = memory_[arena(home, use)].take(round_up(bytes, kPage));
  else if (entry.parts.empty()) entry.offset = spill_.take(round_up(bytes, kSpillPage), kSpillPage);
  else file_bytes_ += bytes;
  by_kind_[index_of(home)][index_of(kind)] += bytes;
  buffers_.push_back(std::move(entry));
  return static_cast<BufferId>(buffers_.size() - 1);
}

WindowId BufferStore::add_window(Tier tier, int slots, std::size_t slot_bytes, Use use) {
  if (tier == Tier::disk || slots < 0)
    throw UsageError("buffer store: a window of " + std::to_string(slots) + " slots on " + name_of(tier) +
                     "; wanted 0 or more on device or host");
  Window window{tier, use, slots, round_up(slot_bytes, kPage), 0};
  const std::size_t bytes = static_cast<std::size_t>(slots) * window.stride;
  window.offset = memory_[arena(tier, use)].take(bytes);
  in_windows_[index_of(tier)] += bytes;
  windows_.push_back(window);
  return static_cast<WindowId>(windows_.size() - 1);
}

std::size_t BufferStore::bytes(Tier tier) const {
  switch (tier) {
    case Tier::device: return memory_[0].peak();
    case Tier::host: return memory_[1].peak() + memory_[2].peak();
    case Tier::disk: break;
  }
  return spill_.peak() + file_bytes_;
}
std::size_t BufferStore::bytes(Tier tier, Kind kind) const { return by_kind_[index_of(tier)][index_of(kind)]; }
std::size_t BufferStore::window_bytes(Tier tier) const { return in_windows_[index_of(tier)]; }

void BufferStore::allocate(kernels::Backend& backend, DiskStore& disk, const std::string& spill_directory) {
  disk_ = &disk;
  // The disk comes first because its refusal is quick.
  if (spill_.peak() > 0) spill_file_ = disk.create_spill(spill_directory, spill_.peak());
  for (std::size_t i = 0; i < memory_.size(); ++i)
    if (const std::size_t bytes = memory_[i].peak())
      allocated_[i] = i == arena(Tier::device, {}) ? backend.allocate_device(bytes) : backend.allocate_host(bytes);
}

std::vector<std::span<std::byte>> BufferStore::memory() const {
  std::vector<std::span<std::byte>> memory;
  for (const auto& part : allocated_)
    if (part) memory.emplace_back(part->data(), part->bytes());
  return memory;
}

std::byte* BufferStore::base(Tier tier, Use use) const {
  const auto& memory = allocated_[arena(tier, use)];
  return memory ? memory->data() : nullptr;
}

std::byte* BufferStore::home_data(BufferId buffer) const {
  const Entry& e = entry(buffer);
  return e.home == Tier::disk ? nullptr : base(e.home, e.use) + e.offset;
}

std::byte* BufferStore::slot(WindowId window, int index) const {
  const Window& w = windows_[static_cast<std::size_t>(window)];
  return base(w.tier, w.use) + w.offset + static_cast<std::size_t>(index) * w.stride;
}

void BufferStore::read_from_disk(BufferId buffer, std::byte* to, std::size_t bytes) const {
  const Entry& e = entry(buffer);
  if (!e.parts.empty()) {
    const PartRead all{0, bytes, to};
    read_parts(buffer, {&all, 1});
  } else if (e.home == Tier::disk) {
    disk_->read({spill_file_, e.offset, spilled(e, bytes)}, to);
  } else {
    throw UsageError(std::string("buffer store: a buffer on ") + name_of(e.home) +
                     " without file parts is not on disk");
  }
}

void BufferStore::write_to_disk(BufferId buffer, const std::byte* from, std::size_t bytes) const {
  const Entry& e = entry(buffer);
  if (e.home != Tier::disk || !e.parts.empty())
    throw UsageError(std::string("buffer store: a buffer on ") + name_of(e.home) +
                     (e.parts.empty() ? "" : " with file parts") + " has no place in the spill file");
  disk_->write({spill_file_, e.offset, spilled(e, bytes)}, from);
}

/// Rounds `bytes` up to whole spill pages, or to the whole buffer, so that a page is never read shorter than it was
/// written.
std::size_t BufferStore::spilled(const Entry& e, std::size_t bytes) {
  if (bytes > e.bytes)
    throw UsageError("buffer store: " + std::to_string(bytes) + " bytes of a buffer of " + std::to_string(e.bytes));
  return std::min<std::size_t>(round_up(bytes, kSpillPage), e.bytes);
}

void BufferStore::read_parts(BufferId buffer, std::span<const PartRead> parts) const {
  const Entry& e = entry(buffer);
  for (const PartRead& part : parts)
    if (part.offset > e.bytes || part.bytes > e.bytes - part.offset)
      throw UsageError("buffer store: " + std::to_string(part.bytes) + " bytes at " + std::to_string(part.offset) +
                       " leave a buffer of " + std::to_string(e.bytes));
  if (e.parts.empty()) {
    read_spilled(e, parts);
    return;
  }
  std::vector<ReadRequest> requests;
  requests.reserve(parts.size());
  for (const PartRead& part : parts)
    for (const FilePart& from : e.parts) {
      const std::size_t begin = std::max(part.offset, from.offset);
      const std::size_t end = std::min(part.offset + part.bytes, from.offset + from.extent.bytes);
      if (begin < end)
        requests.push_back({{from.extent.file, from.extent.offset + (begin - from.offset), end - begin},
                            part.to + (begin - part.offset)});
    }
  disk_->read(requests);
}

/// Only whole pages can be checked. Those that a range covers are read to where they belong; of the others each is read
/// once, and what the ranges want is copied out of it.
void BufferStore::read_spilled(const Entry& e, std::span<const PartRead> parts) const {
  if (e.home != Tier::disk)
    throw UsageError(std::string("buffer store: a buffer on ") + name_of(e.home) + " is not on disk");
  constexpr std::size_t kUnit = kSpillPage, kPages = 64;
  struct Fragment {
    std::size_t page, offset, bytes;
    std::byte* to;
  };
  std::vector<Fragment> fragments;
  std::vector<ReadRequest> requests;
  for (const PartRead& part : parts)
    for (std::size_t at = part.offset, end = part.offset + part.bytes; at < end;) {
      std::byte* const to = part.to + (at - part.offset);
      std::size_t bytes = (end - at) / kUnit * kUnit;
      if (at % kUnit == 0 && bytes > 0) {
        requests.push_back({{spill_file_, e.offset + at, bytes}, to});
      } else {
        bytes = std::min(end - at, kUnit - at % kUnit);
        fragments.push_back({at / kUnit, at % kUnit, bytes, to});
      }
      at += bytes;
    }
  if (!requests.empty()) disk_->read(requests);
  if (fragments.empty()) return;

  std::vector<std::byte> pages(kPages * kUnit);
  for (std::size_t first = 0, last = 0; first < fragments.size(); first = last) {
    requests.clear();
    std::vector<const std::byte*> source;  // one per fragment in [first, last)
    for (; last < fragments.size(); ++last) {
      const std::size_t page = fragments[last].page;
      if (last == first || page != fragments[last - 1].page) {
        if (requests.size() == kPages) break;
        requests.push_back({{spill_file_, e.offset + page * kUnit, std::min(kUnit, e.bytes - page * kUnit)},
                            pages.data() + requests.size() * kUnit});
      }
      source.push_back(requests.back().to + fragments[last].offset);
    }
    disk_->read(requests);
    for (std::size_t i = first; i < last; ++i) std::memcpy(fragments[i].to, source[i - first], fragments[i].bytes);
  }
}

}  // namespace weft::offload
