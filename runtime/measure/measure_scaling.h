// runtime/measure/measure_scaling.h: measures what a second thread gains each op of the host, for `weft bench --lanes`.
#pragma once

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

namespace weft::runtime {

/// The operands' sizes and the times. Both sets of operands together take about 10 * `kv` bytes.
struct ScalingSizes {
  int rows = 256, width = 2048, vocab = 32000;
  int heads = 16, prompt = 512, slots = 205;
  std::size_t kv = std::size_t{64} << 20;  ///< bytes of the slots that decode steps read, and of the weights
  double seconds = 0.01;                   ///< seconds of one repetition, at least
  int repetitions = 15;
};

/// Times every op on one thread and on two, by turns, and takes the best repetition of each, so that other work on the
/// machine spoils little. Of each op: seconds of a call on one thread and on two, and the first over the second
/// ("times"); "of_memory_read": the bytes that two threads move, of those that they read of memory in the same time.
/// Near 1, memory bounds the op and not the threads. Needs two cores. Throws CapacityError.
nlohmann::ordered_json measure_scaling(const ScalingSizes& sizes);

}  // namespace weft::runtime
