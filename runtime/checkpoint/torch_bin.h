// runtime/checkpoint/torch_bin.h: the restricted reader of one PyTorch checkpoint file, as torch.save() of a state_dict
// writes it: a zip archive, or before PyTorch 1.6 five pickles and the storages.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

struct TorchFile {
  std::vector<TensorInfo> tensors;  ///< of file 0, each inside the file; tied ones share their bytes
  std::vector<Checksum> checksums;  ///< of the storages that hold tensors; none before PyTorch 1.6
  std::vector<std::string> notes;   ///< what is no reason to stop, one line each
};

/// Executes nothing of the file. Throws CheckpointError with the file and the place in it. Verifies the checksum of
/// data.pkl, and reads no tensor's bytes.
TorchFile read_torch_bin(const InputFile& file);

}  // namespace weft::runtime
