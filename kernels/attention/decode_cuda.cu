// kernels/attention/decode_cuda.cu: one decode step over KV slots: attention, scores and the choice of the victim.
//
// Memory bandwidth is the cost: keys and values are read once each, 16 bytes a lane, by teams of lanes that take a slot
// each. If the probabilities of a row and KV head fit shared memory and there are enough blocks to fill the device, one
// kernel does it all, with a thread block for each row and KV head. Otherwise the slots are split over thread blocks,
// and the logits go through memory.
#include <vector>

#include "kernels/attention/decode_split_cuda.h"
#include "kernels/attention/decode_tensor_cuda.h"

namespace weft::kernels {
namespace cuda::decode {
namespace {

/// Grid: KV heads, rows.
__global__ void __launch_bounds__(kThreads) decode_sum(DecodeArgs a, Split split) {
  const int width = a.group * a.slots.head_dim;
  const std::int64_t tile = std::int64_t{blockIdx.y} * a.slots.kv_heads + blockIdx.x;
  const std::int64_t tiles = std::int64_t{split.rows} * a.slots.kv_heads;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0;
    for (int s = 0; s < split.splits; ++s) sum += split.sums[(s * tiles + tile) * width + i];
    a.out[(a.first_row + blockIdx.y) * a.out_stride + std::int64_t{blockIdx.x} * width + i] = sum;
  }
}

/// Adds the mean values to the outputs (KvSlots::mean). Grid: KV heads, rows.
__global__ void __launch_bounds__(kThreads) add_mean(DecodeArgs a) {
  const int dim = a.slots.head_dim, width = a.group * dim;
  const Row row = a.rows[blockIdx.y];
  const float* const mean = a.slots.mean + (std::int64_t{row.sequence} * a.slots.kv_heads + blockIdx.x) * 2 * dim + dim;
  float* const out = a.out + blockIdx.y * a.out_stride + std::int64_t{blockIdx.x} * width;
  for (int i = threadIdx.x; i < width; i += kThreads) out[i] += mean[i % dim];
}

/// `unit` is the bytes of one element of the slots.
DecodeArgs args_of(const DecodeAttention& op, CudaStream& stream, std::int64_t unit) {
  std::vector<Row> rows;
  for (std::size_t r = 0; r < op.keep.size(); ++r) rows.push_back({op.sequence[r], op.position[r], op.keep[r]});
  return {.q = static_cast<const float*>(op.q.data),
          .k = static_cast<const float*>(op.k.data),
          .v = static_cast<const float*>(op.v.data),
          .q_stride = op.q.stride,
          .k_stride = op.k.stride,
          .v_stride = op.v.stride,
          .rows = stream.upload(std::span<const Row>(rows)),
          .first_row = 0,
          .slots = op.slots,
          .home = op.home,
          .k_row = static_cast<std::int64_t>(op.slots.key_bytes()) / unit,
          .v_row = static_cast<std::int64_t>(op.slots.value_bytes()) / unit,
          .group = op.heads / op.slots.kv_heads,
          .scale = op.scale,
          .decay = op.decay,
          .scoring = op.scoring,
          .statistic = op.statistic,
          .seed = op.seed,
          .out = static_cast<float*>(op.out.data),
          .out_stride = op.out.stride,
          .probabilities = static_cast<const float*>(op.probabilities.data),
          .probabilities_stride = op.probabilities.stride,
          .evicted = static_cast<std::int32_t*>(op.evicted.data),
          .evicted_stride = op.evicted.stride,
          .cap = op.cap,
          .sink_logits = op.sink_logits.empty() ? nullptr : stream.upload(op.sink_logits)};
}

}  // namespace

void sum_values(const DecodeArgs& a, const Split& split, dim3 grid, CudaStream& stream) {
  launch(decode_sum, grid, kThreads, 0, stream, a, split);
}

extern template void run_teams<float>(const DecodeArgs&, int, CudaStream&);  // decode_float_cuda.cu
extern template void run_teams<__half>(const DecodeArgs&, int, CudaStream&);
extern template void run_teams<__nv_bfloat16>(const DecodeArgs&, int, CudaStream&);
extern template void run_teams<Level<DType::i8>>(const DecodeArgs&, int, CudaStream&);  // decode_int8_cuda.cu
extern template void run_teams<Level<DType::i4>>(const DecodeArgs&, int, CudaStream&);  // decode_int4_cuda.cu
extern template void run_teams<MixedLevels>(const DecodeArgs&, int, CudaStream&);       // decode_mixed_cuda.cu
extern template void run_teams<ColdLevels>(const DecodeArgs&, int, CudaStream&);        // decode_cold_cuda.cu
void run_split_slots(const DecodeArgs&, int, CudaStream&);                              // decode_read_cuda.cu

}  // namespace cuda::decode

void CudaOps::run(const DecodeAttention& op, Stream& any) const {
  using namespace cuda;
  using namespace cuda::decode;
  check(op);
  auto& stream = static_cast<CudaStream&>(any);
  const int rows = static_cast<int>(op.q.rows);
  if (rows == 0) return;
  const DecodeArgs args = args_of(op, stream, is_quantised(op.slots.dtype) ? 1 : std::int64_t(size_of(op.slots.dtype)));
  const auto attend = [&] {
    if (run_grouped(args, op.slots.dtype, rows, stream)) return;
    if (op.slots.split) return run_split_slots(args, rows, stream);
    if (op.slots.cold > 0) return run_teams<ColdLevels>(args, rows, stream);
    with_slot_type(op.slots, [&]<class T>() { run_teams<T>(args, rows, stream); });
  };
  attend();
  if (op.slots.mean) launch(add_mean, dim3(op.slots.kv_heads, rows), kThreads, 0, stream, args);
}

}  // namespace weft::kernels
