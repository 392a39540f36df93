// kernels/attention/decode_cold_cuda.cu: decode attention over slots of int8, some of which are cold.
#include "kernels/attention/decode_split_cuda.h"

namespace weft::kernels::cuda::decode {

/// Rows that are read number by number: in one kernel they would take more registers than a thread has.
using Odd = ColdTiles<Team<Level<DType::i8>, 1, 32, 8>>;
template <> void run_layout<Odd, 1>(const DecodeArgs& args, int rows, CudaStream& stream) {
  run_split<Odd, 1>(args, rows, stream);
}

template void run_teams<ColdLevels>(const DecodeArgs&, int, CudaStream&);

}  // namespace weft::kernels::cuda::decode
