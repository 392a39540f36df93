// kernels/attention/decode_mixed_cuda.cu: decode attention over slots of int4 with keys of int8.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

template void run_teams<MixedLevels>(const DecodeArgs&, int, CudaStream&);

}  // namespace weft::kernels::cuda::decode
