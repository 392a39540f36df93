// kernels/attention/decode_int4_cuda.cu: decode attention over slots of int4.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

template void run_teams<Level<DType::i4>>(const DecodeArgs&, int, CudaStream&);

}  // namespace weft::kernels::cuda::decode
