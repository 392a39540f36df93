// runtime/job/kv_rows.h: the KV of single sequences, out of the buffers of a run and back into those of another.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "offload/kv_layout.h"
#include "policy/footprint.h"
#include "runtime/engine/storage.h"

namespace weft::runtime {

/// A record is what one run of a layer's heads keeps for one sequence: each part of the buffer, of each head as many
/// slots as are in use, in their places, because sums over slots have the slots' order. It does not depend on the block
/// or on the number of slots that the buffer has. Only between two sweeps, when no op of a schedule runs; one thread.
class KvRows {
 public:
  /// References must outlive it.
  KvRows(const Storage& storage, const policy::Footprint& footprint, kernels::Backend& backend);

  /// What records must share: the same words mean that a record of one run fits another one under the same retention.
  static std::string kind(const policy::Footprint& footprint);
  /// Which of a layer's runs of heads (policy::Footprint::kv_shapes) a record is of.
  struct Run {
    int layer = 0, run = 0;
  };
  static std::vector<Run> runs(const policy::Footprint& footprint);
  std::size_t record_bytes(Run run, std::size_t slots) const;

  /// The record of a sequence; its size is record_bytes() of the slots that are returned. It is there until the next
  /// call. Throws offload::LostPage if the spill file has lost it.
  std::span<const std::byte> read(Run run, int batch, std::int64_t sequence, std::uint32_t& slots);

  /// Between these two, write() puts records into one buffer. `fresh`: nothing in it is in use. Throws IoError.
  void open(int layer, int batch, bool fresh);
  void close();
  /// False if the record is of another size, needs more slots than there are or has no free slot; then nothing is
  /// written.
  bool write(int run, std::int64_t sequence, std::uint32_t slots, std::span<const std::byte> record);

 private:
  void copy_all(std::int64_t sequence, bool to_buffer);
  void select(int layer, int run);

  const offload::BufferStore& buffers_;
  const policy::Footprint& footprint_;
  kernels::Backend& backend_;
  std::byte* const window_;                   // host memory of a buffer's size that is free between sweeps
  std::unique_ptr<kernels::Memory> staging_;  // of one sequence in any layer, host memory
  std::unique_ptr<kernels::Stream> stream_;
  std::unique_ptr<kernels::Event> copied_;
  std::vector<std::byte> record_;
  offload::BufferId open_{};
  int layer_ = 0;                 // of the open buffer
  offload::KvShape shape_, one_;  // of the run that is read or written; the same for a single sequence
  std::size_t begin_ = 0;         // of that run in its buffer
  std::byte* at_ = nullptr;       // of the open buffer: its home, or the window
};

}  // namespace weft::runtime
