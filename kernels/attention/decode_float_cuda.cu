// kernels/attention/decode_float_cuda.cu: decode attention over slots of fp32, fp16 and bf16.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

template void run_teams<float>(const DecodeArgs&, int, CudaStream&);
template void run_teams<__half>(const DecodeArgs&, int, CudaStream&);
template void run_teams<__nv_bfloat16>(const DecodeArgs&, int, CudaStream&);

}  // namespace weft::kernels::cuda::decode
