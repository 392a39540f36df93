// kernels/device_ceiling.h: the memory of a GPU at its best, for `weft bench --lanes` beside what the ops reach of it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"

namespace weft::kernels {

/// Queues a kernel that reads `bytes` of device memory once and does nothing else: what decode attention could reach.
/// `from` is 16-byte aligned, `bytes` a multiple of 16. `unused`: one number of device memory, there to keep the
/// compiler from dropping the reads. A stream of make_cuda_backend(); throws DeviceError in a build without CUDA.
void read_device(const void* from, std::size_t bytes, std::uint32_t* unused, Stream& stream);

}  // namespace weft::kernels
