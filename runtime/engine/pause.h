// runtime/engine/pause.h: what is done between two sweeps of a block, when nothing is on its way.
#pragma once

#include <cstddef>
#include <span>

#include "runtime/engine/sequence.h"

namespace weft::runtime {

/// Called by Executor::run(), never by two threads at once.
class Pause {
 public:
  virtual ~Pause() = default;

  /// Whether the block is to be saved before the next sweep. On the device lane's thread.
  virtual bool due() = 0;
  /// Saves what is in flight. On run()'s thread, as restore() is. Throws only what reading the KV cache throws.
  virtual void save(std::span<const Sequence> block) = 0;
  /// Brings the KV of these places' sequences, which have begun, into the block's buffers. One whose KV is lost is put
  /// back to its prompt. `fresh`: nothing of the block has been computed.
  virtual void restore(std::span<Sequence> block, std::span<const std::size_t> places, bool fresh) = 0;
};

}  // namespace weft::runtime
