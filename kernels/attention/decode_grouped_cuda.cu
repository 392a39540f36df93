// kernels/attention/decode_grouped_cuda.cu: see decode_grouped_cuda.h. One kernel for each row and KV head does the
// whole step.
#include "kernels/attention/decode_grouped_cuda.h"

#include "kernels/attention/decode_tensor_cuda.h"

namespace weft::kernels::cuda::decode {
namespace {

constexpr std::size_t kMostShared = 40960;  // bytes; every card has room for several times as much

/// Thread blocks that fit a multiprocessor at once. ptxas derives from it how many registers it may use.
template <int kDim, int kQuads> constexpr int kBlocks = kQuads > 1 ? 4 : kDim > 64 ? 5 : 7;

/// Grid: KV heads, rows.
template <class T, int kDim, int kQuads>
__global__ void __launch_bounds__(kThreads, (kBlocks<kDim, kQuads>)) decode_grouped(DecodeArgs a) {
  if constexpr (kMultiplies<T>)
    fused_step<T>(
        a,
        [&](const Tile<T>& t, const std::int32_t* position, float* p) {
          find_group_logits<T, kDim, kQuads>(a, t, position, p);
        },
        [&](const Tile<T>& t, const std::int32_t* position, const float* p, float* sums, float* out) {
          weigh_group_values<T, kDim, kQuads>(a, t, position, p, sums, out);
        });
}

template <class T, int kDim, int kQuads> bool run(const DecodeArgs& args, int rows, CudaStream& stream) {
  static const bool compiled = multiplies<T>(decode_grouped<T, kDim, kQuads>);
  const std::size_t floats = slot_floats(args.group, args.slots.slots) + kWarps * kQuads * kQuad * kDim;
  if (!compiled || floats * sizeof(float) > kMostShared) return false;
  launch(decode_grouped<T, kDim, kQuads>, dim3(args.slots.kv_heads, rows), kThreads, floats * sizeof(float), stream,
         args);
  return true;
}

template <class T> bool run(const DecodeArgs& args, int rows, CudaStream& stream) {
  const int dim = args.slots.head_dim;
  if (args.group == kQuad) {
    if (dim == 64) return run<T, 64, 1>(args, rows, stream);
    if (dim == 128) return run<T, 128, 1>(args, rows, stream);
  } else if (args.group == 2 * kQuad) {
    if (dim == 64) return run<T, 64, 2>(args, rows, stream);
    if (dim == 128) return run<T, 128, 2>(args, rows, stream);
  }
  return false;
}

}  // namespace

bool run_grouped(const DecodeArgs& args, DType dtype, int rows, CudaStream& stream) {
  if (!stream.fill(rows * args.slots.kv_heads)) return false;  // slots are better split over blocks
  if (dtype == DType::f16) return run<__half>(args, rows, stream);
  if (dtype == DType::bf16) return run<__nv_bfloat16>(args, rows, stream);
  return false;
}

}  // namespace weft::kernels::cuda::decode
