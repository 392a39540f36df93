// kernels/attention/decode_grouped_cuda.cu: decode attention of query heads that share a KV head, on tensor cores.
#include "kernels/attention/decode_split_cuda.h"
#include "kernels/attention/decode_tensor_cuda.h"

namespace weft::kernels::cuda::decode {

template <class T, int kDim, int kHeads>
constexpr int kBlocks<GroupTiles<T, kDim>, kHeads> = kHeads > kQuad ? 3  // with one more ptxas would spill
                                                     : kDim > 64    ? 4
                                                                    : 5;

namespace {

template <class T, int kDim, int kHeads> bool run(const DecodeArgs& args, int rows, CudaStream& stream) {
  using Layout = GroupTiles<T, kDim>;
  static const bool compiled = multiplies<T>(decode_fused<Layout, kHeads>);
  if (compiled) run_layout<Layout, kHeads>(args, rows, stream);
  return compiled;
}

template <class T, int kHeads> bool run(const DecodeArgs& args, int rows, CudaStream& stream) {
  if (args.slots.head_dim == 64) return run<T, 64, kHeads>(args, rows, stream);
  if (args.slots.head_dim == 128) return run<T, 128, kHeads>(args, rows, stream);
  return false;
}

template <class T> bool run(const DecodeArgs& args, int rows, CudaStream& stream) {
  if (args.group % (2 * kQuad) == 0) return run<T, 2 * kQuad>(args, rows, stream);
  if (args.group % kQuad == 0) return run<T, kQuad>(args, rows, stream);
  return false;
}

}  // namespace

bool run_grouped(const DecodeArgs& args, DType dtype, int rows, CudaStream& stream) {
  if (dtype == DType::f16) return run<__half>(args, rows, stream);
  if (dtype == DType::bf16) return run<__nv_bfloat16>(args, rows, stream);
  return false;
}

}  // namespace weft::kernels::cuda::decode
