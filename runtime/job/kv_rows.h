// runtime/job/kv_rows.h: copies the KV of single sequences out of a run's buffers and into those of another run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "offload/kv_layout.h"
#include "policy/layout/footprint.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {

/// Reads and writes records. A record is what one run of a layer's heads keeps for one sequence: each part of the
/// buffer, and in it the slots of each head that are in use. The slots stay in their places, because sums over slots
/// have the slots' order. A record does not depend on the block or on the number of slots that the buffer has. For one
/// thread, between two sweeps, when no op of a schedule runs.
class SlotRecords {
 public:
  /// References must outlive it.
  SlotRecords(const Storage& storage, const policy::Footprint& footprint, kernels::Backend& backend);

  /// The kind of a run's records. A record fits another run of the same kind under the same retention.
  static std::string kind(const policy::Footprint& footprint);
  /// The run of heads (policy::Footprint::kv_shapes), and its layer, that a record belongs to.
  struct Run {
    int layer = 0, run = 0;
  };
  static std::vector<Run> runs(const policy::Footprint& footprint);
  std::size_t record_bytes(Run run, offload::KvShape::Slots slots) const;
  /// The slots of a record of so many bytes that has `hot` slots which are not cold; nothing if there is no such
  /// record.
  std::optional<offload::KvShape::Slots> slots_of(Run run, std::size_t hot, std::uint64_t bytes) const;

  /// Returns the record of a sequence, and its number of slots that are not cold in `hot`, which say how many are cold.
  /// The record is valid until the next call. Throws offload::LostPage if the spill file has lost it.
  std::span<const std::byte> read(Run run, int batch, std::int64_t sequence, std::uint32_t& hot);

  /// Between open() and close(), write() puts records into one buffer. `fresh`: nothing in it is in use. Throws
  /// IoError.
  void open(int layer, int batch, bool fresh);
  void close();
  /// Returns false, and writes nothing, if the record has another size, needs more slots than there are, or has no free
  /// slot.
  bool write(int run, std::int64_t sequence, offload::KvShape::Slots slots, std::span<const std::byte> record);

 private:
  void copy_all(std::int64_t sequence, bool to_buffer);
  void select(int layer, int batch, int run);
  std::byte* place(std::size_t part) const;
  template <class F> void each_piece(offload::KvShape::Slots slots, F f) const;

  const offload::BufferStore& buffers_;
  const policy::Footprint& footprint_;
  kernels::Backend& backend_;
  std::byte* const window_;                   // host memory of a buffer's size that is free between sweeps
  std::unique_ptr<kernels::Memory> staging_;  // host memory for one sequence in any layer
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::Event> copied_;
  std::vector<std::byte> record_;
  offload::BufferId open_{};
  int layer_ = 0, batch_ = 0;        // of the open buffer
  offload::KvShape shape_, one_;     // of the run that is read or written; the same for a single sequence
  std::size_t begin_ = 0;            // where that run begins in its buffer
  offload::KvShape::Parts parts_{};  // of that run in its buffer, without what is lent
  std::byte* lent_ = nullptr;        // where the run that lends it keys and values begins, or null
  std::byte* at_ = nullptr;          // memory of the open buffer: its home, or the window
};

}  // namespace weft::runtime
