// runtime/measure/measure_device.h: what a device and its link can do at best, and what the ops reach of it.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "kernels/backend.h"

namespace weft::runtime {

/// Over how much and how long each figure is taken. The whole takes about 300 times `seconds`.
struct DeviceSizes {
  std::size_t bytes = std::size_t{1} << 30;  ///< of copies, reads and KV caches: no cache of a GPU holds so much
  double seconds = 0.05;                     ///< of one repetition at least, so that launches do not count
  int repetitions = 7;
  struct Product {
    int rows, in, out;
  };
  /// A prefill chunk, and decode sweeps of the shapes of OPT-30B and OPT-6.7B.
  std::vector<Product> products{{4096, 4096, 4096}, {8192, 7168, 7168}, {256, 7168, 7168}, {256, 4096, 16384}};
  struct Cache {
    int slots, head_dim;
  };
  std::vector<Cache> caches{{204, 128}, {410, 128}, {1024, 128}, {204, 64}, {410, 64}, {1024, 64}};
  std::vector<int> prompts{512, 2048};
  int heads = 32, prefill_tokens = 8192;  ///< of the attention: tokens of one call, in whole prompts
  int sampled_rows = 256, vocab = 50272;
};

/// Each figure has the median, the least and the most of its repetitions, after a warm-up. The host's clock times
/// events around as many launches as fill `seconds`. Nothing else should use the device at the same time. Throws
/// CapacityError, DeviceError.
///   host_to_device, device_to_host   bytes/s of pinned memory, alone
///   both_directions                  the same of both at once, on a stream each
///   copy, read                       bytes/s of device memory: read and written; read alone
///   linear                           flop/s of Linear per type and "rows x in x out", over weights no cache holds
///   decode_attention                 bytes/s of H2O steps that evict, per "slots of head_dim", fp16: keys and values
///                                    read once, and of each slot 12 bytes of position and score; of_read: over `read`
///   prefill_attention                flop/s over the causal half, per prompt; with_column_sums: of both ops together
///   sample                           seconds of one call, greedy, and with temperature, top-k and top-p
nlohmann::ordered_json measure_device(kernels::Backend& backend, const DeviceSizes& sizes = {});

}  // namespace weft::runtime
