// kernels/attention/decode_int8_cuda.cu: decode attention over slots of int8.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

template void run_teams<Level<DType::i8>>(const DecodeArgs&, int, CudaStream&);

}  // namespace weft::kernels::cuda::decode
