// runtime/measure/measure_device.h: measures the ceilings of a device and its link, and how close the ops come to them.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kernels/backend.h"

namespace weft::runtime {

/// The amount of data and the time that each figure takes. All figures take about 300 times `seconds`.
struct DeviceSizes {
  std::size_t bytes = std::size_t{1} << 30;  ///< size of copies, reads and KV caches; no GPU's cache holds as much
  double seconds = 0.05;                     ///< least time of one repetition, so that launches do not count
  int repetitions = 7;
  struct Product {
    int rows, in, out;
  };
  /// A prefill chunk, and decode sweeps in the shapes of OPT-30B and OPT-6.7B.
  std::vector<Product> products{{4096, 4096, 4096}, {8192, 7168, 7168}, {256, 7168, 7168}, {256, 4096, 16384}};
  struct Cache {
    int slots, head_dim;
  };
  std::vector<Cache> caches{{204, 128}, {410, 128}, {1024, 128}, {204, 64}, {410, 64}, {1024, 64}};
  std::vector<int> prompts{512, 2048};
  int heads = 32, prefill_tokens = 8192;  ///< attention; prefill_tokens: of one call, in whole prompts
  int sampled_rows = 256, vocab = 50272;
};

/// Each figure has the median, the least and the most of its repetitions, after a warm-up. The host's clock times
/// events around as many launches as fill `seconds`. Nothing else should use the device at the same time. Throws
/// CapacityError, DeviceError.
///   host_to_device, device_to_host   bytes/s of pinned memory, alone
///   both_directions                  the same for both at once, each on its own stream
///   copy, read                       bytes/s of device memory: read and written; read alone
///   linear                           flop/s of Linear per type and "rows x in x out", over weights that no cache holds
///   decode_attention                 bytes/s of H2O decode steps that evict, per "slots of head_dim", fp16. It counts
///                                    keys and values read once, and 12 bytes of position and score per slot;
///                                    of_read: as a share of `read`
///   prefill_attention                flop/s over the causal half, per prompt; with_column_sums: both ops together
///   sample                           seconds of one call, greedy, and with temperature, top-k and top-p
nlohmann::ordered_json measure_device(kernels::Backend& backend, const DeviceSizes& sizes = {});

}  // namespace weft::runtime
