// runtime/checkpoint/torch_bin.h: the restricted reader of one PyTorch checkpoint file, as torch.save() of a state_dict
// writes it: a zip archive, or before PyTorch 1.6 five pickles and the storages.
#pragma once

#include <string>
#include <vector>

#include "runtime/checkpoint/checkpoint.h"

namespace weft::runtime {

struct TorchFile {
  std::vector<TensorInfo> tensors;  ///< the tensors of file 0, each inside the file; tied ones share their bytes
  std::vector<Checksum> checksums;  ///< one per storage that holds tensors; none before PyTorch 1.6
  std::vector<std::string> notes;   ///< facts that are no reason to stop, one line each
};

/// Reads where the tensors are. Executes nothing of the file, verifies the checksum of data.pkl, and reads no tensor's
/// bytes. Throws CheckpointError with the file and the place in it.
TorchFile read_torch_bin(const InputFile& file);

}  // namespace weft::runtime
