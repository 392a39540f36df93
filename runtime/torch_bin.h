// runtime/torch_bin.h: the restricted reader of one PyTorch checkpoint file, as torch.save() of a state_dict writes it:
// a zip archive, or before PyTorch 1.6 five pickles and the storages.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint.h"

namespace weft::runtime {

struct TorchFile {
  std::vector<TensorInfo> tensors;  ///< of file 0, each inside the file; tied ones share their bytes
  std::vector<std::string> notes;   ///< what is no reason to stop, one line each
};

/// Executes nothing of the file. Throws CheckpointError with the file and the place in it. Reads no tensor's bytes, so
/// that their checksums are not verified; data.pkl's is.
TorchFile read_torch_bin(const InputFile& file);

}  // namespace weft::runtime
