// policy/planner/flexgen.h: the time of a run by FlexGen's own arithmetic, to simulate published figures.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "policy/model/model.h"

namespace weft::policy {

/// The machine of FlexGen's cost model (arXiv 2303.06865, experimental/cost_model.py): rates that its authors fitted to
/// runs on it, and assumptions for everything that the model lacks. Read from a file such as t4-flexgen.json.
struct FlexGenMachine {
  std::string name, source;
  /// Fitted.
  double host_to_device = 0;                         ///< bytes/s of weights and hidden states
  double kv_to_host = 0, hidden_to_host = 0;         ///< bytes/s; kv: in prefill, hidden: in prefill and decode
  double prefill_products = 0, decode_products = 0;  ///< flop/s
  double prefill_attention = 0;                      ///< flop/s over all of prompt x prompt: 4 x prompt^2 x width
  double device_attention = 0, host_attention = 0;   ///< bytes/s of KV at 16 bits that a decode sweep reads
  /// Host attention loses these shares of its rate per halving of the batch below 64 and of the hidden size below 4096,
  /// and regains the last one if both are small.
  double small_batch_loss = 0, small_hidden_loss = 0, small_both_gain = 0;
  /// Assumed; the file gives the reasons.
  double device_memory = 0;    ///< bytes/s: a batch's products read the weights at least once
  double unpack_bytes = 0;     ///< bytes of device memory moved for each element that is unpacked from 4 bits
  double unpinned_kv = 0;      ///< bytes/s of host KV to device attention
  double accelerate_link = 0;  ///< bytes/s of weights to the device in Accelerate: unpinned, not overlapped
  double deepspeed_link = 0;   ///< the same in DeepSpeed ZeRO-Inference: pinned, in pieces, overlapped

  /// Throws a UsageError that names the key, the wanted and the found value.
  static FlexGenMachine from_json(const nlohmann::json& json, const std::string& where);
};

/// One run. Accelerate and DeepSpeed run one batch per pass over the weights, with all KV on the device, in 16 bits.
struct FlexGenRun {
  enum class System : std::uint8_t { flexgen, accelerate, deepspeed } system = System::flexgen;
  int gpu_batch_size = 1, num_gpu_batches = 1;
  int prompt = 512, generation = 32;
  double weights_on_device = 1, kv_on_device = 1, activations_on_device = 1;  ///< the rest is in host memory
  bool attention_on_host = false;      ///< whether the host attends the KV that it holds
  int slots = 0;                       ///< KV slots per head; 0: one for every token
  int weight_bits = 16, kv_bits = 16;  ///< 16 or 4
  /// The number of decode sweeps that were timed. They stand for all, so the context is theirs. 0: all were timed. 1:
  /// the context stays at prompt + 1, as with FlexGen's "--debug fewer_batch".
  int timed_steps = 0;

  int block_size() const { return gpu_batch_size * num_gpu_batches; }
  /// Throws UsageError if a value is out of range or the system has no such run. `where` begins the message.
  void require_valid(const std::string& where) const;
};

/// Seconds of one layer in one decode sweep over the whole block.
struct FlexGenLayer {
  double weights = 0;  ///< weights and hidden states to the device
  double kv = 0;       ///< KV to the device, for its attention
  double to_host = 0;  ///< hidden states
  double products = 0, unpacking = 0, device_attention = 0, host_attention = 0;

  double compute() const { return products + unpacking + device_attention + host_attention; }
  /// The term that takes longest.
  const char* bound() const;
};

struct FlexGenTimes {
  double prefill = 0, decode = 0;  ///< seconds of the block; the first token of each sequence belongs to prefill
  double tokens_per_second = 0;    ///< generated tokens over both
  FlexGenLayer layer;              ///< in an average decode sweep; zero if one token is generated
};

/// Per layer, for a block of B sequences:
///   prefill   FlexGen, DeepSpeed: max(to the device, to the host, compute)     Accelerate: their sum
///   decode    FlexGen, Accelerate: weights + max(KV, to the host, compute)     DeepSpeed: max(weights, compute)
/// In decode FlexGen issues a layer's copies with the first batch of the layer before and then waits for the device, so
/// computation does not hide the copies of weights. KV is copied with the batch before, so it does hide those. The
/// embedding and the head add their share to every decode sweep. H2O's evictions add nothing. Throws as require_valid()
/// does.
FlexGenTimes flexgen_times(const ModelSpec& model, const FlexGenMachine& machine, const FlexGenRun& run);

/// The share of a layer's weights that FlexGen's --percent really puts on the device. FlexGen places whole tensors: it
/// lays them end to end, host first, then device, and a tensor goes where its middle falls. For OPT 20 gives 0.083, 10
/// gives 0, 30 gives 0.417. The percentages of device and host sum to 100: there is no disk here.
double flexgen_weights_on_device(const ModelSpec& model, double device_percent);

}  // namespace weft::policy
